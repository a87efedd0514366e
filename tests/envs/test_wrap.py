"""`softaug.envs.wrap`: colors and videos on the images of any environment."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from softaug.envs import gl, wrap
from softaug.envs.custom.wrapper import GROUPS, WRAP_MODES, draw_shift
from softaug.errors import UserError
from softaug.media import video_source

BACKGROUND = (250, 250, 240)
SETTINGS = {
    "HalfCheetah-v5": {},
    "Pendulum-v1": {"chroma": (255, 255, 255)},
    "CarRacing-v3": {"chroma": [(102, 204, 102), (102, 230, 102)]},
}


class Square(gymnasium.Env):
    """A dark square on a bright ground, as the observation and as what is rendered (twice as large)."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(self, render_mode: str | None = "rgb_array", *, layout: str = "hwc"):
        shape = (3, 24, 32) if layout == "chw" else (24, 32, 3)
        image = spaces.Box(0, 255, shape, np.uint8)
        number = spaces.Box(0, 99, (1,), np.float32)
        self.observation_space: Any = spaces.Dict(eye=image, n=number) if layout == "dict" else image
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.layout, self.render_mode, self.steps = layout, render_mode, 0

    def image(self) -> np.ndarray:
        image = np.full((24, 32, 3), BACKGROUND, np.uint8)
        image[8:16, 4 + self.steps % 8 : 14 + self.steps % 8] = (20, 60, 90)
        return image

    def observation(self) -> Any:
        image = self.image()
        if self.layout == "dict":
            return {"eye": image, "n": np.array([self.steps % 99], np.float32)}
        return image.transpose(2, 0, 1).copy() if self.layout == "chw" else image

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.options, self.steps = options, 0
        return self.observation(), {"own": 1}

    def step(self, action):
        self.steps += 1
        return self.observation(), float(action[0]), False, self.steps >= 20, {}

    def render(self):
        return self.image().repeat(2, 0).repeat(2, 1)


def rgb(obs: Any) -> np.ndarray:
    image = obs["eye"] if isinstance(obs, dict) else obs
    return image if image.shape[2] == 3 else image.transpose(1, 2, 0)


ACTION = np.zeros(1, np.float32)
GROUND = np.all(Square().image() == BACKGROUND, axis=2)


@pytest.mark.parametrize("layout", ["hwc", "chw", "dict"])
def test_a_video_stands_where_the_background_is_and_nowhere_else(layout: str):
    env = wrap(Square(layout=layout), "video_easy", chroma=BACKGROUND, tolerance=0)
    assert env.observation_space == env.env.observation_space
    source = video_source("easy")
    obs, info = env.reset(seed=0, options={"episode": 3})
    assert info == {"own": 1, "video": source.name(3), "media": source.kind}
    small, large = source.open(3, 24, 32), source.open(3, 48, 64)
    for position in range(5):
        plain = env.unwrapped.image()
        ground = np.all(plain == BACKGROUND, axis=2)
        assert np.array_equal(rgb(obs), np.where(ground[..., None], small.frame(position), plain))
        wide = ground.repeat(2, 0).repeat(2, 1)
        for _ in range(2):  # rendering twice shows the same frame
            assert np.array_equal(
                env.render(), np.where(wide[..., None], large.frame(position), env.unwrapped.render())
            )
        obs, *_ = env.step(ACTION)


@pytest.mark.parametrize(
    "background",
    [
        {"chroma": BACKGROUND},
        {"chroma": [(0, 0, 0), (230, 230, 230)], "tolerance": 20},
        {"mask": lambda image: image[:, :, 0] > 100},
        {"mask": GROUND},
    ],
)
def test_every_way_to_tell_the_background(background: dict):
    expected, _ = wrap(Square(), "video_hard", chroma=BACKGROUND).reset(seed=0)
    obs, _ = wrap(Square(), "video_hard", **background).reset(seed=0)
    assert np.array_equal(obs, expected)


