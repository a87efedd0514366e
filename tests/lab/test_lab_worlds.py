"""The lab's worlds: the benchmark's own images with default settings, and what each control does to them."""

from __future__ import annotations

import dataclasses
import gc
import io
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab_agents import tiny_lab_agent
from PIL import Image

from softaug.envs.factory import ConfigEnvs
from softaug.envs.observations import newest_frame
from softaug.errors import UserError
from softaug.evaluation.evaluate import Task, evaluate
from softaug.lab import worker
from softaug.lab.backdrops import UPLOAD_SIZE, Backdrops
from softaug.lab.images import grow
from softaug.lab.live_env import SCENE_SIZE, Push
from softaug.lab.settings import Settings
from softaug.lab.worker import Answer, LiveAgent, Request, Step
from softaug.lab.worlds import EPISODES, LiveEnvs, SuiteWorld, place_from_text, place_to_text

UPLOAD = "00000000000000aa"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With one upload: a red image."""
    made = tmp_path_factory.mktemp("uploads")
    red = np.zeros((1, UPLOAD_SIZE, UPLOAD_SIZE, 3), np.uint8)
    red[..., 0] = 255
    np.save(made / f"{UPLOAD}.npy", red)
    return made


@pytest.fixture(scope="module")
def world(folder: Path) -> Iterator[SuiteWorld]:
    made = SuiteWorld(tiny_lab_agent().config, Backdrops(folder))
    yield made
    made.close()


@pytest.fixture(scope="module")
def agent(folder: Path) -> Iterator[LiveAgent]:
    made = LiveAgent(tiny_lab_agent(), Backdrops(folder))
    made.ready()
    yield made
    made.close()


def seen(world: SuiteWorld) -> np.ndarray:
    return newest_frame(world.obs())


def started(world: SuiteWorld, seed: int = 3, **fields: Any) -> SuiteWorld:
    world.apply(Settings(seed=seed, **fields))
    world.reset(seed)
    return world


@pytest.mark.parametrize(
    "mode",
    [
        "train",
        "color_hard",
        "video_hard",
        "distracting_hard",
        "rotate_hard",
        "screen_color_video_hard",
        "random_colors",
    ],
)
def test_default_settings_show_the_mode_bit_for_bit(world: SuiteWorld, mode: str) -> None:
    """Also after the mode was chosen in the middle of an episode, in which other modes were shown."""
    config, seed = tiny_lab_agent().config, 5
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (6, 6)).astype(np.float32)
    env = ConfigEnvs(config)(mode, 0)
    env.reset(seed=seed, options={"episode": seed % EPISODES})
    started(world, seed, mode="video_easy", floor="#ff0000", light=0.3)
    for action in actions:
        expected, reward, *_ = env.step(action)
        got, _ = world.step(action)
        assert got == reward
    world.apply(Settings(seed=seed, mode=mode))
    np.testing.assert_array_equal(seen(world), newest_frame(expected))
    expected, *_ = env.step(actions[0])
    world.step(actions[0])
    np.testing.assert_array_equal(seen(world), newest_frame(expected))
    env.close()


def test_the_training_appearance_is_the_same_state(world: SuiteWorld) -> None:
    """A twin in the training mode follows the physics, whatever is shown and however the body is pushed."""
    started(world, mode="train")
    for _ in range(3):
        world.push(Push(None, None, 0.5, 0.0))
        world.step(np.zeros(6, np.float32))
    np.testing.assert_array_equal(world.obs(), world.training_obs())
    before = world.training_obs()
    world.apply(Settings(seed=3, sky="#ff0000", azimuth=30.0))
    assert not np.array_equal(world.obs(), before)
    np.testing.assert_array_equal(world.training_obs(), before)
    world.push(None)


@pytest.mark.parametrize(
    "change",
    [{"floor": "#ff0000"}, {"sky": "#ff0000"}, {"body": "#00ff00"}, {"azimuth": 20.0}, {"elevation": 20.0},
     {"distance": 1.5}, {"roll": 45.0}, {"light": 0.4}, {"light_angle": 50.0}, {"brightness": 0.6}, {"hue": 90.0},
     {"blur": 3.0}, {"noise": 0.2}, {"background": "easy", "video": 2}, {"background": "hard", "hide_floor": True},
     {"background": "upload", "upload": UPLOAD, "opacity": 0.5}],
)  # fmt: skip
def test_every_control_changes_both_images_and_can_be_undone(
    world: SuiteWorld, change: dict[str, Any]
) -> None:
    started(world)
    plain, scene = seen(world), world.scene()
    world.apply(Settings(seed=3, **change))
    assert np.abs(seen(world).astype(int) - plain).max() > 10
    assert world.scene().shape == (SCENE_SIZE, SCENE_SIZE, 3)
    assert np.abs(world.scene().astype(int) - scene).mean() > 0.3
    world.apply(Settings(seed=3))
    np.testing.assert_array_equal(seen(world), plain)
    np.testing.assert_array_equal(world.scene(), scene)


def test_colors_are_those_that_were_picked(world: SuiteWorld) -> None:
    started(world, body="#00ff00", sky="#ff0000", floor="#0000ff")
    scene = world.scene().astype(int)
    dominant = scene.argmax(-1)
    assert (dominant[:80] == 0).mean() > 0.9  # above: sky
    assert (dominant[-40:] == 2).mean() > 0.8  # below: floor
    assert 0.01 < (dominant == 1).mean() < 0.3


def test_an_upload_appears_behind_the_walker_and_not_on_it(world: SuiteWorld) -> None:
    started(world)
    plain = world.scene()
    world.apply(Settings(seed=3, background="upload", upload=UPLOAD))
    scene = world.scene()
    red = (scene == [255, 0, 0]).all(-1)
    assert red[:60].mean() > 0.9
    assert not red[-60:].any()
    np.testing.assert_array_equal(scene[~red], plain[~red])
    world.apply(Settings(seed=3, background="upload", upload=UPLOAD, hide_floor=True))
    behind = (world.scene() == [255, 0, 0]).all(-1)
    assert behind[-10:].mean() > 0.9
    assert (~behind).mean() < 0.3  # the walker is left


def test_a_mask_grows_to_its_four_neighbors() -> None:
    mask = np.zeros((5, 5), bool)
    mask[0, 0] = mask[3, 3] = True
    expected = {(0, 0), (0, 1), (1, 0), (3, 3), (2, 3), (4, 3), (3, 2), (3, 4)}
    assert {(int(row), int(column)) for row, column in np.argwhere(grow(mask))} == expected
    assert mask.sum() == 2


def test_a_missing_upload_is_refused_and_changes_nothing(world: SuiteWorld) -> None:
    started(world)
    before = world.scene()
    with pytest.raises(UserError, match="upload it again"):
        world.apply(Settings(seed=3, background="upload", upload="ffffffffffffffff"))
    np.testing.assert_array_equal(world.scene(), before)


def test_roll_turns_the_image(world: SuiteWorld) -> None:
    started(world)
    plain = seen(world)
    world.apply(Settings(seed=3, roll=180.0))
    assert np.abs(seen(world)[::-1, ::-1].astype(int) - plain).mean() < 6


def test_the_webcam_is_the_newest_jpeg_and_nothing_else(folder: Path) -> None:
    backdrops = Backdrops(folder)
    assert backdrops.frame(Settings(background="webcam"), 0, 16) is None
    content = io.BytesIO()
    Image.new("RGB", (64, 48), (0, 0, 255)).save(content, "JPEG")
    backdrops.take_webcam(content.getvalue())
    shown = backdrops.frame(Settings(background="webcam"), 0, 16)
    assert shown is not None
    assert shown[8, 8, 2] > 240
    other = io.BytesIO()
    Image.new("RGB", (8, 8)).save(other, "PNG")
    for wrong in (other.getvalue(), b"", content.getvalue()[:100], b"\xff\xd8\xff" + bytes(50)):
        with pytest.raises(UserError, match="webcam"):
            backdrops.take_webcam(wrong)


def test_a_push_moves_the_body_it_hits(world: SuiteWorld) -> None:
    def speed_after(push: Push | None) -> float:
        started(world)
        if push is not None:
            assert world.push(push)
        world.step(np.zeros(6, np.float32))
        world.push(None)
        return float(world._live.physics.named.data.qvel["rootx"][0])

    still = speed_after(None)
    assert speed_after(Push(None, None, 0.5, 0.0)) > still + 0.2
    assert speed_after(Push(None, None, -0.5, 0.0)) < still - 0.2
    started(world)
    assert not world.push(Push(0.02, 0.02, 0.5, 0.0))  # sky
    assert not world.push(Push(0.5, 0.98, 0.5, 0.0))  # floor
    walker = np.argwhere((world.scene().astype(int) @ [1, 0, -1]) > 60)  # orange on blue
    y, x = walker[len(walker) // 2] / SCENE_SIZE
    assert world.push(Push(x, y))
    assert world.push(Push(x, y, 0.3, 0.1))
    world.push(None)


def test_a_place_restores_the_scene_bit_for_bit(world: SuiteWorld, folder: Path) -> None:
    """In another world that only knows settings and the place, as text; with a mode that wanders within an episode."""
    settings = Settings(seed=4, mode="distracting_hard", noise=0.05, roll=10.0)
    world.apply(settings)
    world.reset(4)
    rng = np.random.default_rng(0)
    world.push(Push(None, None, 0.4, -0.2))
    for _ in range(7):
        world.step(rng.uniform(-1, 1, 6).astype(np.float32))
    world.push(None)
    text = place_to_text(world.place())
    assert len(text) < 1500
    other = SuiteWorld(tiny_lab_agent().config, Backdrops(folder))
    try:
        other.apply(settings)
        other.reset(4)
        other.go_to(place_from_text(text))
        np.testing.assert_array_equal(other.scene(), world.scene())
        np.testing.assert_array_equal(seen(other), seen(world))
        action = rng.uniform(-1, 1, 6).astype(np.float32)
        assert other.step(action) == world.step(action)
        np.testing.assert_array_equal(other.scene(), world.scene())
    finally:
        other.close()


def test_damaged_places_are_refused(world: SuiteWorld) -> None:
    started(world)
    place = world.place()
    text = place_to_text(place)
    endless = place_to_text({**place, "total": float("nan")})
    for wrong in ("", "!!!", text[:-9], "A" * 70_000, text[:20] + "AAAA" + text[24:], endless):
        with pytest.raises(UserError, match="damaged"):
            place_from_text(wrong)
    for changed in (
        {"integration": np.zeros(3)},
        {"integration": np.full_like(place["integration"], np.nan)},
        {"decisions": 10_000},
        {"decisions": -1},
        {"task": {"_nonsense": 1.0}},
        {"task": dict.fromkeys(place["task"], "text")},
    ):
        with pytest.raises(UserError, match="open the link of another scene"):
            world.go_to({**place, **changed})


def answered(agent: LiveAgent, settings: Settings, steps: int = 0, **more: Any) -> Answer:
    answer = agent.answer(Request(settings, **more))
    for _ in range(steps):
        answer = agent.answer(Request(settings, step=Step()))
    return answer


def test_the_training_appearance_is_at_distance_zero_and_others_are_not(agent: LiveAgent) -> None:
    answer = answered(agent, Settings(seed=1), steps=3)
    assert answer.distances is not None
    assert abs(answer.distances["features"]) < 1e-6
    assert answer.distances["actions"] < 1e-6
    moved = answered(agent, Settings(seed=1, sky="#ff0000", hue=120.0), steps=45)
    assert moved.distances is not None
    assert moved.distances["features"] > 1e-4
    assert moved.distances["relative_features"] > 0.01


def test_answers_are_a_function_of_settings_and_actions(agent: LiveAgent) -> None:
    settings = Settings(seed=2, mode="video_easy", noise=0.1)
    first = answered(agent, settings, steps=4, reset=True)
    answered(agent, Settings(seed=9, mode="color_hard"), steps=2)
    again = answered(agent, settings, steps=4, reset=True)
    assert first.frame_hash == again.frame_hash
    assert first.total == again.total
    assert first.decisions == again.decisions == 4
    assert answered(agent, dataclasses.replace(settings, noise=0.0)).frame_hash != first.frame_hash
    image = Image.open(io.BytesIO(first.seen))
    assert image.size == (12, 12)  # what the network gets: its crop
    assert Image.open(io.BytesIO(first.scene)).size == (SCENE_SIZE, SCENE_SIZE)


def test_saliency_changes_what_is_shown_and_nothing_else(agent: LiveAgent) -> None:
    plain = answered(agent, Settings(seed=2), reset=True)
    bright = answered(agent, Settings(seed=2, saliency=True))
    assert bright.seen != plain.seen
    assert bright.scene == plain.scene
    assert bright.frame_hash == plain.frame_hash


def test_an_evaluation_of_a_mode_is_what_eval_measures(folder: Path) -> None:
    """With default settings; any other appearance gives the same physics and other images."""
    agent = tiny_lab_agent()
    config = dataclasses.replace(agent.config, action_repeat=50)
    expected = evaluate(agent.make_policy, ConfigEnvs(config), ["color_hard"], 2, seed=1)
    got = evaluate(
        agent.make_policy, LiveEnvs(config, Settings(), Backdrops(folder)), ["color_hard"], 2, seed=1
    )
    assert got["color_hard"]["returns"] == expected["color_hard"]["returns"]
    env = LiveEnvs(config, Settings(roll=90.0), Backdrops(folder))("color_hard", 0)
    plain = ConfigEnvs(config)("color_hard", 0)
    seed = Task("color_hard", 0).seeds(1)[0]
    assert not np.array_equal(env.reset(seed=seed)[0], plain.reset(seed=seed)[0])
    env.close()
    plain.close()


def test_what_is_opened_stays_bounded_over_modes_videos_and_episodes(folder: Path) -> None:
    """The environments of modes that were left are gone, and so are all but a few videos."""
    backdrops = Backdrops(folder)
    world = SuiteWorld(tiny_lab_agent().config, backdrops)
    left = []
    for number, mode in enumerate(("video_hard", "train", "video_easy")):
        left.append(weakref.ref(world._live))
        started(world, number, mode=mode).scene()
    assert [reference() for reference in left] == [None] * 3

    videos = []
    for number in range(5):  # in one mode, whose own video is another one in each episode
        started(world, number, mode="video_easy", background="hard", video=number).scene()
        shown = [world._live._large_video[1], *backdrops._opened.values()]
        videos += [weakref.ref(video) for video in shown]
    del shown
    gc.collect()
    different = {id(video): video for video in videos}.values()
    assert len(different) == 15  # the mode's and two sizes of the background's
    assert sum(video() is not None for video in different) <= 6
    world.close()


@pytest.mark.parametrize(
    ("change", "replaces"),
    [
        ({"hue": 40.0}, False),
        ({"azimuth": 10.0}, False),
        ({"mode": "video_easy"}, True),
        ({"seed": 8}, True),
        ({"background": "hard"}, True),
        ({"background": "hard", "video": 3}, True),
    ],
)
def test_memory_is_returned_when_something_large_was_replaced(
    agent: LiveAgent, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], replaces: bool
) -> None:
    """And not otherwise, because it takes a while."""
    before = Settings(background="hard" if "video" in change else "none")
    agent.answer(Request(before, reset=True))
    agent.tidy()
    calls: list[None] = []
    monkeypatch.setattr(worker, "return_free_memory", lambda: calls.append(None))
    agent.answer(Request(before.with_changes(change)))
    agent.tidy()
    agent.tidy()
    assert len(calls) == replaces


def test_robot_push_has_the_same_controls(folder: Path) -> None:
    world = SuiteWorld(tiny_lab_agent(task="robot_push").config, Backdrops(folder))
    try:
        started(world, background="upload", upload=UPLOAD, hide_floor=True, body="#00ff00")
        red = (world.scene() == [255, 0, 0]).all(-1)
        assert red.mean() > 0.4  # floor and table too
        started(world)
        yellow = np.argwhere((world.scene().astype(int) @ [1, 1, -2]) > 250)
        y, x = yellow[len(yellow) // 2] / SCENE_SIZE
        assert world.push(Push(x, y, 0.4, 0.0))
        before = world._live.physics.cube().copy()
        world.step(np.zeros(2, np.float32))
        assert np.linalg.norm(world._live.physics.cube() - before) > 0.005
        np.testing.assert_array_equal(world.obs(), world.training_obs())
    finally:
        world.close()


def test_an_environment_of_the_users_own_has_the_controls_of_images() -> None:
    fields = {
        "test_env": ("dark=own_fakes:make_dark",),
        "eval_modes": ("train", "dark"),
        "episode_decisions": 12,
    }
    agent = LiveAgent(tiny_lab_agent(task="own_fakes:make_corner", **fields), Backdrops(Path()))
    try:
        ready = agent.ready()
        assert ready.modes == ("train", "dark")
        assert {"hue", "seed", "mode"} <= set(ready.controls)
        assert not {"roll", "floor", "background", "push"} & set(ready.controls)
        plain = answered(agent, Settings(seed=1), reset=True)
        assert plain.distances is not None
        assert plain.distances["actions"] < 1e-6
        hue = answered(agent, Settings(seed=1, brightness=2.0))
        assert hue.frame_hash != plain.frame_hash
        assert hue.distances is not None
        assert hue.distances["actions"] > 0
        assert answered(agent, Settings(seed=1), steps=3).decisions == 3
        dark = answered(agent, Settings(seed=1, mode="dark"))
        assert (dark.decisions, dark.total) == (0, 0.0)  # another environment: its episode begins
        assert dark.distances is None  # its states cannot be shown in the training appearance
        assert dark.frame_hash != plain.frame_hash
        with pytest.raises(UserError, match="unknown mode"):
            answered(agent, Settings(seed=1, mode="video_hard"))
        assert answered(agent, Settings(seed=1), reset=True).frame_hash == plain.frame_hash
    finally:
        agent.close()


class Constant:
    """A policy made elsewhere: its action is the mean brightness, in every dimension."""

    def begin_episode(self, seed: int = 0) -> None: ...

    def act(self, obs: np.ndarray) -> np.ndarray:
        return np.full(6, obs.mean() / 255, np.float32)

    def observe(self, obs: np.ndarray, action: np.ndarray, next_obs: np.ndarray) -> None: ...


def test_of_a_policy_made_elsewhere_only_the_actions_are_known(folder: Path) -> None:
    agent = LiveAgent(dataclasses.replace(tiny_lab_agent(), make_policy=Constant), Backdrops(folder))
    try:
        assert agent.ready().seen_size == 16
        answer = answered(agent, Settings(brightness=2.0, saliency=True), reset=True)
        assert answer.distances is not None
        assert answer.distances["features"] is None
        assert answer.distances["actions"] > 0.05
    finally:
        agent.close()


class Diverged(Constant):
    def act(self, obs: np.ndarray) -> np.ndarray:
        return np.full(6, np.nan, np.float32)


def test_an_action_that_is_not_finite_is_refused_in_one_sentence(folder: Path) -> None:
    agent = LiveAgent(
        dataclasses.replace(tiny_lab_agent(), name="mine", make_policy=Diverged), Backdrops(folder)
    )
    try:
        with pytest.raises(UserError, match=r"^mine answered .* \[nan nan nan nan nan nan\]; reset it"):
            agent.ready()
    finally:
        agent.close()
