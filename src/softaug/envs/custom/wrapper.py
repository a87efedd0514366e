"""Colors and videos on the images of any Gymnasium environment: `softaug.envs.wrap`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from softaug.envs.chroma import is_green
from softaug.envs.color import PROCEDURAL_SEED, SETTINGS_PER_LEVEL, STD
from softaug.envs.custom.frames import find_frame
from softaug.envs.modes import MODE_NAMES, Mode
from softaug.errors import UserError, unknown

WRAP_MODES = ("train", "color_easy", "color_hard", "video_easy", "video_hard", "color_random")
GROUPS = ("sky", "floor", "body")
"""What is recolored together. Without a MuJoCo model, `sky` is the background and `body` all the rest."""

Mask = Callable[[np.ndarray], np.ndarray]
"""Image, uint8 (H, W, 3) -> bool (H, W), True where the background is."""
Shift = dict[str, np.ndarray]
"""Group -> change of its RGB, float64 (3,), in units of the full range."""


class Distracted(gymnasium.Wrapper, RecordConstructorArgs):
    """See `softaug.envs.wrap`. Spaces, rewards and dynamics are the environment's own; only images change."""

    def __init__(
        self,
        env: gymnasium.Env,
        mode: str | Mode = "train",
        seed: int = 0,
        *,
        mask: Mask | np.ndarray | None = None,
        chroma: str | Sequence[Any] | None = None,
        tolerance: int = 30,
        videos: str | Path | Sequence[str | Path] | None = None,
        colors: Sequence[Mapping[str, Any]] | None = None,
        image_key: str = "",
    ) -> None:
        RecordConstructorArgs.__init__(
            self,
            _disable_deepcopy=True,  # a mask may be a method of the environment
            mode=mode,
            seed=seed,
            mask=mask,
            chroma=chroma,
            tolerance=tolerance,
            videos=videos,
            colors=colors,
            image_key=image_key,
        )
        gymnasium.Wrapper.__init__(self, env)
        self.mode = wrapped_mode(mode)
        self._key = _image_key(env, image_key)
        self._mask = _make_mask(mask, chroma, tolerance)
        self._model: Any = _mujoco_scene(env)
        """The MuJoCo scene, if there is one. `_scene`: the same where distractors go by it, not by a mask."""
        self._scene: Any = self._model if self._mask is None and self.mode.family != "train" else None
        self._videos: Any = None
        self._shifts: list[Shift] | None = None
        self._media: str | None = None
        if self.mode.family == "video":
            if self._mask is None and self._scene is None:
                raise needs_background(self.mode)
            from softaug.media import video_source

            self._videos = video_source(str(self.mode.level), videos)
            self._media = self._videos.kind
        elif self.mode.family == "color":
            self._shifts, self._media = _color_shifts(str(self.mode.level), colors)
        self._opened: dict[tuple[int, int], Any] = {}
        self._video: int | None = None
        self._position = 0
        self._shift: Shift | None = None
        self._background_seen = False
        self._seed(seed)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode with the next video or another color.

        seed: also restarts these choices. options: {"episode": e} takes video e (modulo their number), and is not
        passed on; all other options are.
        """
        if seed is not None:
            self._seed(seed)
        episode = self._first_video + self._resets
        if options is not None and "episode" in options:
            episode = int(options["episode"])
            options = {key: value for key, value in options.items() if key != "episode"} or None
        self._resets += 1
        facts = self._begin(episode)
        recolored = self._shift is not None and self._scene is not None
        if self._model is not None and not recolored:
            self._model.restore_colors()  # another wrapper of the same environment may have changed them
        with self._scene.colors_held() if recolored else nullcontext():
            obs, info = self.env.reset(seed=seed, options=options)
        return self._observation(obs), {**info, **facts}

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._advance()
        return self._observation(obs), reward, terminated, truncated, info

    def render(self) -> Any:
        """What the environment renders, with the distractors; only RGB images are changed."""
        image: Any = self.env.render()
        is_rgb = isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.shape[2:] == (3,)
        return self._changed(image) if is_rgb else image

    def appearance_state(self) -> dict[str, Any]:
        """What the next images depend on apart from the environment: arrays and JSON values."""
        return {
            "rng": self._rng.bit_generator.state,
            "first_video": self._first_video,
            "resets": self._resets,
            "video": self._video,
            "position": self._position,
            "shift": self._shift,
        }

    def set_appearance_state(self, state: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]
        self._first_video, self._resets = int(state["first_video"]), int(state["resets"])
        if state["video"] is not None:
            self._show_video(int(state["video"]))
        if state["shift"] is not None:
            self._show_shift({group: np.asarray(state["shift"][group]) for group in GROUPS})
        self._position = int(state["position"])

    def _seed(self, seed: int) -> None:
        # A stream of its own: the environment draws from the same seed.
        self._rng = np.random.default_rng([seed, 1])
        # By the seed, so that episodes that are each begun with a seed of their own see different videos.
        self._first_video = int(self._rng.integers(2**31))
        self._resets = 0

    def _begin(self, episode: int) -> dict[str, Any]:
        """Choose what the episode shows; what to say of it."""
        if self._videos is not None:
            self._show_video(episode % len(self._videos))
            return {"video": self._videos.name(episode), "media": self._media}
        if self.mode.family == "color":
            shift = self._draw_shift()
            self._show_shift(shift)
            return {"color": {group: rgb.copy() for group, rgb in shift.items()}, "media": self._media}
        return {}

    def _advance(self) -> None:
        """The environment has made a step."""
        self._position += 1

    def _show_video(self, index: int) -> None:
        self._video, self._position = index, 0
        self._opened.clear()

    def _draw_shift(self) -> Shift:
        if self._shifts is None:
            return draw_shift(self._rng, STD[str(self.mode.level)])
        return self._shifts[self._rng.integers(len(self._shifts))]

    def _show_shift(self, shift: Shift) -> None:
        self._shift = shift
        if self._scene is not None:
            self._scene.shift_colors(shift)

    def _observation(self, obs: Any) -> Any:
        if self._key is None:
            return obs
        if self._key == "":
            return self._changed_layout(obs)
        return {**obs, self._key: self._changed_layout(obs[self._key])}

    def _changed_layout(self, image: np.ndarray) -> np.ndarray:
        """`_changed` for (H, W, 3) and (3, H, W)."""
        if image.shape[2] == 3:
            return self._changed(image)
        return np.ascontiguousarray(self._changed(image.transpose(1, 2, 0)).transpose(2, 0, 1))

    def _changed(self, image: np.ndarray) -> np.ndarray:
        """The image, uint8 (H, W, 3), with this episode's distractors: new colors, then the video behind."""
        changed = image
        if self._shift is not None and self._scene is None:
            change = self._shift["body"]
            if self._mask is not None:
                change = np.where(self._background(image)[..., None], self._shift["sky"], change)
            changed = np.clip(np.rint(image + 255 * change), 0, 255).astype(np.uint8)
        if self._video is not None:
            changed = changed.copy()
            np.copyto(changed, self._video_frame(*image.shape[:2]), where=self._background(image)[..., None])
        return changed

    def _video_frame(self, height: int, width: int) -> np.ndarray:
        if (height, width) not in self._opened:
            self._opened[height, width] = self._videos.open(self._video, height, width)
        return self._opened[height, width].frame(self._position)

    def _background(self, image: np.ndarray) -> np.ndarray:
        """Bool (H, W) for an image (H, W, 3)."""
        mask = self._find_background(image)
        if not self._background_seen and not mask.any():
            warnings.warn(
                f"{self.mode}: no pixel of the first image is background, so no distractor shows in it"
                + ("; the camera sees no sky: try video_hard" if self.mode.name == "video_easy" else ""),
                stacklevel=4,
            )
        self._background_seen = True
        return mask

    def _find_background(self, image: np.ndarray) -> np.ndarray:
        if self._mask is not None:
            mask = np.asarray(self._mask(image))
            if mask.dtype != bool or mask.shape != image.shape[:2]:
                raise UserError(
                    f"mask= gave {mask.dtype} {mask.shape} for an image of {image.shape}; it must be bool "
                    f"{image.shape[:2]}"
                )
            return mask
        # Images made of the rendered one, for example smaller, share its proportions.
        return _resize_mask(self._scene.background(floor=self.mode.level == "hard"), *image.shape[:2])


