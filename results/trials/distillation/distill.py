"""Which encoders and auxiliary settings keep a policy under other appearances: minutes instead of training runs.

    python distill.py --task cartpole_swingup >> distill.jsonl                              # the preset's
    python distill.py --task cartpole_swingup --filters 16,32,32,32 --strides 2,2,2,1 >> distill.jsonl

A student, built from the config, learns the actions of the zoo's SODA policy by regression from images of the training
appearance. That gradient reaches the encoder, as the critic's does in reinforcement learning, and the auxiliary task runs
next to it as it does in training. Prints a line of JSON with the R² of the student's actions in each mode against those
of the expert, which always sees the training appearance. Test states are from other episodes; each mode shows the same
physics. The expert's data are recorded once (some minutes) and kept in a temporary folder.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from softaug import load_policy, make_env
from softaug.commands.config_flags import add_config_arguments, given_arguments
from softaug.config import Config, make_config
from softaug.evaluation.policy import Policy, make_policy
from softaug.learning.agent import make_agent
from softaug.learning.memory import keep_freed_memory
from softaug.learning.sac import adam

MODES = {"robot_push": ("random_colors", "video_background")}
OTHER_MODES = ("color_hard", "video_easy", "video_hard")
Recording = tuple[np.ndarray, np.ndarray]
"""Observations (N, 3k, H, W) and actions (N, A)."""
LEARN_DECISIONS, LEARN_SEED, TEST_SEED = 8_000, 7, 99
TEST_EPISODES = {"robot_push": 24}
OTHER_TEST_EPISODES = 12
LEARN_NOISE, TEST_NOISE = (0.0, 0.3, 0.6, None), (0.0, 0.3)
"""Standard deviations of what is added to the expert's actions, in turns by episode: students need to recover, too.
None: 1.0 in 40 % of the decisions, a uniformly random action in the others."""


def noisy(action: np.ndarray, noise: float | None, rng: np.random.Generator) -> np.ndarray:
    if noise is None and rng.random() >= 0.4:
        return rng.uniform(-1, 1, action.shape).astype(np.float32)
    strength = 1.0 if noise is None else noise
    return np.clip(action + strength * rng.standard_normal(action.shape), -1, 1).astype(np.float32)


def record_lessons(task: str) -> Recording:
    """Observations in the training appearance, and the expert's actions at them."""
    expert = load_policy(f"zoo:{task}-soda_overlay")
    env = make_env(task, "train", seed=LEARN_SEED, image_size=56, render="fast")
    rng, episode, done = np.random.default_rng(0), -1, True
    seen, actions = [], []
    while len(seen) < LEARN_DECISIONS:
        if done:
            episode += 1
            obs, _ = env.reset()
        action = expert.act(obs)
        seen.append(obs)
        actions.append(action)
        taken = noisy(action, LEARN_NOISE[episode % len(LEARN_NOISE)], rng)
        obs, _, terminated, truncated, _ = env.step(taken)
        done = terminated or truncated
    return np.stack(seen), np.stack(actions)


def record_test(task: str, mode: str) -> Recording:
    """Every second observation in `mode`, and the expert's actions at the same states in the training appearance."""
    expert = load_policy(f"zoo:{task}-soda_overlay")
    plain, shown = (make_env(task, m, seed=TEST_SEED, image_size=56, render="fast") for m in ("train", mode))
    seen, actions = [], []
    for episode in range(TEST_EPISODES.get(task, OTHER_TEST_EPISODES)):
        (plain_obs, _), (shown_obs, _) = plain.reset(), shown.reset()
        rng, decision, done = np.random.default_rng(episode), 0, False
        while not done:
            action = expert.act(plain_obs)
            if decision % 2 == 0:
                seen.append(shown_obs)
                actions.append(action)
            taken = noisy(action, TEST_NOISE[episode % len(TEST_NOISE)], rng)
            (plain_obs, *_), (shown_obs, _, terminated, truncated, _) = plain.step(taken), shown.step(taken)
            decision, done = decision + 1, terminated or truncated
    return np.stack(seen), np.stack(actions)


