"""The scene of one of Gymnasium's MuJoCo environments: which pixels are background, and what colors it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import gymnasium
import mujoco
import numpy as np

from softaug.errors import UserError

FLOOR_SHAPES = (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_HFIELD)
UNSET_RGBA = (0.5, 0.5, 0.5, 1.0)
"""MuJoCo shows a geom's material instead of this, its default color."""


@dataclass
class OwnColors:
    """The colors a model was made with. Kept on the environment, for several wrappers may recolor one model."""

    colors: dict[str, np.ndarray]
    shifted: bool = False
    held: bool = False
    """An outer wrapper has chosen the colors of the episode that begins."""


def scene_of(env: gymnasium.Env) -> MujocoScene | None:
    """The scene of an environment that renders as Gymnasium's `MujocoEnv` does; None for any other."""
    base: Any = env.unwrapped
    renderer = getattr(base, "mujoco_renderer", None)
    model = getattr(base, "model", None)
    if renderer is None or not isinstance(model, mujoco.MjModel):
        return None
    own = vars(base).get("_softaug_own_colors")
    if own is None:
        colors = {name: getattr(model, name).copy() for name in ("tex_data", "mat_rgba", "geom_rgba")}
        own = vars(base)["_softaug_own_colors"] = OwnColors(colors)
    return MujocoScene(model, renderer, own)


class MujocoScene:
    """Sky (no geom), floor (planes and height fields) and everything else (`body`)."""

    def __init__(self, model: mujoco.MjModel, renderer: Any, own: OwnColors) -> None:
        self._model, self._renderer, self._own = model, renderer, own
        floor = np.isin(model.geom_type, [int(shape) for shape in FLOOR_SHAPES])
        self._floor_geoms = set(np.flatnonzero(floor).tolist())
        self._textures: dict[int, str] = {}
        self._materials: dict[int, str] = {}
        self._geoms: dict[int, str] = {}
        self._assign_groups()

    def background(self, *, floor: bool) -> np.ndarray:
        """Bool (H, W) of the image rendered last: True where there is sky or, with `floor`, floor."""
        viewer = self._renderer.viewer
        if viewer is None:
            raise UserError(
                "the environment has not rendered through Gymnasium's MujocoRenderer, so its background is unknown; "
                "give mask= or chroma="
            )
        # Rendered once more with each geom's number as its color. (Gymnasium's own segmentation overflows with
        # numpy 2.) The viewer's scene is that of the last image.
        scene, viewport = viewer.scn, viewer.viewport
        flags = (mujoco.mjtRndFlag.mjRND_SEGMENT, mujoco.mjtRndFlag.mjRND_IDCOLOR)
        viewer.make_context_current()
        for flag in flags:
            scene.flags[flag] = 1
        mujoco.mjr_render(viewport, scene, viewer.con)
        for flag in flags:
            scene.flags[flag] = 0
        pixels = np.empty((viewport.height, viewport.width, 3), np.uint8)
        mujoco.mjr_readPixels(pixels, None, viewport, viewer.con)
        numbers = pixels.astype(np.int32) @ np.array([1, 1 << 8, 1 << 16], np.int32)
        is_background = np.zeros(scene.ngeom + 1, bool)
        is_background[0] = True
        if floor:
            for geom in scene.geoms[: scene.ngeom]:
                if geom.objtype == mujoco.mjtObj.mjOBJ_GEOM and geom.objid in self._floor_geoms:
                    is_background[geom.segid + 1] = True
        numbers[numbers > scene.ngeom] = 0
        return is_background[numbers][::-1]  # OpenGL's first row is the lowest

    def shift_colors(self, shift: Mapping[str, np.ndarray]) -> None:
        """Add `shift[group]` (RGB, in 0..1) to the colors as they were made, clipped to their range."""
        model = self._model
        self._set_own_colors()
        self._own.shifted = True
        for texture, group in self._textures.items():
            start, channels = model.tex_adr[texture], model.tex_nchannel[texture]
            size = model.tex_height[texture] * model.tex_width[texture] * channels
            texels = model.tex_data[start : start + size].reshape(-1, channels)
            change = np.rint(255 * np.asarray(shift[group])).astype(np.int16)
            texels[:, :3] = np.clip(texels[:, :3] + change, 0, 255)
        for array, groups in ((model.mat_rgba, self._materials), (model.geom_rgba, self._geoms)):
            for index, group in groups.items():
                array[index, :3] = np.clip(array[index, :3] + shift[group], 0, 1)
        self._upload_textures()

    def restore_colors(self) -> None:
        """Show the colors as they were made, unless an outer wrapper holds others."""
        if self._own.shifted and not self._own.held:
            self._set_own_colors()
            self._own.shifted = False
            self._upload_textures()

    @contextmanager
    def colors_held(self) -> Iterator[None]:
        """Inner wrappers leave the colors as they are."""
        before, self._own.held = self._own.held, True
        try:
            yield
        finally:
            self._own.held = before

    def _set_own_colors(self) -> None:
        for name, array in self._own.colors.items():
            getattr(self._model, name)[:] = array

    def _upload_textures(self) -> None:
        viewer = self._renderer.viewer
        if viewer is not None:  # one that is made later takes the model's textures as they are then
            viewer.make_context_current()
            for texture in self._textures:
                mujoco.mjr_uploadTexture(self._model, viewer.con, texture)

    def _assign_groups(self) -> None:
        """What is to be recolored for each geom: its texture if it has one, else the color that MuJoCo shows."""
        model = self._model
        skies = np.flatnonzero(model.tex_type == int(mujoco.mjtTexture.mjTEXTURE_SKYBOX))
        self._textures.update(dict.fromkeys(skies.tolist(), "sky"))
        for geom in range(model.ngeom):
            group = "floor" if geom in self._floor_geoms else "body"
            material = int(model.geom_matid[geom])
            textures = [] if material < 0 else [int(t) for t in np.ravel(model.mat_texid[material]) if t >= 0]
            if textures:
                for texture in textures:
                    self._textures.setdefault(texture, group)
            elif material < 0 or not np.array_equal(model.geom_rgba[geom], UNSET_RGBA):
                self._geoms[geom] = group
            else:
                self._materials.setdefault(material, group)
