"""``python tests/envs/push_episodes.py``: many random episodes of robot push without rendering, and what went wrong in them."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

from softaug.envs import robot_push
from softaug.envs.robot_push.scene import CUBE_HALF_SIZE, TABLE_HIGH, TABLE_LOW
from softaug.envs.robot_push.task import WORKSPACE_HIGH, WORKSPACE_LOW, Physics

# A cube that stands on an edge has its center at 1.41 of the half size, on a corner at 1.73.
FLYING_HEIGHT = 2 * CUBE_HALF_SIZE
POLICIES = ("uniform", "held", "chasing")


def random_action(
    policy: str, decision: int, last: np.ndarray, physics: Physics, rng: np.random.Generator
) -> np.ndarray:
    """uniform: anew each decision. held: each for five. chasing: at the cube with full force, a little aside."""
    if policy == "held" and decision % 5:
        return last
    action = rng.uniform(-1, 1, last.shape)
    if policy == "chasing":
        towards = (physics.cube()[:2] - physics.tip()[:2]) + rng.normal(0, 0.02, 2)
        action[:2] = towards / np.abs(towards).max()
    return action


def check_episodes(episodes: int, seed: int = 0, action_dims: int = 2) -> dict[str, Any]:
    """Play `episodes` random episodes; counts of what must not happen, and extreme values, in meters and m/s."""
    env = robot_push.load(action_dims, random=seed)
    physics, rng = env.physics, np.random.default_rng(seed)
    heights, speeds, outside, toppled, flying, off_table = [], [], 0.0, 0, 0, 0
    moved, returns = 0, []
    start = time.process_time()
    for episode in range(episodes):
        step = env.reset()
        at_start, action = physics.cube(), np.zeros(action_dims)
        highest, total, decision = 0.0, 0.0, 0
        while not step.last():
            action = random_action(POLICIES[episode % 3], decision, action, physics, rng)
            step = env.step(action)
            cube, tip = physics.cube(), physics.tip()
            highest = max(highest, cube[2])
            speeds.append(np.linalg.norm(physics.named.data.qvel["cube"][:3]))
            outside = max(outside, float(np.max([WORKSPACE_LOW - tip, tip - WORKSPACE_HIGH])))
            total += step.reward
            decision += 1
        heights.append(highest)
        returns.append(total)
        flying += bool(highest > FLYING_HEIGHT or not np.isfinite(cube).all())
        off_table += bool(np.any(cube[:2] < TABLE_LOW) or np.any(cube[:2] > TABLE_HIGH) or cube[2] < 0)
        toppled += bool(physics.named.data.xmat["cube"][8] < 0.9)
        moved += bool(np.linalg.norm(cube - at_start) > 0.01)
    seconds = time.process_time() - start
    return {
        "episodes": episodes,
        "seed": seed,
        "action_dims": action_dims,
        "flying": int(flying),
        "off_table": int(off_table),
        "toppled": int(toppled),
        "moved": int(moved),
        "highest_cube": float(np.max(heights)),
        "fastest_cube": float(np.max(speeds)),
        "outside_workspace": outside,
        "mean_return": float(np.mean(returns)),
        "ms_per_decision": 1000 * seconds / len(speeds),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--action-dims", type=int, default=2, choices=(2, 3))
    arguments = parser.parse_args()
    print(json.dumps(check_episodes(arguments.episodes, arguments.seed, arguments.action_dims)))