def wrapped_mode(mode: str | Mode) -> Mode:
    """The mode, if it can be put on images; else an error that says what it would need."""
    name = str(mode)
    if name in WRAP_MODES:
        return Mode.parse(mode)
    if name not in MODE_NAMES and not name.startswith("distracting("):
        raise unknown("mode", name, WRAP_MODES)
    found = Mode.parse(mode)
    if found.distraction is not None:
        if "camera" not in found.distraction.parts:
            return found
        raise UserError(
            f"{found} moves the camera, which belongs to your environment; leave that part out: "
            f"distracting(scale={found.distraction.scale:g},parts=color+background)"
        )
    if found.screen:
        raise UserError(
            f"{found} puts a screen into the scene, which wrap cannot; take video_easy or video_hard, which show videos "
            "in the place of the background"
        )
    raise UserError(
        f"{found} changes the camera, light or textures of the scene, which belong to your environment; change them "
        "there, and give the changed environment as a test environment of its own"
    )


def needs_background(mode: Mode) -> UserError:
    return UserError(
        f"{mode} needs to know what the background is: give mask= (a function of the image, or a fixed bool array) or "
        "chroma= (its color); only Gymnasium's MuJoCo environments tell it themselves"
    )


def draw_shift(rng: np.random.Generator, std: float) -> Shift:
    """One draw: N(0, std) per group and channel, as the benchmark's colors are drawn."""
    return {group: rng.normal(0.0, std, 3) for group in GROUPS}


