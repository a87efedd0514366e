"""SODA next to your own learner: an actor-critic from pixels in plain PyTorch, and `SodaTask` on its encoder.

python examples/plain_pytorch_soda.py --steps 20000
"""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import softaug
from softaug.learning.augment import RandomConv, RandomShift

STEPS_PER_UPDATE, DISCOUNT, ENTROPY = 16, 0.99, 1e-3
SODA_EVERY, SODA_BATCH, BUFFER = 2, 64, 5_000


class ActorCritic(nn.Module):
    """A small encoder of 64 x 64 pixels in 0..255, and on its features a Gaussian policy and a value."""

    def __init__(self, channels: int, actions: int):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(channels, 16, 8, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.Flatten(),
            nn.Linear(32 * 6 * 6, 128), nn.LayerNorm(128), nn.Tanh(),
        )  # fmt: skip
        self.mean, self.value = nn.Linear(128, actions), nn.Linear(128, 1)
        self.log_std = nn.Parameter(torch.full((actions,), -0.5))

    def forward(self, pixels: Tensor) -> tuple[torch.distributions.Normal, Tensor]:
        features = self.encoder(pixels.float() / 255)
        return torch.distributions.Normal(self.mean(features), self.log_std.exp()), self.value(features)[:, 0]


def returns_of(rewards: list[float], ends: list[bool], after: float) -> Tensor:
    """Discounted sums of rewards; `after`: the value of what follows the last of them."""
    total, result = after, []
    for reward, end in zip(reversed(rewards), reversed(ends), strict=True):
        total = reward + DISCOUNT * total * (not end)
        result.append(total)
    return torch.tensor(result[::-1])


def main() -> None:
    parser = argparse.ArgumentParser(description="actor-critic with SODA")
    parser.add_argument("--steps", type=int, default=20_000, help="decisions")
    parser.add_argument("--task", default="cartpole_balance", help="a task of the dm_control suite")
    args = parser.parse_args()

    env = softaug.make_env(args.task, image_size=64, render="fast")  # observations: uint8 (9, 64, 64)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    model = ActorCritic(env.observation_space.shape[0], env.action_space.shape[0])
    optimizer = torch.optim.Adam(model.parameters(), 3e-4)

    # SODA: your encoder, an augmentation, and how the encoder wants its pixels. All else is as it was.
    soda = softaug.SodaTask(
        model.encoder, RandomConv(), obs_shape=env.observation_space.shape, weak=RandomShift(4), scale=1 / 255
    )
    buffer = np.empty((BUFFER, *env.observation_space.shape), np.uint8)  # clean observations, the newest ones

    obs, _ = env.reset(seed=0)
    episode_return, updates, soda_loss = 0.0, 0, float("nan")
    observations, actions, rewards, ends = [], [], [], []
    for step in range(args.steps):
        buffer[step % BUFFER] = obs
        with torch.no_grad():
            action = model(torch.from_numpy(obs)[None])[0].sample()[0]
        observations.append(torch.from_numpy(obs))
        actions.append(action)
        obs, reward, terminated, truncated, _ = env.step(action.numpy().clip(-1, 1))
        episode_return += float(reward)
        rewards.append(float(reward))
        # For simplicity the time limit is an end too; a better learner would bootstrap there.
        ends.append(terminated or truncated)
        if ends[-1]:
            print(f"{step + 1} decisions: return {episode_return:.1f}, SODA loss {soda_loss:.3f}", flush=True)
            episode_return = 0.0
            obs, _ = env.reset()

        if len(rewards) == STEPS_PER_UPDATE:
            with torch.no_grad():
                after = float(model(torch.from_numpy(obs)[None])[1])
            policy, values = model(torch.stack(observations))  # RL sees clean observations only
            targets = returns_of(rewards, ends, after)
            log_prob = policy.log_prob(torch.stack(actions)).sum(1)
            loss = F.mse_loss(values, targets) - ((targets - values).detach() * log_prob).mean()
            loss = loss - ENTROPY * policy.entropy().sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            observations, actions, rewards, ends = [], [], [], []
            updates += 1
            if updates % SODA_EVERY == 0:
                batch = buffer[rng.integers(min(step + 1, BUFFER), size=SODA_BATCH)]
                soda_loss = float(soda.step(torch.from_numpy(batch)))  # one SODA update, target included
    env.close()
    print(f"{updates} actor-critic updates, the last SODA loss {soda_loss:.3f}")


if __name__ == "__main__":
    main()
