"""Tours: the appearance changes within an episode, the physics does not; and the files they are written to."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
from fakes import DotEnv, tiny_config
from PIL import Image

import softaug.envs
from softaug.cli import main
from softaug.config import write_config
from softaug.envs.factory import ConfigEnvs
from softaug.errors import UserError
from softaug.evaluation.animation import panels, save_animation
from softaug.evaluation.evaluate import Task
from softaug.evaluation.runs import Run, load_run
from softaug.evaluation.tour import TourFrame, play_tour
from softaug.learning.agent import make_agent
from softaug.storage.checkpoint import save_checkpoint

SIZE = 32


@pytest.fixture(scope="module", params=[("sac", 12), ("drq", 16)], ids=["crops", "does-not-crop"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with untrained weights, of a task of the suite."""
    method, crop_size = request.param
    path = tmp_path_factory.mktemp("tour") / "run"
    config = tiny_config(
        task="cartpole_swingup", method=method, image_size=16, crop_size=crop_size, videos="procedural"
    )
    write_config(config, path / "config.json")
    save_checkpoint(
        path / "checkpoints", 100, {}, make_agent(config, (6, 16, 16), 1).policy_weights(), keep=1
    )
    return path


def plain_rewards(run: Run, mode: str, decisions: int, seed: int) -> list[float]:
    """An episode of `softaug eval` in one mode, begun like a tour."""
    env_seed, policy_seed = Task("train", 0).seeds(seed)
    policy = run.policy()()
    with closing(ConfigEnvs(run.config)(mode, env_seed)) as env:
        obs, _ = env.reset(seed=env_seed, options={"episode": 0})
        policy.begin_episode(policy_seed)
        rewards = []
        for _ in range(decisions):
            obs, reward, *_ = env.step(policy.act(obs))
            rewards.append(float(reward))
    return rewards


def test_moving_an_episode_to_another_environment_changes_nothing_but_the_appearance(run: Path) -> None:
    loaded = load_run(run)
    frames = list(play_tour(loaded, ["train", "train", "video_hard"], 3, size=SIZE, decisions=4))
    # Two environments of the same mode: bit for bit the episode that is never moved.
    assert [frame.reward for frame in frames[:8]] == plain_rewards(loaded, "train", 8, seed=3)
    assert [frame.mode for frame in frames] == ["train"] * 8 + ["video_hard"] * 4
    np.testing.assert_allclose([f.total for f in frames], np.cumsum([f.reward for f in frames]))
    assert all(frame.scene.shape == (SIZE, SIZE, 3) for frame in frames)
    steps = [np.abs(a.scene.astype(int) - b.scene).mean() for a, b in pairwise(frames)]
    assert np.argmax(steps) == 7  # where the video begins
    # In train and color_hard the policy sees different pixels and acts differently, but starts in the same state.
    again = list(play_tour(loaded, ["train", "color_hard"], 3, size=SIZE, decisions=4))
    assert [f.reward for f in again[:4]] == [f.reward for f in frames[:4]]
    assert not np.array_equal(again[4].scene, frames[4].scene)


