"""Stable-Baselines3's PPO with SODA on a DMControl task from pixels, tested where it was not trained.

pip install 'softaug[sb3]'
python examples/sb3_ppo_soda.py --steps 200000 --out runs/ppo
python examples/sb3_ppo_soda.py --steps 200000 --out runs/ppo    # again: continues from what was saved
"""

import argparse
from pathlib import Path

from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

import softaug
from softaug.integrations.sb3 import SodaCallback


def main() -> None:
    parser = argparse.ArgumentParser(description="SB3 PPO with SODA")
    parser.add_argument("--steps", type=int, default=200_000, help="decisions, over all environments")
    parser.add_argument("--task", default="walker_stand", help="a task of the dm_control suite")
    parser.add_argument("--envs", type=int, default=4, help="environments side by side")
    parser.add_argument("--rollout", type=int, default=256, help="decisions per environment between updates")
    parser.add_argument("--episodes", type=int, default=3, help="test episodes per mode")
    parser.add_argument("--out", type=Path, help="directory to save to, and to continue from")
    args = parser.parse_args()

    def make(mode: str, count: int) -> DummyVecEnv:
        # Observations are uint8 (9, 84, 84), three frames, channels first: what CnnPolicy takes, without wrappers.
        return DummyVecEnv(
            [
                lambda seed=seed: Monitor(
                    softaug.make_env(args.task, mode, seed, image_size=84, render="fast")
                )
                for seed in range(count)
            ]
        )

    env = make("train", args.envs)
    soda = SodaCallback(batch_size=128, every=4)  # overlay of random images; RL's data stay clean
    saved = args.out is not None and (args.out / "ppo.zip").exists()
    if saved:
        model = PPO.load(args.out / "ppo", env=env)
        soda.load(args.out / "soda.pt")
    else:
        model = PPO("CnnPolicy", env, n_steps=args.rollout, batch_size=64, n_epochs=4, seed=0, verbose=1)
    model.learn(args.steps, callback=soda, reset_num_timesteps=not saved)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        model.save(args.out / "ppo")
        soda.save(args.out / "soda.pt")
    env.close()
    print(f"{soda.rl_updates} PPO updates, {soda.soda_updates} SODA updates")

    for mode in ("train", "color_hard", "video_easy") if args.episodes else ():
        env = make(mode, 1)
        mean, std = evaluate_policy(model, env, n_eval_episodes=args.episodes)
        print(f"{mode}: return {mean:.1f} ± {std:.1f} over {args.episodes} episodes")
        env.close()


if __name__ == "__main__":
    main()