def _color_shifts(level: str, colors: Sequence[Mapping[str, Any]] | None) -> tuple[list[Shift] | None, str]:
    """The settings to draw from, and where they come from; None: fresh draws (`color_random`)."""
    if level == "random":
        return None, "procedural"
    if colors is None:
        rng = np.random.default_rng(PROCEDURAL_SEED[level])
        return [draw_shift(rng, STD[level]) for _ in range(SETTINGS_PER_LEVEL)], "procedural"
    shifts = []
    for number, setting in enumerate(colors):
        if not isinstance(setting, Mapping) or set(setting) - set(GROUPS):
            raise UserError(
                f"colors[{number}] must be a dict of {', '.join(GROUPS)} -> change of RGB, not {setting!r}"
            )
        shift = {group: np.asarray(setting.get(group, (0, 0, 0)), np.float64) for group in GROUPS}
        if any(rgb.shape != (3,) or not np.isfinite(rgb).all() for rgb in shift.values()):
            raise UserError(f"colors[{number}] must hold three finite numbers a group, not {setting!r}")
        shifts.append(shift)
    if not shifts:
        raise UserError("colors= is empty; give at least one setting")
    return shifts, "list"


def _image_key(env: gymnasium.Env, image_key: str) -> str | None:
    """Where observations hold an RGB image: a dict's key, "" for the observation itself, None if nowhere."""
    reader = find_frame(env, image_key, "the environment")
    if reader.layout == "render":
        return None
    space: Any = env.observation_space
    if reader.key:
        space = space[reader.key]
    if space.dtype != np.uint8 or 3 not in (space.shape[0], space.shape[-1]) or len(space.shape) != 3:
        raise UserError(
            f"wrap changes RGB images, uint8 (H, W, 3) or (3, H, W), but the observation is {space.dtype} "
            f"{space.shape}; wrap the environment before its images are converted"
        )
    return reader.key


def _make_mask(
    mask: Mask | np.ndarray | None, chroma: str | Sequence[Any] | None, tolerance: int
) -> Mask | None:
    if mask is not None and chroma is not None:
        raise UserError("give mask= or chroma=, not both")
    if mask is not None:
        if callable(mask):
            return mask
        fixed = np.asarray(mask)
        if fixed.dtype != bool or fixed.ndim != 2:
            raise UserError(f"mask= is {fixed.dtype} {fixed.shape}; a fixed mask must be bool (H, W)")
        return lambda image: _resize_mask(fixed, *image.shape[:2])
    if chroma is None:
        return None
    if isinstance(chroma, str):
        if chroma != "green":
            raise UserError(
                f"unknown chroma {chroma!r}; give 'green' (the benchmark's key), a color (r, g, b) or a list of colors"
            )
        return is_green
    colors = np.asarray(chroma)
    if colors.shape[-1:] != (3,) or colors.ndim > 2 or not np.issubdtype(colors.dtype, np.number):
        raise UserError(f"chroma= must be a color (r, g, b) in 0..255 or a list of colors, not {chroma!r}")
    wide = colors.reshape(-1, 3).astype(np.int16)

    def near(image: np.ndarray) -> np.ndarray:
        pixels = image.astype(np.int16)
        return np.any([np.abs(pixels - color).max(axis=2) <= tolerance for color in wide], axis=0)

    return near


def _mujoco_scene(env: gymnasium.Env) -> Any:
    if not hasattr(env.unwrapped, "mujoco_renderer"):
        return None  # without importing MuJoCo
    from softaug.envs.custom.mujoco_scene import scene_of

    return scene_of(env)


def _resize_mask(mask: np.ndarray, height: int, width: int) -> np.ndarray:
    """The nearest pixel's value."""
    if mask.shape == (height, width):
        return mask
    rows, columns = np.arange(height) * mask.shape[0] // height, np.arange(width) * mask.shape[1] // width
    return mask[rows][:, columns]
