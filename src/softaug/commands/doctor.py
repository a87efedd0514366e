"""``softaug doctor``: check that training can run here."""

from __future__ import annotations

import argparse
import dataclasses
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")


def run(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.markup import escape

    from softaug.doctor import run_checks

    console = Console(highlight=False, soft_wrap=True)
    signs = {"ok": "[green]ok   [/]", "note": "[yellow]note [/]", "error": "[red]error[/]"}
    checks = []
    for check in run_checks():
        checks.append(check)
        if not args.json:
            fix = f"\n                       [dim]→ {escape(check.fix)}[/]" if check.fix else ""
            console.print(f"{signs[check.level]}  {check.name:<14}  {escape(check.found)}{fix}")
    errors = [check.name for check in checks if check.level == "error"]
    if args.json:
        print(
            json.dumps(
                {"ok": not errors, "checks": [dataclasses.asdict(check) for check in checks]}, indent=2
            )
        )
    elif errors:
        console.print(f"[red]Training cannot run here yet:[/] fix {', '.join(errors)}.")
    else:
        console.print("[green]Training can run here.[/]")
    return 1 if errors else 0
