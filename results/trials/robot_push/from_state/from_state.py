"""SAC on robot push that sees positions instead of images: which numbers can learn the task at all, in minutes.

    python from_state.py discount=0.95 > discount-0.95.txt

A line per 100 training episodes: decisions so far, episodes of the 100 with a return above 0, the policy's last standard
deviation, the mean return, the temperature, seconds. Everything but encoder and replay is softaug's.
"""

import sys
import time

import numpy as np
import torch
from torch import Tensor, nn

from softaug.envs import robot_push
from softaug.learning.networks import Actor, Critic, initialise
from softaug.learning.sac import SAC

EPISODE = robot_push.EPISODE_DECISIONS
STATE = 6
settings = {
    "decisions": 100_000,
    "random_decisions": 5_000,
    "update_every": 2,
    "batch_size": 128,
    "n_step": 3,
    "critic_tau": 0.02,
    "discount": 0.95,
    "temperature": 0.01,
    "initial_updates": 1_000,
    "hold": 1,  # decisions that each random action is held for
    "seed": 0,
}
settings |= {name: type(settings[name])(value) for name, value in (word.split("=") for word in sys.argv[1:])}
torch.set_num_threads(1)
torch.manual_seed(settings["seed"])
generator, rng = torch.Generator().manual_seed(settings["seed"] + 1), np.random.default_rng(settings["seed"])


class StateEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(STATE, 64)

    def forward(self, state: Tensor) -> Tensor:
        return torch.relu(self.linear(state))


env = robot_push.load(2, random=settings["seed"])
parts = (StateEncoder(), Actor(64, 50, 256, 2), Critic(64, 50, 256, 2))
for part in parts:
    initialise(part)
sac = SAC(
    *parts,
    action_dim=2,
    initial_temperature=settings["temperature"],
    actor_lr=1e-3,
    critic_lr=1e-3,
    alpha_lr=1e-4,
    critic_tau=settings["critic_tau"],
    encoder_tau=0.05,
)
episodes = settings["decisions"] // EPISODE
states = np.zeros((episodes, EPISODE + 1, STATE), np.float32)
actions = np.zeros((episodes, EPISODE, 2), np.float32)
rewards = np.zeros((episodes, EPISODE), np.float32)
decisions = updates = 0


def see() -> np.ndarray:
    cube, tip, goal = env.physics.cube()[:2], env.physics.tip()[:2], env.physics.goal()[:2]
    return 10 * np.concatenate([cube - tip, goal - cube, cube - [0.45, 0]]).astype(np.float32)


def act(state: np.ndarray) -> tuple[np.ndarray, float]:
    with torch.no_grad():
        mean, log_std = sac.actor(sac.encoder(torch.from_numpy(state)[None]))
        action = torch.tanh(mean + log_std.exp() * torch.randn(mean.shape, generator=generator))
    return action[0].numpy(), float(log_std.exp().mean())


def update() -> None:
    """One update on transitions of up to n steps; an episode's end bootstraps, as it is only a time limit."""
    global updates
    episode, first = np.divmod(rng.integers(0, decisions, settings["batch_size"]), EPISODE)
    length = np.where(episode == decisions // EPISODE, decisions % EPISODE, EPISODE)
    reward = np.zeros(len(first), np.float32)
    discount = np.ones(len(first), np.float32)
    last = first.copy()
    for _ in range(settings["n_step"]):
        going = last < length
        reward += np.where(going, discount * rewards[episode, np.minimum(last, EPISODE - 1)], 0)
        discount *= np.where(going, settings["discount"], 1).astype(np.float32)
        last += going
    here, there = torch.from_numpy(states[episode, first]), torch.from_numpy(states[episode, last])
    columns = (torch.from_numpy(values)[:, None] for values in (reward, discount))
    target = sac.bellman_target(there, *columns, generator)
    sac.update_critic(sac.critic_values(here, torch.from_numpy(actions[episode, first])), target)
    if updates % 2 == 0:
        sac.update_actor(here, generator)
        sac.update_target()
    updates += 1


begun, std, returns = time.time(), 1.0, []
for episode in range(episodes):
    env.reset()
    states[episode, 0] = see()
    for step in range(EPISODE):
        if decisions < settings["random_decisions"]:
            actions[episode, step] = (
                rng.uniform(-1, 1, 2) if step % settings["hold"] == 0 else actions[episode, step - 1]
            )
        else:
            actions[episode, step], std = act(states[episode, step])
        rewards[episode, step] = env.step(actions[episode, step]).reward
        states[episode, step + 1] = see()
        decisions += 1
        if decisions == settings["random_decisions"]:
            for _ in range(settings["initial_updates"]):
                update()
        elif decisions > settings["random_decisions"] and decisions % settings["update_every"] == 0:
            update()
    returns.append(float(rewards[episode].sum()))
    if len(returns) % 100 == 0:
        newest = returns[-100:]
        hits = sum(value > 0 for value in newest)
        print(
            f"{decisions} hits {hits} std {std:.2f} {np.mean(newest):.2f} {float(sac.alpha):.4f} {time.time() - begun:.0f}",
            flush=True,
        )
