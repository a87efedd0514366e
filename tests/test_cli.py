"""The command line: help, one-sentence errors, doctor and gallery."""

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from softaug import cli, doctor
from softaug.envs import gl
from softaug.envs.modes import MODE_NAMES
from softaug.evaluation.gallery import STANDARD_BLOCKS, GalleryRow, Section, draw, view_sections
from softaug.methods import VIEWS


def test_help_lists_every_command_without_importing_torch_or_mujoco():
    script = (
        "import sys\nfrom softaug import cli\n"
        "try: cli.main(['--help'])\nexcept SystemExit as e: assert e.code == 0\n"
        "assert 'torch' not in sys.modules and 'mujoco' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for command in cli.COMMANDS:
        assert command in done.stdout


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0
    assert "usage: softaug " + command in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["train", "--method", "sodaa", "--out", "x"],
            "unknown method 'sodaa'; did you mean soda? Choose one of sac,",
        ),
        (["train", "--preset", "huge", "--out", "x"], "unknown preset 'huge'; choose one of paper, small"),
        (["train", "--task", "walker_fly", "--out", "x"], "walker_fly"),
        (["train", "--resume", "no/such/run"], "no/such/run"),
        (["eval", "no/such/run"], "no/such/run"),
        (["play", "no/such/run", "--out", "x.mp4"], "no/such/run"),
        (["export", "no/such/run"], "no/such/run"),
        (["gallery", "--out", "no/such/folder/x.png"], "does not exist"),
        (["gallery", "--out", "x.txt"], ".png"),
        (["gallery", "--only-augmentations", "--modes", "train"], "--only-augmentations"),
        (["gallery", "--modes", "video_medium"], "video_medium"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(arguments, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("softaug: error: ")
    assert sentence in error
    assert not list(tmp_path.iterdir()), "nothing may be left behind"


def test_doctor_finds_training_possible(capsys):
    assert cli.main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"]
    rendering = next(check for check in report["checks"] if check["name"] == "rendering")
    assert rendering["level"] == "ok" and "ms per 100x100 frame" in rendering["found"]


def test_doctor_fails_when_nothing_renders(monkeypatch, capsys):
    monkeypatch.setattr("softaug.envs.gl.find_working_backend", lambda: (None, []))
    assert cli.main(["doctor"]) == 1
    assert "Training cannot run here yet" in capsys.readouterr().out


@pytest.mark.parametrize(
    "renderer, gpu, level",
    [
        ("llvmpipe (LLVM 15.0.6, 256 bits)", True, "note"),
        ("llvmpipe (LLVM 15.0.6, 256 bits)", False, "ok"),
        ("NVIDIA RTX A6000/PCIe/SSE2", True, "ok"),
    ],
)
def test_doctor_warns_of_software_rendering_next_to_a_gpu(monkeypatch, renderer, gpu, level):
    working = gl.RenderCheck("egl", True, milliseconds=20.0, renderer=renderer)
    monkeypatch.setattr(gl, "find_working_backend", lambda: (working, []))
    monkeypatch.setattr(gl, "gpu_present", lambda: gpu)
    check = doctor.check_rendering()
    assert check.level == level and renderer in check.found
    assert ("software" in check.fix) == (level == "note")


def test_doctor_says_what_is_wrong_with_registered_data(monkeypatch, tmp_path):
    monkeypatch.setenv("SOFTAUG_HOME", str(tmp_path))
    (tmp_path / "registry.json").write_text(json.dumps({"datasets": {"dmcgb": str(tmp_path / "gone")}}))
    check = doctor.check_environment()
    assert check.level == "error" and "softaug data add dmcgb PATH" in check.found
    assert not check.fix, "rendering is not at fault"


def test_doctor_names_a_missing_package_and_stops(monkeypatch):
    monkeypatch.setattr(doctor, "PACKAGES", ("softaug", "no-such-package"))
    checks = list(doctor.run_checks())
    assert checks[-1].level == "error" and "pip install no-such-package" in checks[-1].fix


def test_gallery_places_every_image():
    red, blue = np.full((10, 10, 3), (200, 0, 0), np.uint8), np.full((10, 10, 3), (0, 0, 200), np.uint8)
    page = np.asarray(
        draw(
            [Section(["a", "b"], [GalleryRow("one", [red, blue]), GalleryRow("two", [blue, blue])])],
            "caption",
        )
    )
    assert (page == (200, 0, 0)).all(-1).sum() == 128 * 128
    assert (page == (0, 0, 200)).all(-1).sum() == 3 * 128 * 128


def test_gallery_does_not_write_to_a_directory(tmp_path, capsys):
    out = tmp_path / "folder.png"
    out.mkdir()
    assert cli.main(["gallery", "--out", str(out)]) == 2
    assert "is a directory" in capsys.readouterr().err


def test_gallery_command_draws_real_environments(tmp_path, capsys):
    out = tmp_path / "gallery.png"
    arguments = [
        "--tasks",
        "cartpole_swingup",
        "--modes",
        "train,video_easy",
        "--videos",
        "procedural",
        "--json",
    ]
    assert cli.main(["gallery", "--out", str(out), *arguments]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["media"]["video_easy"] == "procedural"
    assert Image.open(out).size[0] > 300


def test_gallery_shows_every_view_and_a_new_angle_in_every_draw():
    """Samples of one call are turned by the same angle; the page shows several."""
    sections, kind = view_sections(seed=0, images="procedural")
    draws, moving, masks = sections
    assert kind == "procedural"
    assert {row.label for row in draws.rows + moving.rows} == {*VIEWS, "overlay images"}
    (turned,) = (row.frames for row in draws.rows if row.label == "rotate")
    assert len({frame.tobytes() for frame in turned}) == len(turned) == 6
    assert all(len(row.frames) == len(section.columns) for section in sections for row in section.rows)
    for row in masks.rows:
        for seen, mask, left in (row.frames[:3], row.frames[3:]):
            assert set(np.unique(mask)) == {0, 255} and 0.03 < (mask > 0).mean() < 0.5
            assert (left[mask > 0] == seen[mask > 0]).all() and len(np.unique(left[mask == 0])) == 1


def test_the_standard_gallery_has_every_mode():
    assert {mode for _, modes in STANDARD_BLOCKS for mode in modes} == set(MODE_NAMES)


def test_long_titles_of_the_gallery_do_not_touch():
    long = "screen_color_video_easy"
    blue = np.full((10, 10, 3), (0, 0, 200), np.uint8)
    page = np.asarray(draw([Section([long, long], [GalleryRow("", [blue, blue])])], ""))
    top = (page == (0, 0, 200)).all(-1).any(1).argmax()
    left = (page == (0, 0, 200)).all(-1).any(0).argmax()
    assert (page[:top, left + 128 : left + 134] == 255).all()
