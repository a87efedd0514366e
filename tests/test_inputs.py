"""What users give: impossible names, sizes and files are one sentence and exit status 2, and nothing is lost."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from fabricated import fabricate_run
from PIL import Image

from softaug import cli
from softaug.config import Config, make_config
from softaug.config.comparing import experiment
from softaug.errors import UserError, unknown
from softaug.evaluation.recording import Recorder
from softaug.files import output_file, write_atomically
from softaug.learning.augment import RandomShift
from softaug.learning.memory import check_memory
from softaug.media.comparability import media_note
from softaug.media.folder_images import FolderImages
from softaug.media.unpack import unpack
from softaug.results.groups import make_groups
from softaug.results.model import departures
from softaug.results.reading import read_run


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence with which a command line is refused."""
    try:
        status = cli.main(arguments)
    except SystemExit as stop:  # argparse's
        status = stop.code
    assert status == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


# --- where output goes ---------------------------------------------------------------------------------------


def test_a_link_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "elsewhere" / "target", tmp_path / "link"
    target.parent.mkdir()
    link.symlink_to(target)
    write_atomically(link, "new")
    assert link.is_symlink() and target.read_text() == "new"
    with Recorder(link, min_size=1) as recorder:
        recorder.add(np.zeros((16, 16, 3), np.uint8))
    assert link.is_symlink() and target.stat().st_size > 100
    assert [path.name for path in target.parent.iterdir()] == ["target"], "nothing half-written is left"


@pytest.mark.parametrize("kind", ["pipe", "directory", "loop"])
def test_what_is_no_file_is_refused_and_stays(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "it"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(path)
    before = path.lstat()
    for write in (lambda: write_atomically(path, "x"), lambda: Recorder(path)):
        with pytest.raises(UserError):
            write()
    assert stat.S_IFMT(path.lstat().st_mode) == stat.S_IFMT(before.st_mode)


@pytest.mark.parametrize("out", ["/dev/null", "n" * 300, "n\0n"])
@pytest.mark.parametrize(
    "command", ["report", "export", "eval", "play", "gallery", "diagnose", "train", "reproduce"]
)
def test_every_command_refuses_an_impossible_out(
    command: str,
    out: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    fabricate_run(tmp_path / "run")
    words = {
        "play": ["play", "run"], "gallery": ["gallery"], "train": ["train", "--preset", "small"],
        "reproduce": ["reproduce", "samples"],
    }.get(command, [command, "run"])  # fmt: skip
    suffix = {"play": ".mp4", "gallery": ".png"}.get(command, "")
    assert "error: " in refused([*words, "--out", out + (suffix if out != "/dev/null" else "")], capsys)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_long_but_possible_name_works(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    write_atomically(path, "x")
    assert path.read_text() == "x" and output_file(path) == path


# --- arguments -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [["train", "--decisions=--"], ["train", "--out=--"], ["eval", "run", "--episodes=--"],
              ["reproduce", "appendix", "--runs=--"], ["train", "--filters=--"]]
)  # fmt: skip
def test_dashes_are_no_value(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "expected a value, not --" in refused(words, capsys)


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (["trian"], "did you mean train?"),
        (["train", "--decisons", "5"], "did you mean --decisions"),
        (["train", "--method", "soda_overly"], "did you mean soda_overlay?"),
        (["train", "--task", "walker_wlak"], "did you mean walker_walk?"),
        (["train", "--preset", "smal"], "did you mean small?"),
        (["gallery", "--modes", "video_esay"], "did you mean video_easy?"),
        (["reproduce", "apendix"], "did you mean appendix?"),
        (["data", "download", "plases365"], "did you mean places365?"),
        (["sweep", "--tasks", "walker_walk", "--methods", "curll", "--out", "x"], "did you mean curl?"),
    ],
)
def test_a_misspelt_name_suggests_the_nearest_first(
    words: list[str],
    nearest: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert nearest in refused(words, capsys)


def test_a_name_like_none_is_only_listed() -> None:
    assert str(unknown("fruit", "zzz", ["apple", "pear"])) == "unknown fruit 'zzz'; choose one of apple, pear"


@pytest.mark.parametrize(
    "sizes", [{"hidden_dim": 10**7}, {"projection_dim": 10**9}, {"filters": (10**6,) * 11}, {"hidden_dim": 10**30},
              {"batch_size": 10**8, "random_decisions": 10**9}, {"aux_batch_size": 10**8}]
)  # fmt: skip
def test_networks_and_batches_that_cannot_fit_are_refused(sizes: dict) -> None:
    with pytest.raises(UserError, match=r"GB of memory, but there are"):
        check_memory(make_config(**sizes), 2, training=True)


def test_the_papers_sizes_fit() -> None:
    check_memory(Config(), 6, training=True)


@pytest.mark.parametrize(
    "sizes", [["--hidden-dim", "99999999"], ["--projection-dim", "9" * 12], ["--seed", "9" * 30]]
)
def test_train_refuses_them_before_anything_is_made(
    sizes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    refused(["train", "--preset", "small", "--no-env-process", "--quiet", "--out", str(out), *sizes], capsys)
    assert not out.exists()


# --- run files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "media", [[[]], "text", {"overlay": []}, {"train": 3}, {"\ud800": {}}, {"overlay": {"kind": "\ud800"}}]
)
def test_report_refuses_media_that_are_no_facts(
    media: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fabricate_run(tmp_path / "run")
    file = tmp_path / "run" / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "media": media}))
    said = refused(["report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")], capsys)
    assert "run.json is damaged" in said and not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("name", ["config.json", "final_eval.json", "metrics.jsonl"])
