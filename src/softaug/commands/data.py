"""List, register, check or download images and videos."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from softaug.errors import UserError, unknown
from softaug.media import official, registry
from softaug.media.catalogue import CATALOGUE, find


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``softaug data list | add NAME PATH | remove NAME | check [NAME] | download NAME | pack NAME``."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    action = actions.add_parser("list", help="the catalogue and what is registered on this computer")
    action.add_argument("--json", action="store_true", help="print JSON")
    action = actions.add_parser("add", help="register a folder of images or videos under a name")
    action.add_argument("name", help=f"one of {', '.join(CATALOGUE)}, or any other name")
    action.add_argument("path", type=Path, help="the folder")
    action = actions.add_parser("remove", help="unregister a data set; its files are kept")
    action.add_argument("name")
    action = actions.add_parser("check", help="decode a sample of the files, name missing and damaged ones")
    action.add_argument("name", nargs="?", help="a registered data set (default: all)")
    action.add_argument("--all", action="store_true", help="decode every file instead of a sample")
    action.add_argument("--json", action="store_true", help="print JSON")
    action = actions.add_parser("download", help="download, verify, unpack and register a data set")
    action.add_argument("name", help=f"one of {', '.join(CATALOGUE)}")
    action.add_argument("--to", type=Path, help="folder to unpack to (default: softaug's data folder)")
    action.add_argument(
        "--keep-archive", action="store_true", help="keep the downloaded file after unpacking"
    )
    action = actions.add_parser(
        "pack",
        help="decode overlay images once, into one file that training then uses automatically",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    action.add_argument("name", help="registered images, or a folder of images")
    action.add_argument("--count", type=int, default=20_000, help="how many images, spread over the folder")
    action.add_argument("--size", type=int, default=256, help="stored height and width in pixels")


def run(args: argparse.Namespace) -> int:
    """Do what `args.action` says; `check` returns 1 when something is damaged."""
    actions = {
        "list": _list,
        "add": _add,
        "remove": _remove,
        "check": _check,
        "download": _download,
        "pack": _pack,
    }
    return actions[args.action](args)


def _size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _list(args: argparse.Namespace) -> int:
    registered = registry.registered()
    rows: list[dict[str, Any]] = []
    for dataset in CATALOGUE.values():
        rows.append(
            {
                "name": dataset.name,
                "title": dataset.title,
                "kind": dataset.kind,
                "bytes": dataset.size,
                "licence": dataset.licence,
                "url": dataset.url,
                "checksum": dataset.checksum,
            }
        )
    rows += [{"name": name, "title": "registered by you"} for name in registered if name not in CATALOGUE]
    for row in rows:
        folder = registered.get(row["name"])
        row["path"] = None if folder is None else str(folder)
        row["present"] = folder is not None and folder.is_dir()
    if args.json:
        print(json.dumps({"registry": str(registry.registry_path()), "datasets": rows}, indent=2))
        return 0
    from rich.console import Console
    from rich.padding import Padding

    console = Console(highlight=False)
    for row in rows:
        place = "[dim]not on this computer[/dim]"
        if row["path"]:
            place = f"[green]{row['path']}[/green]" if row["present"] else f"[red]{row['path']} is gone[/red]"
        console.print(f"[bold]{row['name']:20}[/bold]{place}", soft_wrap=True)
        console.print(Padding(row["title"], (0, 0, 0, 2)))
        if row["name"] in CATALOGUE:
            size, checksum = _size(row["bytes"]), CATALOGUE[row["name"]].checksum_note
            console.print(Padding(f"[dim]about {size}; {checksum}; {row['licence']}[/dim]", (0, 0, 1, 2)))
    console.print(f"[dim]registry: {registry.registry_path()}[/dim]", soft_wrap=True)
    if not registered:
        console.print("Nothing is registered: overlay images and test videos are procedural.")
    return 0


def _add(args: argparse.Namespace) -> int:
    from softaug.media.check import kind_of

    folder = args.path.expanduser()
    if not folder.is_dir():
        raise UserError(f"cannot register '{args.name}': {folder} is not a folder.")
    if args.name in CATALOGUE:
        folder = CATALOGUE[args.name].locate(folder)
    kind = kind_of(args.name, folder)
    print(f"registered '{args.name}' ({_contents(kind, folder)}): {registry.register(args.name, folder)}")
    return 0


def _contents(kind: str, folder: Path) -> str:
    """What a folder holds, in a few words; a `UserError` when it holds nothing of its kind."""
    if kind == "images":
        from softaug.media.folder_images import FolderImages

        return f"{len(FolderImages(folder, packed=False)):,} images"
    if kind == "videos":
        from softaug.media.video_files import videos_in

        return f"{len(videos_in(folder)):,} videos"
    root = official.require_root(folder)
    counts = [f"{len(official.video_files(root, level))} {level}" for level in official.LEVELS]
    return f"DMControl-GB, {' and '.join(counts)} videos"


def _remove(args: argparse.Namespace) -> int:
    print(f"removed '{args.name}'; its files are still in {registry.unregister(args.name)}")
    return 0


def _check(args: argparse.Namespace) -> int:
    from softaug.media.check import check_dataset

    registered = registry.registered()
    if args.name is not None and args.name not in registered:
        raise unknown("registered data set", args.name, registered)
    names = list(registered) if args.name is None else [args.name]
    reports = [check_dataset(name, registered[name], args.all) for name in names]
    if args.json:
        print(json.dumps(reports, indent=2))
    else:
        _print_reports(reports)
    return 0 if all(report["ok"] for report in reports) else 1


def _print_reports(reports: list[dict[str, Any]]) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    if not reports:
        console.print("Nothing is registered: overlay images and test videos are procedural.")
    for report in reports:
        mark = "[green]ok[/green]" if report["ok"] else "[red]damaged[/red]"
        console.print(f"[bold]{report['name']}[/bold]  {mark}  {report['path']}")
        console.print(f"  {report['files']:,} files, {report['checked']:,} of them decoded")
        for item in report["bad"]:
            console.print(f"  [red]bad[/red] {item['reason']}")
        if missing := report["missing"]:
            names = ", ".join(missing[:4]) + (", ..." if len(missing) > 4 else "")
            console.print(
                f"  [yellow]{len(missing)} official files are missing[/yellow] (what is there is used): {names}"
            )


def _download(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.progress import DownloadColumn

    from softaug.media.download import download_dataset
    from softaug.progress import Bars

    dataset = find(args.name)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[bold]{dataset.title}[/bold]")
    console.print(
        f"about {_size(dataset.size)}, {dataset.checksum_note}; terms: {dataset.licence} ({dataset.homepage})"
    )
    with Bars("", count=DownloadColumn(), transient=False) as bars:
        folder = download_dataset(dataset, bars.stage, folder=args.to, keep_archive=args.keep_archive)
    print(f"registered '{dataset.name}': {folder}")
    return 0


def _pack(args: argparse.Namespace) -> int:
    from softaug.media import folder_of
    from softaug.media.packed_images import build
    from softaug.progress import Bars

    if args.count < 1 or args.size < 1:
        raise UserError("--count and --size must be whole numbers of at least 1.")
    folder = folder_of(args.name, "images")
    with Bars("images", transient=False) as bars:
        path = build(folder, args.count, args.size, lambda done, total: bars.stage("packing", done, total))
    print(f"packed {folder} ({_size(path.stat().st_size)}): {path}")
    return 0
