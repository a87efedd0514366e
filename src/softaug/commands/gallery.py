"""``softaug gallery``: images of every task in every mode and of every augmentation."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from softaug.commands.eval import add_optional
from softaug.envs import PAPER_TASKS
from softaug.envs.modes import BENCHMARK_MODES, MODE_GROUPS, expand_groups, split_modes
from softaug.errors import UserError
from softaug.files import output_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path("gallery.png"), help="image to write (.png, .jpg or .webp)"
    )
    add_optional(
        parser,
        "--tasks",
        metavar="A,B",
        help="tasks, one row each (default: the benchmark's and robot_push, each in its most telling modes)",
    )
    add_optional(
        parser,
        "--modes",
        metavar="A,B",
        help="modes, one column each (with --tasks alone: DMControl-GB's); "
        f"{'|'.join(MODE_GROUPS)} stand for a benchmark's",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the episodes and draws")
    parser.add_argument("--videos", help="a folder of videos, or 'procedural'")
    parser.add_argument("--colors", help="an official .pt file of color settings")
    parser.add_argument("--images", help="a folder of overlay images, or 'procedural'")
    parser.add_argument(
        "--augmentations",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="show the augmentations too",
    )
    parser.add_argument(
        "--only-augmentations",
        action="store_true",
        help="show the augmentations alone: every method's views",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    from softaug.evaluation.gallery import STANDARD_BLOCKS, save_gallery

    if args.out.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp"):
        raise UserError(f"cannot write {args.out}: name a .png, .jpg or .webp file")
    output_file(args.out)  # refused before anything is rendered
    if not args.out.absolute().parent.is_dir():
        raise UserError(
            f"the folder {args.out.absolute().parent} does not exist; create it or choose another --out"
        )
    blocks: Any = () if args.only_augmentations else STANDARD_BLOCKS
    if args.only_augmentations and (
        args.tasks is not None or args.modes is not None or not args.augmentations
    ):
        raise UserError(
            "--only-augmentations shows no modes; leave out --tasks, --modes and --no-augmentations"
        )
    if args.tasks is not None or args.modes is not None:
        tasks = args.tasks.split(",") if args.tasks else list(PAPER_TASKS)
        modes = (
            expand_groups(split_modes(args.modes)) if args.modes else [mode.name for mode in BENCHMARK_MODES]
        )
        blocks = [(tasks, modes)]
    sources = save_gallery(
        args.out,
        blocks,
        seed=args.seed,
        videos=args.videos,
        colors=args.colors,
        images=args.images,
        augmentations=args.augmentations,
        said=lambda task: print(f"{task} drawn", file=sys.stderr),
    )
    if args.json:
        print(json.dumps({"out": str(args.out), "media": sources}))
    else:
        print(f"wrote {args.out} ({args.out.stat().st_size / 1e3:.0f} kB)")
    return 0
