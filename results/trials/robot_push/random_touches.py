"""What random actions do to the cube: `python random_touches.py > random_touches.txt`."""

import numpy as np

from softaug.envs import robot_push
from softaug.envs.robot_push.task import DISTANCE_PENALTY, EPISODE_DECISIONS

EPISODES = 300
env, rng = robot_push.load(2, random=0), np.random.default_rng(0)
gains = []  # of the episodes in which the cube moved: the return, less what it is if the cube is left alone
for _ in range(EPISODES):
    env.reset()
    start, distance = env.physics.cube()[:2], env.physics.distance()
    total = sum(env.step(rng.uniform(-1, 1, 2)).reward for _ in range(EPISODE_DECISIONS))
    if np.linalg.norm(env.physics.cube()[:2] - start) > 0.005:
        gains.append(total + EPISODE_DECISIONS * DISTANCE_PENALTY * distance)
print(f"{EPISODES} episodes; the cube was moved by more than 5 mm in {len(gains)}")
print(f"of these, {np.mean(np.array(gains) < 0):.0%} have a lower return than with the cube left alone")
print(f"mean difference {np.mean(gains):.2f}, median {np.median(gains):.2f}")