@pytest.mark.slow
def test_play_shows_two_runs_side_by_side(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tour.webp"
    command = ["play", str(run), str(run), "--tour", "--mode", "train,color_hard", "--tour-decisions", "3"]
    assert main([*command, "--size", "64", "--fps", "10", "--out", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [part["decisions"] for part in facts["runs"]] == [6, 6]
    first = facts["runs"][0]
    assert first == facts["runs"][1]  # the same policy, seed and appearance
    assert sum(first["return_by_mode"].values()) == pytest.approx(first["return"])
    with Image.open(out) as image:
        assert (image.n_frames, image.width) == (6, 2 * 64 + 4)
        frame = np.asarray(image.convert("RGB"))
    half = (frame.shape[1] - 4) // 2
    left, right = frame[20:80, 8 : half - 8], frame[20:80, half + 12 : -8]  # lossy: edges spread into the gap
    assert np.abs(left.astype(int) - right).mean() < 5 < left.std()


def test_refused_before_anything_is_played(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, said in (
        ([str(run), str(run), "--out", "x.mp4"], "--tour to see several side by side"),
        ([str(run), "--out", "x.gif"], "or --tour"),
        ([str(run), "--tour", "--out", str(tmp_path / "x.png")], ".gif, .webp, .mp4"),
        ([str(run), "--tour", "--tour-decisions", "0", "--out", str(tmp_path / "x.gif")], "at least 1"),
        (
            [str(run), "--tour", "--seed", "-1", "--out", str(tmp_path / "x.gif")],
            "seed must be at least 0, not -1",
        ),
        ([str(run), "--tour", "--fps", "0.001", "--out", str(tmp_path / "x.gif")], "from 0.1 to 240"),
        ([str(run), "--tour", "--fps", "1e-320", "--out", str(tmp_path / "x.mp4")], "from 0.1 to 240"),
        ([str(run), "--fps", "nan", "--out", str(tmp_path / "x.mp4")], "from 0.1 to 240"),
        ([str(run), "--tour", "--mode", "vidoe_hard", "--out", str(tmp_path / "x.gif")], "video_hard"),
    ):
        assert main(["play", *arguments]) == 2
        assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder in which not even root can write")
@pytest.mark.parametrize("tour", [[], ["--tour", "--mode", "train", "--tour-decisions", "1"]])
def test_a_place_that_cannot_be_written_to_is_named_before_anything_is_played(
    tour: list[str], run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ConfigEnvs, "__call__", lambda *_: pytest.fail("something was played"))
    assert main(["play", str(run), *tour, "--out", "/proc/x.mp4"]) == 2
    said = capsys.readouterr().err
    assert "cannot write" in said and "/proc/x.mp4" in said


def test_names_are_printed_as_they_are(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = tmp_path / "policy:ok"  # ":ok:" is one of rich's emojis
    named.symlink_to(run)
    arguments = ["--tour", "--mode", "train", "--tour-decisions", "1", "--size", "16"]
    assert main(["play", str(named), *arguments, "--out", str(tmp_path / "x.gif")]) == 0
    assert f"{named}: return" in capsys.readouterr().out


def test_an_environment_without_a_state_to_move_is_refused(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        softaug.envs, "make_env", lambda task, mode, seed, **_: DotEnv(mode, seed, frame_stack=2, size=16)
    )
    with pytest.raises(UserError, match="DotEnv cannot change within an episode"):
        list(play_tour(load_run(run), ["train"], 0, size=SIZE))


def tour_of(length: int, *, noise: bool = False, color: int = 90) -> Iterator[TourFrame]:
    rng = np.random.default_rng(0)
    for i in range(length):
        scene = np.full((SIZE, SIZE, 3), color, np.uint8)
        if noise:
            scene = rng.integers(0, 256, scene.shape, dtype=np.uint8)
        yield TourFrame("train", scene, 1.0, i + 1.0, length)


def test_a_tour_that_ended_stays_while_the_other_continues() -> None:
    frames = list(panels([tour_of(2, color=10), tour_of(5, color=200)], ["A", "B"], 0.0))
    assert len(frames) == 5
    top = frames[0].shape[0] // 2
    assert all((frame[top, 5] == 10).all() and (frame[top, SIZE + 10] == 200).all() for frame in frames)
    assert not np.array_equal(frames[0], frames[1])  # the returns on top


@pytest.mark.parametrize("suffix", [".gif", ".webp", ".mp4"])
def test_every_format_has_every_frame_at_its_time(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"tour{suffix}"
    frames = list(panels([tour_of(6, noise=True)], ["A"], 1.0))
    size = save_animation(path, frames, fps=10)
    assert size == path.stat().st_size
    if suffix == ".mp4":
        with av.open(str(path)) as container:
            shown = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    else:
        with Image.open(path) as image:
            shown = []
            for i in range(image.n_frames):
                image.seek(i)
                shown.append(np.asarray(image.convert("RGB")))
                assert image.info["duration"] == 100
    assert len(shown) == 6
    assert np.abs(shown[3][: SIZE // 2].astype(int) - frames[3][: SIZE // 2]).mean() < 60


def test_fast_tours_leave_frames_out_of_images(tmp_path: Path) -> None:
    frames = list(panels([tour_of(12, noise=True)], ["A"], 0.0))
    save_animation(tmp_path / "t.webp", frames, fps=20)
    with Image.open(tmp_path / "t.webp") as image:
        assert image.n_frames == 6
        image.load()
        assert image.info["duration"] == 100


@pytest.mark.parametrize("suffix", [".gif", ".webp", ".mp4"])
def test_quality_falls_until_the_file_fits(suffix: str, tmp_path: Path) -> None:
    frames = list(panels([tour_of(8, noise=True)], ["A"], 0.0))
    free = save_animation(tmp_path / f"free{suffix}", frames, fps=10)
    bound = free * 3 // 4
    assert save_animation(tmp_path / f"bound{suffix}", frames, fps=10, most_bytes=bound) <= bound
    assert io.BytesIO((tmp_path / f"bound{suffix}").read_bytes()).read(4)


@pytest.mark.slow
def test_an_episode_is_filmed_whether_its_method_crops_or_not(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "episode.mp4"
    assert main(["play", str(run), "--large", "--size", "64", "--out", str(out)]) == 0
    with av.open(out) as video:
        assert next(video.decode(video=0)).height >= 64
