"""``softaug play RUN``: a video of a trained agent: left what the network sees, right the scene in full resolution.

With ``--tour``, several agents side by side while the appearance changes from mode to mode within one episode.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import gymnasium
from rich.console import Console

from softaug.commands.eval import RUN_HELP, add_optional, add_run_arguments
from softaug.envs import MODE_NAMES
from softaug.envs.factory import ConfigEnvs, check_own_envs, media_facts
from softaug.envs.modes import split_modes
from softaug.errors import UserError
from softaug.evaluation.animation import SUFFIXES, check_animation, panels, save_animation
from softaug.evaluation.evaluate import play_episodes, tasks_of
from softaug.evaluation.recording import Filmed, Recorder
from softaug.evaluation.run_evaluation import check_adapt, check_modes, with_media
from softaug.evaluation.runs import Run, load_run
from softaug.evaluation.tour import MODES as TOUR_MODES
from softaug.evaluation.tour import TourFrame, check_tour, play_tour, scene_config
from softaug.files import check_writable, output_file
from softaug.media.comparability import media_note
from softaug.progress import Bars
from softaug.tasks import ROBOT_TASKS
from softaug.trust import require_trust


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dirs", metavar="RUN", nargs="+", type=Path, help=RUN_HELP)
    add_optional(
        parser,
        "--mode",
        metavar="NAME",
        help=f"appearance of the world: {', '.join(MODE_NAMES)}, or a mode of your own environment (default: train)",
    )
    parser.add_argument(
        "--tour",
        action="store_true",
        help="one episode in changing appearance, of all RUNs side by side; --mode A,B says which modes "
        f"(default: {','.join(TOUR_MODES)})",
    )
    add_optional(
        parser,
        "--tour-decisions",
        type=int,
        metavar="N",
        help="decisions in each mode of the tour (default: a whole episode in equal parts)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE.mp4",
        help="video to write; a tour also as .gif or .webp",
    )
    parser.add_argument("--episodes", type=int, default=1, metavar="N", help="episodes, one after the other")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed; plays the episodes that eval plays"
    )
    parser.add_argument("--size", type=int, default=480, metavar="PIXELS", help="height of the video")
    parser.add_argument("--fps", type=float, default=25.0, metavar="N", help="decisions shown per second")
    parser.add_argument(
        "--large",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also render the scene in full resolution",
    )
    add_run_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the returns as JSON")


def run(args: argparse.Namespace) -> int:
    if not 16 <= args.size <= 1024 or args.size % 2:
        raise UserError(f"--size must be an even number from 16 to 1024, not {args.size}")
    if not 0.1 <= args.fps <= 240:
        raise UserError(f"--fps must be from 0.1 to 240, not {args.fps:g}")
    return _tour(args) if args.tour else _play(args)


def _load(args: argparse.Namespace, path: Path) -> tuple[Run, bool]:
    """The run, and whether its policy adapts."""
    trained = load_run(path, args.checkpoint)
    require_trust(trained.path, trained.config, trust=args.trust)
    trained = with_media(trained, args.videos, args.colors, args.test_env)
    check_adapt(trained, args.adapt)
    return trained, trained.config.row.adapts if args.adapt is None else args.adapt


def _tour(args: argparse.Namespace) -> int:
    check_animation(output_file(args.out))
    if args.tour_decisions is not None and args.tour_decisions < 1:
        raise UserError(f"--tour-decisions must be at least 1, not {args.tour_decisions}")
    loaded = [_load(args, path) for path in args.run_dirs]
    for trained, _ in loaded:
        check_tour(trained)
    modes = check_modes(split_modes(args.mode) if args.mode else TOUR_MODES, loaded[0][0].config)
    check_writable(args.out)
    with Bars("decisions") as bars:
        tours: list[list[TourFrame]] = []
        for (trained, adapt), path in zip(loaded, args.run_dirs, strict=True):
            tours.append([])
            for frame in play_tour(
                trained, modes, args.seed, size=args.size, decisions=args.tour_decisions, adapt=adapt
            ):
                tours[-1].append(frame)
                bars.stage(str(path), len(tours[-1]), frame.of)
    labels = [trained.config.row.label for trained, _ in loaded]
    frames = list(panels([iter(tour) for tour in tours], labels, _most_reward(loaded[0][0])))
    size = save_animation(args.out, frames, args.fps)
    facts = {
        "file": str(args.out),
        "bytes": size,
        "modes": modes,
        "runs": [
            {
                "run": str(path),
                "task": trained.config.task,
                "method": trained.config.method,
                "decisions": len(tour),
                "return": tour[-1].total,
                "return_by_mode": {m: sum(f.reward for f in tour if f.mode == m) for m in modes},
            }
            for (trained, _), path, tour in zip(loaded, args.run_dirs, tours, strict=True)
        ],
    }
    if args.json:
        print(json.dumps(facts, indent=2))
        return 0
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    for path, tour in zip(args.run_dirs, tours, strict=True):
        console.print(f"{path}: return {tour[-1].total:.1f} in {len(tour)} decisions")
    console.print(f"written to {args.out} ({size / 1e3:,.0f} kB)")
    return 0


def _most_reward(trained: Run) -> float:
    """The largest reward of a decision: a frame of the suite's tasks gives at most 1; the robot's has no such bound."""
    config = trained.config
    return 0.0 if config.task in ROBOT_TASKS else float(config.frames_per_decision)


def _play(args: argparse.Namespace) -> int:
    if args.out.suffix.lower() != ".mp4":
        raise UserError(
            f"{args.out} is not an .mp4 file; give --out a name that ends in .mp4"
            + (", or --tour" if args.out.suffix.lower() in SUFFIXES else "")
        )
    if len(args.run_dirs) > 1:
        raise UserError("play shows one run at a time; give one RUN, or --tour to see several side by side")
    trained, adapt = _load(args, args.run_dirs[0])
    args.mode = args.mode or "train"
    modes = check_modes(split_modes(args.mode), trained.config)
    tasks = tasks_of(modes, args.episodes)
    check_own_envs(trained.config, modes)

    with Recorder(args.out, fps=args.fps, min_size=args.size) as recorder:

        def filmed(mode: str, seed: int) -> gymnasium.Env:
            config = trained.config
            # Of the user's own world there is one only (it may be a robot): its camera's image is shown large.
            own = args.large and config.own_env
            large = (
                ConfigEnvs(scene_config(config, args.size))(mode, seed) if args.large and not own else None
            )
            small = ConfigEnvs(config)(mode, seed)
            return Filmed(small, large, recorder, size=args.size, crop_size=config.crop_size, full_frame=own)

        episodes = list(play_episodes(trained.policy(adapt), filmed, tasks, args.seed))
    facts = {
        "file": str(args.out),
        "task": trained.config.task,
        "method": trained.config.method,
        "mode": args.mode,
        "adapt": adapt,
        "decisions_of_training": trained.decisions,
        "media": episodes[0].media,
        "note": media_note(args.mode, episodes[0].media, media_facts(trained.config, args.mode)),
        "episodes": [episode.to_json() for episode in episodes],
    }
    if args.json:
        print(json.dumps(facts, indent=2))
        return 0
    console = Console(highlight=False, markup=False, emoji=False)
    for episode in episodes:
        video = episode.info.get("video") or ""
        console.print(
            f"{args.mode}, episode {episode.episode}: return {episode.total:.1f} in {episode.decisions} decisions"
            + (f"  ({Path(str(video)).name})" if video else ""),
            soft_wrap=True,
        )
    if facts["note"]:
        console.print(facts["note"])
    console.print(f"written to {args.out}", soft_wrap=True)
    return 0
