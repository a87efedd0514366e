"""A policy of random convolutions in the test modes: what an agent has to beat, and how any policy of yours is tested.

python examples/evaluate_random_convolutions.py --task walker_stand --out runs/random_convolutions
softaug report runs/random_convolutions
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn

import softaug


class RandomConvolutions:
    """Untrained networks, drawn anew for each episode: `begin_episode` is optional, `act` is all a policy needs."""

    def __init__(self, actions: int):
        self.actions = actions

    def begin_episode(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.network = nn.Sequential(
            nn.LazyConv2d(16, 5, stride=3), nn.ReLU(), nn.LazyConv2d(16, 3, stride=2), nn.ReLU(), nn.Flatten(),
            nn.LazyLinear(self.actions), nn.Tanh(),
        )  # fmt: skip

    @torch.no_grad()
    def act(self, obs: np.ndarray) -> np.ndarray:
        pixels = torch.from_numpy(obs)[None] / 255 - 0.5  # uint8 (9, 84, 84): three frames
        return self.network(pixels)[0].numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description="test a policy of random convolutions")
    parser.add_argument("--task", default="walker_stand", help="a task of the dm_control suite")
    parser.add_argument("--modes", default="train,color_hard,video_easy", help="modes to test in")
    parser.add_argument("--episodes", type=int, default=10, help="test episodes per mode")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/random_convolutions"), help="where the results go"
    )
    args = parser.parse_args()

    env = softaug.make_env(args.task)
    policy = RandomConvolutions(env.action_space.shape[0])
    env.close()
    report = softaug.evaluate(
        policy,
        task=args.task,
        modes=args.modes.split(","),
        episodes=args.episodes,
        workers=args.workers,
        image_size=84,
        render="fast",
        name="random convolutions",
        out=args.out,
    )
    for row in report["results"]:
        print(f"{row['mode']}: return {row['mean']:.1f} ± {row['std']:.1f} over {row['episodes']} episodes")


if __name__ == "__main__":
    main()