def test_the_benchmarks_own_green_key():
    class Green(Square):
        def image(self):
            image = super().image()
            image[np.all(image == BACKGROUND, axis=2)] = (51, 204, 51)
            return image

    obs, _ = wrap(Green(), "video_easy", chroma="green").reset(seed=0)
    expected, _ = wrap(Square(), "video_easy", chroma=BACKGROUND).reset(seed=0)
    assert np.array_equal(obs, expected)


def test_without_a_model_colors_are_shifted_in_the_image():
    shift = {"sky": (-0.2, 0.0, -0.1), "body": (0.1, 0.2, 0.0)}
    plain = Square().image().astype(float)
    obs, info = wrap(Square(), "color_hard", colors=[shift]).reset(seed=0)
    assert info["media"] == "list" and np.array_equal(info["color"]["body"], shift["body"])
    assert np.array_equal(obs, np.clip(np.rint(plain + 255 * np.array(shift["body"])), 0, 255))
    obs, _ = wrap(Square(), "color_hard", colors=[shift], mask=GROUND).reset(seed=0)
    change = np.where(GROUND[..., None], shift["sky"], shift["body"])
    assert np.array_equal(obs, np.clip(np.rint(plain + 255 * change), 0, 255))


def test_colors_have_the_distributions_width_and_are_100_for_a_test():
    for level, std in (("easy", 0.1), ("hard", 0.2)):
        env = wrap(Square(), f"color_{level}")
        shifts = env._shifts
        assert len(shifts) == 100
        values = np.array([[shift[group] for group in GROUPS] for shift in shifts])
        assert abs(values.std() - std) < 0.1 * std and abs(values.mean()) < std / 5
        seen = {wrap_color(env, seed) for seed in range(60)}
        assert 30 < len(seen) <= 60  # one of the hundred, by the seed
    fresh = {wrap_color(wrap(Square(), "color_random"), seed) for seed in range(30)}
    test = {
        tuple(shift["sky"])
        for level in ("easy", "hard")
        for shift in wrap(Square(), f"color_{level}")._shifts
    }
    assert len(fresh) == 30 and not fresh & test


def wrap_color(env: gymnasium.Env, seed: int) -> tuple[float, ...]:
    return tuple(env.reset(seed=seed)[1]["color"]["sky"])


@pytest.mark.parametrize("mode", WRAP_MODES)
def test_a_seed_decides_everything_and_the_dynamics_stay(mode: str):
    def play(env, seed):
        obs, info = env.reset(seed=seed)
        images = [obs, *(env.step(ACTION)[0] for _ in range(3)), env.reset()[0], env.render()]
        return images, str(info)

    settings = {"chroma": BACKGROUND}
    first, second = (play(wrap(Square(), mode, **settings), 7) for _ in range(2))
    assert first[1] == second[1]
    assert all(np.array_equal(a, b) for a, b in zip(first[0], second[0], strict=True))
    plain = play(Square(), 7)[0]
    same = [np.array_equal(a, b) for a, b in zip(first[0], plain, strict=True)]
    assert all(same) if mode == "train" else not any(same)
    videos = {play(wrap(Square(), mode, **settings), seed)[1] for seed in range(5)}
    assert (len(videos) > 1) == (mode != "train")


