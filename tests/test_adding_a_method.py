"""docs/methods/README.md, "Adding a method": its code runs as printed, in order, on a fake environment."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import DotFactory, FakeImages, tiny_config

import softaug
from softaug import methods
from softaug.config import Config
from softaug.errors import UserError
from softaug.learning import views
from softaug.learning.auxiliary import registry
from softaug.training.run import train

PAGE = Path(__file__).parent.parent / "docs" / "methods" / "README.md"


@pytest.fixture(autouse=True)
def nothing_stays_registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for owner, name in (
        (methods, "METHODS"),
        (methods, "VIEWS"),
        (methods, "AUXILIARY_TASKS"),
        (views, "_BUILDERS"),
        (registry, "_BUILDERS"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name).copy())
    yield
    sys.modules.pop("my_method", None)


def blocks() -> list[tuple[str, str]]:
    section = PAGE.read_text().split("## Adding a method")[1].split("\n## ")[0]
    return re.findall(r"```(python|sh)\n(.*?)```", section, flags=re.DOTALL)


def train_tiny(config: Config, out: str) -> None:
    """`softaug.train`, on the fake environment and with its sizes; the method and its numbers stay."""
    sizes = tiny_config(decisions=80, eval_every=40, initial_updates=2, log_every=10)
    kept = {name: getattr(config, name) for name in ("task", "method", "aux_every", "aux_lr")}
    train(
        dataclasses.replace(sizes, **kept),
        Path(out),
        env_factory=DotFactory(),
        images=FakeImages(),
        quiet=True,
    )


def test_the_recipe_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(softaug, "train", train_tiny, raising=False)
    (module_kind, module), (script_kind, script), (shell_kind, command) = blocks()
    assert (module_kind, script_kind, shell_kind) == ("python", "python", "sh")
    assert module.startswith("# my_method.py") and script.startswith("# train_toy.py")
    Path("my_method.py").write_text(module)
    exec(compile(script, "train_toy.py", "exec"), {"__name__": "__main__"})

    lines = [json.loads(line) for line in Path("runs/toy/metrics.jsonl").read_text().splitlines()]
    losses = [line["aux_loss"] for line in lines if "aux_loss" in line]
    assert losses and all(0 <= loss < 1e4 for loss in losses)
    assert Path("toy.png").read_bytes().startswith(b"\x89PNG")

    # The command line in a process of its own knows the method from the variable alone.
    words = shlex.split(command)
    given = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
    assert words[len(given)] == "softaug"
    given["PYTHONPATH"] += os.pathsep + str(Path(softaug.__file__).parent.parent)
    arguments = [sys.executable, "-m", "softaug.cli", *words[len(given) + 1 :]]
    done = subprocess.run(arguments, env={**os.environ, **given}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = Path("toy.html").read_text()
    assert "Toy (brightness)" in page and "hue-green" in page

    del given["SOFTAUG_PLUGINS"]
    done = subprocess.run(arguments, env={**os.environ, **given}, capture_output=True, text=True)
    assert done.returncode == 2 and "unknown method 'toy'" in done.stderr


def test_names_of_the_package_are_taken_and_own_ones_may_be_given_again() -> None:
    for taken in (
        lambda: methods.register(methods.Method("soda", "Mine")),
        lambda: views.register_view("crop", lambda config, images: None),
        lambda: registry.register_auxiliary("curl", lambda parts: None),
    ):
        with pytest.raises(UserError, match="already"):
            taken()
    methods.register(methods.Method("mine", "First"))
    assert methods.register(methods.Method("mine", "Second")) is methods.get_method("mine")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"weak": "crops"}, "did you mean crop?"),
        ({"strong": "overlays", "critic_sees": "both"}, "did you mean overlay?"),
        ({"auxiliary": "sodas"}, "did you mean soda?"),
        ({"strong": "conv", "critic_sees": "strng"}, "did you mean strong?"),
        ({"strong": "conv"}, "see"),
        ({"actor_sees": "strong"}, "strong view"),
        ({"auxiliary_sees": "strong", "strong": "conv"}, "no auxiliary task"),
        ({"color": "red"}, "#rrggbb"),
        ({"line": "wavy"}, "line"),
    ],
)
def test_a_row_that_cannot_be_is_refused(fields: dict, said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        methods.Method("mine", "Mine", **fields)


def test_a_plugin_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(methods.PLUGINS, "no_such_module")
    with pytest.raises(UserError, match="no_such_module"):
        methods.get_method("toy")
    assert methods.get_method("soda").name == "soda_overlay"  # nothing is imported for a known name


def test_an_unknown_view_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match=r"did you mean shift\?"):
        views.make_view("shfit", tiny_config())
