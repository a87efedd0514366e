"""docs/own_environment.md: every command and every piece of code on it runs, in the order of the page."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from softaug import cli
from softaug.config import read_config

PAGE = Path(__file__).parent.parent / "docs" / "own_environment.md"
TINY = shlex.split(
    "--decisions 40 --random-decisions 30 --initial-updates 1 --batch-size 8 --aux-batch-size 8 --image-size 28 "
    "--crop-size 24 --filters 8,8 --strides 2,2 --hidden-dim 16 --projection-dim 8 --eval-episodes 1 --threads 1 "
    "--images procedural --no-env-process --no-tensorboard --quiet"
)
FEWER = {
    "train": TINY,
    "eval": ["--episodes", "1", "--workers", "1"],
    "play": ["--size", "64"],
    "export": [],
}


@pytest.mark.slow
def test_the_page_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    for package in ("onnx", "onnxscript", "onnxruntime", "pygame", "Box2D", "imageio"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    blocks = re.findall(r"```(python|sh)\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    # The page adds to my_robot.py after the command that needs the addition is shown.
    modules = [code for _, code in blocks if code.startswith("# my_robot.py")]
    Path("my_robot.py").write_text("\n\n".join(modules))
    commands = []
    for kind, code in blocks:
        if kind == "sh":
            for line in code.replace("\\\n", " ").splitlines():
                program, command, *flags = shlex.split(line)
                assert program == "softaug"
                assert cli.main([command, *flags, *FEWER[command]]) == 0, line
                commands.append(command)
        elif code not in modules:
            name = "__main__" if code.startswith("# on_robot.py") else "page"
            exec(compile(code, f"{PAGE.name}", "exec"), {"__name__": name})
    said = capsys.readouterr().out
    assert commands == ["train", "eval", "play", "eval", "export"] and re.search(r"(not )?reached\n", said)
    assert read_config(Path("runs/arm/config.json")).own_modes == {
        "train": "my_robot:make_env",
        "cluttered": "my_robot:make_cluttered",
    }
    assert Path("arm.mp4").stat().st_size > 1000 and Path("arm.onnx").stat().st_size > 1000
    sys.modules.pop("my_robot")
