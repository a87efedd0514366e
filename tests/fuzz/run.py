"""``make fuzz COUNT=10000 SEED=0``: play that many fuzz cases and report every finding with its number.

The cases run in a helper process with a time limit each, so that a hang or a crash of the interpreter is found too.
``--only NUMBER`` plays one case again, in this process, with its traceback.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.connection
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

CASE_SECONDS = 300.0
START_SECONDS = 300.0
PROGRESS_SECONDS = 10.0


def serve(corpus: Path, work: Path, seed: int, connection: multiprocessing.connection.Connection) -> None:
    """The helper: plays the cases whose numbers arrive."""
    cases = prepare(corpus, work)
    connection.send(("ready", ""))
    while True:
        try:
            number = connection.recv()
        except EOFError:
            return
        try:
            connection.send(("fine", cases.play(seed, number)))
        except Exception:
            connection.send(("finding", traceback.format_exc()))


def prepare(corpus: Path, work: Path) -> Any:
    import os

    os.environ["SOFTAUG_HOME"] = os.environ["XDG_STATE_HOME"] = str(work.with_name(work.name + "-home"))
    import torch
    from cases import Cases, stand_ins

    torch.set_num_threads(1)
    cases = Cases(corpus, work)
    stand_ins()
    return cases


class Helper:
    """The helper process, started again when it crashed or was killed for hanging."""

    def __init__(self, corpus: Path, work: Path, seed: int):
        self._arguments = (corpus, work, seed)
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, child_end = context.Pipe()
        self._process = context.Process(target=serve, args=(*self._arguments, child_end), daemon=False)
        self._process.start()
        child_end.close()
        if not self._connection.poll(START_SECONDS):
            raise RuntimeError("the helper process does not start")
        self._connection.recv()

    def play(self, number: int) -> tuple[str, str]:
        """("fine" or "finding", what happened)"""
        try:
            self._connection.send(number)
            if self._connection.poll(CASE_SECONDS):
                return self._connection.recv()
            answer = ("finding", f"a hang: no answer after {CASE_SECONDS:.0f} s")
        except (EOFError, OSError):
            self._process.join(5)
            answer = ("finding", f"the interpreter ended (exit code {self._process.exitcode})")
        self.close()
        self._start()
        return answer

    def close(self) -> None:
        self._connection.close()
        self._process.join(2)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def fuzz(count: int, seed: int, *, first: int = 0, quiet: bool = False) -> dict[str, Any]:
    """Play cases `first` to `first + count - 1`; the summary is JSON."""
    from corpus import git_commit, make_corpus

    began = last = time.monotonic()
    endings: Counter[str] = Counter()
    findings: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="softaug-fuzz-") as folder:
        corpus, work = Path(folder) / "corpus", Path(folder) / "work"
        corpus.mkdir()
        make_corpus(corpus)
        helper = Helper(corpus, work, seed)
        try:
            for number in range(first, first + count):
                kind, text = helper.play(number)
                endings[text if kind == "fine" else "finding"] += 1
                if kind == "finding":
                    findings.append({"case": number, "what": text.replace(folder, "FOLDER")})
                    print(
                        f"case {number}: {text.strip().splitlines()[-1][:300]}", file=sys.stderr, flush=True
                    )
                if not quiet and time.monotonic() - last > PROGRESS_SECONDS:
                    last = time.monotonic()
                    done = number - first + 1
                    left = (last - began) / done * (count - done)
                    print(
                        f"{done:,}/{count:,} cases, {len(findings)} findings, {left:.0f} s left",
                        file=sys.stderr,
                        flush=True,
                    )
        finally:
            helper.close()
    return {
        "count": count,
        "first": first,
        "seed": seed,
        "commit": git_commit(),
        "seconds": round(time.monotonic() - began, 1),
        "findings": findings,
        "endings": dict(sorted(endings.items())),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutated run files, media, archives and arguments.")
    parser.add_argument("--count", type=int, default=10_000, help="cases to play")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--only", type=int, help="play this case alone, in this process")
    parser.add_argument("--out", type=Path, help="write the summary as JSON")
    args = parser.parse_args()
    if args.only is not None:
        from corpus import make_corpus

        with tempfile.TemporaryDirectory(prefix="softaug-fuzz-") as folder:
            corpus = Path(folder) / "corpus"
            corpus.mkdir()
            make_corpus(corpus)
            print(prepare(corpus, Path(folder) / "work").play(args.seed, args.only))
        return 0
    print(f"seed {args.seed}, {args.count:,} cases", file=sys.stderr)
    summary = fuzz(args.count, args.seed, first=args.first)
    print(f"{args.count:,} cases in {summary['seconds']} s: {len(summary['findings'])} findings")
    if args.out is not None:
        args.out.write_text(json.dumps(summary, indent=1) + "\n")
    return 1 if summary["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