def test_only_the_episode_number_is_kept_from_the_environment():
    env = wrap(Square(), "video_easy", chroma=BACKGROUND)
    env.reset(options={"episode": 2, "hill": "steep"})
    assert env.unwrapped.options == {"hill": "steep"}
    env.reset(options={"episode": 2})
    assert env.unwrapped.options is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "video_easy"}, "needs to know what the background is: give mask="),
        ({"mode": "video"}, "unknown mode 'video'.*Choose one of train, color_easy"),
        ({"mode": "video_easy", "mask": GROUND, "chroma": (0, 0, 0)}, "mask= or chroma=, not both"),
        ({"mode": "video_easy", "mask": np.zeros((24, 32))}, r"mask= is float64 \(24, 32\)"),
        ({"mode": "video_easy", "chroma": "blue"}, "unknown chroma 'blue'"),
        ({"mode": "video_easy", "chroma": (1, 2)}, r"must be a color \(r, g, b\)"),
        ({"mode": "color_hard", "colors": []}, "colors= is empty"),
        ({"mode": "color_hard", "colors": [{"grid": (0, 0, 0)}]}, r"colors\[0\] must be a dict of sky, floor, body"),
        ({"mode": "color_hard", "colors": [{"sky": (0, 0)}]}, r"colors\[0\] must hold three finite numbers"),
        ({"mode": "train", "image_key": "eye"}, "no dict; leave out image_key"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(settings: dict, message: str):
    with pytest.raises(UserError, match=message):
        wrap(Square(), **settings)


def test_images_it_cannot_change_are_refused():
    gray = gymnasium.wrappers.GrayscaleObservation(Square(), keep_dim=True)
    with pytest.raises(UserError, match="wrap the environment before its images are converted"):
        wrap(gray, "color_easy")
    env = wrap(Square(), "video_easy", mask=lambda image: image[:, :, 0])
    with pytest.raises(UserError, match=r"mask= gave uint8 \(24, 32\)"):
        env.reset()


def test_a_video_that_nobody_sees_is_not_passed_over_in_silence():
    env = wrap(Square(), "video_easy", chroma=(0, 255, 0))
    with pytest.warns(UserWarning, match="no pixel of the first image is background"):
        image, _ = env.reset(seed=0)
    np.testing.assert_array_equal(image, Square().reset(seed=0)[0])


@pytest.mark.parametrize("mode", WRAP_MODES)
def test_gymnasiums_checker_passes(mode: str):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that the environment is wrapped, which it is
        check_env(wrap(Square(), mode, chroma=BACKGROUND), skip_render_check=True)


def test_in_a_vector_environment():
    gymnasium.register("softaug-test/Square-v0", entry_point=Square)
    try:
        envs = gymnasium.make_vec(
            "softaug-test/Square-v0",
            num_envs=2,
            vectorization_mode="sync",
            render_mode="rgb_array",
            wrappers=[partial(wrap, mode="video_easy", chroma=BACKGROUND)],
        )
        (left, right), info = envs.reset(seed=0)
        assert (left != right).mean() > 0.5 and info["video"][0] != info["video"][1]
        envs.step(np.zeros((2, 1), np.float32))
        envs.close()
    finally:
        del gymnasium.registry["softaug-test/Square-v0"]


# Real environments


def pictures_of(name: str, mode: str, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """An image in `mode` and, of the same state, the plain one."""
    settings: dict[str, Any] = {"render_mode": "rgb_array"}
    if name == "HalfCheetah-v5":
        settings |= {"width": 96, "height": 96}
    shown = []
    for which in (mode, "train"):
        env = wrap(gymnasium.make(name, **settings), which, **SETTINGS[name])
        obs, _ = env.reset(seed=seed)
        for _ in range(2):
            obs, *_ = env.step(env.action_space.low * 0)
        shown.append(obs if name == "CarRacing-v3" else env.render())
        env.close()
    return shown[0], shown[1]


@pytest.mark.parametrize("name", ["Pendulum-v1", "CarRacing-v3"])
@pytest.mark.parametrize("mode", ["color_hard", "video_easy"])
def test_real_environments_without_a_model(name: str, mode: str):
    pytest.importorskip("pygame")
    if name == "CarRacing-v3":
        pytest.importorskip("Box2D")
    changed, plain = pictures_of(name, mode)
    background = np.any(
        [
            np.abs(plain.astype(int) - color).max(2) <= 30
            for color in np.reshape(SETTINGS[name]["chroma"], (-1, 3))
        ],
        axis=0,
    )
    assert 0.3 < background.mean() < 0.99
    different = np.any(changed != plain, axis=2)
    if mode == "video_easy":
        assert different[background].mean() > 0.9 and not different[~background].any()
    else:
        assert different[~background].mean() > 0.5


@pytest.fixture(scope="module")
def cheetah():
    """HalfCheetah from the side, from above the horizon: sky, floor and body are all in the image."""
    pytest.importorskip("imageio")  # which Gymnasium's MuJoCo environments import
    gl.choose_backend()

    def make(mode: str, **settings: Any) -> gymnasium.Wrapper:
        camera = {"distance": 4.0, "elevation": -8.0, "azimuth": 90.0, "trackbodyid": 0}
        env = gymnasium.make(
            "HalfCheetah-v5", render_mode="rgb_array", width=96, height=96, camera_id=-1, default_camera_config=camera
        )  # fmt: skip
        return wrap(env, mode, **settings)

    return make


def regions(env: gymnasium.Wrapper) -> dict[str, np.ndarray]:
    """Sky, floor and body of the image rendered last, by MuJoCo's own segmentation renderer."""
    import mujoco

    base = env.unwrapped
    renderer = mujoco.Renderer(base.model, 96, 96)
    renderer.update_scene(base.data, camera=base.mujoco_renderer.viewer.cam)
    renderer.enable_segmentation_rendering()
    ids = renderer.render()[..., 0]
    renderer.close()
    floor = mujoco.mj_name2id(base.model, mujoco.mjtObj.mjOBJ_GEOM, "floor")
    return {"sky": ids == -1, "floor": ids == floor, "body": (ids != -1) & (ids != floor)}


def shot(env: gymnasium.Wrapper) -> np.ndarray:
    env.reset(seed=0)
    for _ in range(2):
        env.step(np.zeros(6, np.float32))
    return env.render()


def test_mujoco_video_easy_replaces_the_sky_and_video_hard_the_floor_too(cheetah):
    plain_env = cheetah("train")
    plain = shot(plain_env)
    parts = regions(plain_env)
    assert all(0.01 < part.mean() < 0.9 for part in parts.values()), "all three are seen"
    for mode, replaced in (("video_easy", parts["sky"]), ("video_hard", parts["sky"] | parts["floor"])):
        env = cheetah(mode)
        changed = shot(env)
        frame = video_source(mode.removeprefix("video_")).open(env._video, 96, 96).frame(2)
        assert np.array_equal(changed, np.where(replaced[..., None], frame, plain))
        env.close()
    plain_env.close()


def test_mujoco_colors_change_the_model_and_each_episode_begins_from_its_own(cheetah):
    plain_env = cheetah("train")
    plain = shot(plain_env)
    parts = regions(plain_env)
    for group in GROUPS:
        env = cheetah("color_hard", colors=[{group: (0.2, -0.2, 0.15)}])
        changed = shot(env)
        moved = np.any(np.abs(changed.astype(int) - plain) > 2, axis=2)
        assert moved[parts[group]].mean() > 0.95
        # Next to it only what mirrors it or blends with it at an edge.
        others = [other for other in GROUPS if other != group and not (group == "body" and other == "floor")]
        assert all(moved[parts[other]].mean() < 0.3 for other in others)
        assert np.array_equal(shot(env), changed), "shifts do not add up over episodes"
        env.close()
    hard = cheetah("color_hard")
    first, physics = shot(hard), hard.unwrapped.data.qpos.copy()
    assert np.any(first != plain) and np.array_equal(physics, plain_env.unwrapped.data.qpos)
    plain_env.close()
    hard.close()


def test_mujoco_colors_do_not_leak_into_the_next_wrapper(cheetah):
    plain_env = cheetah("train")
    base, plain = plain_env.env, shot(plain_env)
    shift = [{"floor": (0.2, -0.2, 0.15), "body": (-0.2, 0.2, 0.2)}]
    colored = wrap(base, "color_hard", colors=shift)
    changed = shot(colored)
    assert np.any(changed != plain)
    assert np.array_equal(shot(wrap(base, "color_hard", colors=shift)), changed), "shifted once, not twice"
    assert np.array_equal(shot(plain_env), plain) and np.array_equal(shot(wrap(base, "train")), plain)
    assert np.array_equal(shot(wrap(plain_env, "color_hard", colors=shift)), changed), "stacked wrappers"
    assert np.array_equal(shot(colored), changed)
    base.close()


def test_a_mask_that_is_a_method_does_not_copy_the_environment():
    class Uncopied(Square):
        def background(self, image: np.ndarray) -> np.ndarray:
            return (image == BACKGROUND).all(axis=2)

        def __deepcopy__(self, memo: dict) -> Any:
            raise AssertionError("copied")

    env = Uncopied()
    assert rgb(wrap(env, "video_easy", mask=env.background).reset(seed=0)[0]).shape == (24, 32, 3)


def test_shifts_are_drawn_from_the_generator_given():
    left, right = (draw_shift(np.random.default_rng(3), 0.2) for _ in range(2))
    assert all(np.array_equal(left[group], right[group]) for group in GROUPS) and set(left) == set(GROUPS)


# The modes of later benchmarks


def wander(parts: str, dynamic: bool = True, scale: float = 0.2, **settings: Any) -> Any:
    mode = f"distracting(scale={scale},dynamic={dynamic},parts={parts})"
    return wrap(Square(), mode, chroma=BACKGROUND, tolerance=0, videos="procedural", **settings)


def test_wandering_colors_stay_in_their_range_and_move_by_small_steps():
    env = wander("color")
    shifts = []
    for seed in range(40):
        obs, _ = env.reset(seed=seed)
        shifts.append(env._shift["body"])
        expected = np.clip(np.rint(env.env.render()[::2, ::2] + 255 * env._shift["body"]), 0, 255)
        assert np.array_equal(obs[~GROUND], expected[~GROUND])
    starts = np.array(shifts)
    assert np.abs(starts).max() <= 0.2 and np.abs(starts).max() > 0.18 and starts.std() > 0.09  # uniform
    moves = []
    for _ in range(20):
        before = env._shift["body"]
        env.step(ACTION)
        moves.append(env._shift["body"] - before)
        assert np.abs(env._shift["body"]).max() <= 0.2
    assert 0.003 < np.std(moves) < 0.009  # N(0, 0.03 * 0.2)
    still = wander("color", dynamic=False)
    still.reset(seed=0)
    before = still._shift["body"]
    still.step(ACTION)
    assert np.array_equal(still._shift["body"], before)


def test_a_wandering_background_runs_back_and_forth_behind_the_subject():
    env = wander("background")
    _, info = env.reset(seed=3)
    assert info["media"] == "procedural" and env._count == 8
    video = video_source("hard", "procedural").open(env._video, 24, 32)
    places = [env._position]
    for _ in range(2 * env._length + 2):  # beyond both ends
        obs, *_ = env.step(ACTION)
        places.append(env._position)
        plain = env.env.render()[::2, ::2]
        ground = np.all(plain == BACKGROUND, axis=2)
        assert np.array_equal(obs[~ground], plain[~ground])
    assert np.array_equal(obs[ground], video.frame(env._position)[ground])
    assert (min(places), max(places)) == (0, len(video) - 1) and set(np.abs(np.diff(places))) <= {0, 1}


def test_wandering_goes_on_exactly_where_it_was():
    env, other = wander("color+background"), wander("color+background", seed=9)
    env.reset(seed=1)
    other.reset(seed=2)
    for _ in range(3):
        env.step(ACTION)
    state = env.appearance_state()
    other.env.steps = env.env.steps
    other.set_appearance_state(state)
    for _ in range(5):
        assert np.array_equal(env.step(ACTION)[0], other.step(ACTION)[0])
    again = wander("color+background")
    assert np.array_equal(again.reset(seed=1)[0], wander("color+background").reset(seed=1)[0])


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("distracting_hard", "parts=color.background"),
        ("rotate_hard", "belong to your environment"),
        ("shift_easy", "belong to your environment"),
        ("camera_easy", "belong to your environment"),
        ("screen_video_easy", "video_easy or video_hard"),
        ("random_colors", "belong to your environment"),
        ("video_medium", "unknown mode"),
    ],
)
def test_modes_that_need_the_scene_are_refused_with_what_to_do(mode: str, said: str):
    with pytest.raises(UserError, match=said):
        wrap(Square(), mode, chroma=BACKGROUND)


def test_a_wandering_background_must_be_known():
    with pytest.raises(UserError, match="what the background is"):
        wrap(Square(), "distracting(scale=0.1,parts=background)")
    wrap(Square(), "distracting(scale=0.1,parts=color)").reset(seed=0)