def test_a_lone_surrogate_in_any_run_file_is_damage(name: str, tmp_path: Path) -> None:
    fabricate_run(tmp_path / "run")
    file = tmp_path / "run" / name
    file.write_text(file.read_text().replace('"train"', '"\\ud800"').replace('"walker_walk"', '"\\ud800"'))
    with pytest.raises(UserError, match="damaged"):
        read_run(tmp_path / "run")


def test_report_and_reproduce_mean_the_same_by_one_experiment(tmp_path: Path) -> None:
    """Each field of the config, changed alone: both make another experiment of it, or neither does."""
    fabricate_run(tmp_path / "one", preset="paper", seed=0)
    base = read_run(tmp_path / "one")
    changes = {"compile": True, "threads": 7, "device": "cpu", "log_every": 9, "discount": 0.5, "precision": "bf16",
               "eval_episodes": 3, "hidden_dim": 7, "workers": 3, "videos": "x"}  # fmt: skip
    for name, value in changes.items():
        config = dataclasses.replace(base.config, seed=1, **{name: value})
        other = dataclasses.replace(base, config=config, path=tmp_path / "two")
        groups, _ = make_groups([base, other], 10)
        in_report = len(groups) > 1
        in_reproduce = departures(config) != departures(base.config)
        assert in_report == in_reproduce == (experiment(config) != experiment(base.config)), name


# --- media ---------------------------------------------------------------------------------------------------


def test_16_bit_grey_keeps_its_shades(tmp_path: Path) -> None:
    ramp = np.tile(np.linspace(0, 65535, 64).astype(np.uint16), (64, 1))
    Image.fromarray(ramp).save(tmp_path / "ramp.png")
    sample = FolderImages(tmp_path).sample(8, 32, 32, np.random.default_rng(0))
    assert len(np.unique(sample)) > 50 and (sample == 255).mean() < 0.2
    assert (sample[..., 0] == sample[..., 1]).all()


def test_a_shift_keeps_the_shape_of_images_that_are_not_square() -> None:
    obs = torch.arange(2 * 3 * 10 * 20, dtype=torch.float32).reshape(2, 3, 10, 20)
    shifted = RandomShift(2)(obs, torch.Generator().manual_seed(0))
    assert shifted.shape == obs.shape
    assert torch.equal(RandomShift(0)(obs, torch.Generator()), obs)


def test_the_robots_videos_are_counted_too() -> None:
    assert "only 3 of the benchmark's 10 videos" in media_note("video_background", "official", {"videos": 3})
    assert media_note("video_background", "official", {"videos": 10}) == ""


@pytest.mark.parametrize("damage", ["encrypted", "compression", "checksum", "truncated", "conflict"])
def test_archives_that_cannot_be_unpacked_are_refused_and_leave_nothing(tmp_path: Path, damage: str) -> None:
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as content:
        content.writestr("a", b"text" * 100)
        if damage == "conflict":
            content.writestr("a/b", b"a is a file already")
    data = bytearray(archive.read_bytes())
    central = data.index(b"PK\x01\x02")
    if damage == "encrypted":
        data[6] |= 1
        data[central + 8] |= 1
    elif damage == "compression":
        data[8] = data[central + 10] = 99
    elif damage == "checksum":
        data[40] ^= 1
    elif damage == "truncated":
        del data[200:300]
    archive.write_bytes(data)
    with pytest.raises(UserError):
        unpack(archive, tmp_path / "target")
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]


def test_lqr_ends_its_episodes() -> None:
    import softaug

    env = softaug.make_env("lqr_lqr_2_1", image_size=16)
    env.reset(seed=0)
    assert env.unwrapped.episode_decisions == 250
    frames, over = 0, False
    while not over:
        _, _, terminated, truncated, info = env.step(np.ones(env.action_space.shape, np.float32))
        frames, over = frames + info["frames"], terminated or truncated
    env.close()
    assert truncated and not terminated and frames == 1000
