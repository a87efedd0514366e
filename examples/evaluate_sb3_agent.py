"""Train an agent of Stable-Baselines3, save it, and test the file in the modes of the benchmark.

pip install 'softaug[sb3]'
python examples/evaluate_sb3_agent.py --steps 100000 --out runs/sac_sb3
softaug report runs/sac_sb3
"""

import argparse
from pathlib import Path

from stable_baselines3 import SAC

import softaug


def main() -> None:
    parser = argparse.ArgumentParser(description="test an agent of Stable-Baselines3")
    parser.add_argument("--steps", type=int, default=100_000, help="decisions of training")
    parser.add_argument("--task", default="cartpole_balance", help="a task of the dm_control suite")
    parser.add_argument("--modes", default="train,color_hard,video_easy", help="modes to test in")
    parser.add_argument("--episodes", type=int, default=10, help="test episodes per mode")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, default=Path("runs/sac_sb3"), help="where the results go")
    args = parser.parse_args()

    env = softaug.make_env(args.task, image_size=84, render="fast")
    model = SAC("CnnPolicy", env, buffer_size=min(args.steps, 50_000), batch_size=64, seed=0, verbose=1)
    model.learn(args.steps)
    env.close()
    file = args.out.with_suffix(".zip")
    model.save(file)

    # The file says its image size and frame stack, and how many decisions it was trained for. It is not unpickled.
    report = softaug.evaluate(
        file,
        task=args.task,
        modes=args.modes.split(","),
        episodes=args.episodes,
        workers=args.workers,
        render="fast",
        name="SAC of Stable-Baselines3",
        out=args.out,
    )
    for row in report["results"]:
        print(f"{row['mode']}: return {row['mean']:.1f} ± {row['std']:.1f} over {row['episodes']} episodes")


if __name__ == "__main__":
    main()