def recorded(name: str, record: Callable[[], Recording]) -> tuple[Tensor, Tensor]:
    """What `record` returns, with pixels in the replay's memory order; recorded when first asked for."""
    path = Path(tempfile.gettempdir()) / f"softaug-distill-{name}.npz"
    if not path.exists():
        print(f"recording {name}", file=sys.stderr)
        obs, actions = record()
        np.savez(path, obs=obs.transpose(0, 2, 3, 1), actions=actions)
    with np.load(path) as data:
        return torch.from_numpy(data["obs"]), torch.from_numpy(data["actions"])


def distil(config: Config, updates: int, episodes: int) -> dict[str, Any]:
    """R² by mode, mean returns, and the losses of regression and auxiliary task over the last tenth of the updates."""
    obs, actions = recorded(config.task, partial(record_lessons, config.task))
    agent = make_agent(config, (obs.shape[3], *obs.shape[1:3]), actions.shape[1])
    encoder, actor, task = agent.sac.encoder, agent.sac.actor, agent.auxiliary
    optimiser = adam([*encoder.parameters(), *actor.parameters()], config.critic_lr)
    rng = np.random.default_rng(config.seed)

    def batch(size: int) -> tuple[Tensor, Tensor]:
        index = torch.from_numpy(rng.integers(len(obs), size=size))
        return obs[index].permute(0, 3, 1, 2), actions[index]

    losses, auxiliary_losses = [], []
    for update in range(updates):
        pixels, wanted = batch(config.batch_size)
        mean, _ = actor(encoder(agent.weak(pixels, agent.generator)))
        loss = F.mse_loss(torch.tanh(mean), wanted)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        if task is not None and update % config.aux_every == 0:
            prepared = agent.prepare_auxiliary(batch(config.aux_batch_size)[0])
            auxiliary_losses.append(agent.auxiliary_gradients(prepared).item())
            agent.step_auxiliary()

    policy = make_policy(config, agent.policy_weights(), (obs.shape[3], *obs.shape[1:3]), actions.shape[1])
    r2, returns = {}, {}
    for mode in ("train", *MODES.get(config.task, OTHER_MODES)):
        shown, wanted = recorded(f"{config.task}-{mode}", partial(record_test, config.task, mode))
        with torch.inference_mode():
            guess = torch.cat([policy(part.permute(0, 3, 1, 2)) for part in shown.split(256)])
        error = (guess - wanted).square().mean() / (wanted - wanted.mean(0)).square().mean()
        r2[mode] = round(1 - float(error), 3)
        if episodes:
            returns[mode] = round(play(policy, config.task, mode, episodes), 1)
    measured = {"r2": r2, "returns": returns} if episodes else {"r2": r2}
    return measured | {
        "loss": mean_at_the_end(losses),
        "auxiliary_loss": mean_at_the_end(auxiliary_losses),
    }


def play(policy: Policy, task: str, mode: str, episodes: int) -> float:
    """The mean return of a few episodes."""
    env = make_env(task, mode, seed=42, image_size=56, render="fast")
    total = 0.0
    for _ in range(episodes):
        (obs, _), done = env.reset(), False
        while not done:
            obs, reward, terminated, truncated, _ = env.step(policy.act(obs))
            total, done = total + reward, terminated or truncated
    return total / episodes


def mean_at_the_end(values: list[float]) -> float | None:
    """Of the last tenth; None without any."""
    return round(float(np.mean(values[-(len(values) // 10) :])), 4) if values else None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=2_000)
    parser.add_argument("--episodes", type=int, default=0, help="also play as many in each mode")
    add_config_arguments(parser, leave_out=("preset",))
    args = parser.parse_args()
    given = {"method": "soda_overlay"} | given_arguments(args)
    if "task" not in given:
        parser.error("give a --task that the zoo has a SODA policy of")
    torch.set_num_threads(1)
    keep_freed_memory()
    measured = distil(make_config(preset="small", **given), args.updates, args.episodes)
    names = {"task": given.pop("task"), "method": given.pop("method"), "updates": args.updates}
    print(json.dumps(names | {"settings": given} | measured))
