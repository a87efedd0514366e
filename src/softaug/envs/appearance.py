"""Change a compiled model's colors in place, with the pixels a recompiled XML would give.

dm_control's tasks share `common/skybox.xml` and `common/materials.xml`. The benchmark edits attributes of
three of their elements: the texture `skybox`, the texture `grid` and the material `self`. Here the
edited texture alone is built, copied into the model's `tex_data` and uploaded to the GL context: no new
model, no new context. The skybox (800 x 800 x 6) takes MuJoCo about 80 ms to build, so the color modes
build it from a precomputed gradient instead.

Images are those of the benchmark as published, whatever MuJoCo is installed: `Painter` corrects what later versions
draw differently (the anchor of a plane's texture, the color of a taut tendon).
"""

from __future__ import annotations

import functools
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import mujoco
import numpy as np

from softaug.envs import gl

gl.choose_backend()  # before dm_control is imported, which loads the back end

from dm_control import mujoco as dm_mujoco  # noqa: E402
from dm_control.suite import common  # noqa: E402

GREEN = {"rgb1": ".2 .8 .2", "rgb2": ".2 .8 .2", "markrgb": ".2 .8 .2"}
GREEN_RGB = np.array([0.2, 0.8, 0.2])
DEFAULT_SKY_RGB = np.array([0.4, 0.6, 0.8])
# Rows of a skybox face (800) that are computed together: few enough to stay in a core's cache.
ROWS_AT_ONCE = 80

# From this version on, the texture of a finite plane starts at its corner; before, at its center, as in the benchmark.
CORNER_ANCHORED_SINCE = (3, 12)

_ASSET_FILES = {"skybox": "./common/skybox.xml", "grid": "./common/materials.xml"}


def with_assets(mjcf: str | bytes, assets: str) -> str:
    """A model's text with further textures and materials, after its own."""
    text = mjcf.decode() if isinstance(mjcf, bytes) else mjcf
    body, end, rest = text.rpartition("</mujoco>")
    return f"{body}<asset>{assets}</asset>{end}{rest}" if assets else text


_loading = threading.Lock()


@contextmanager
def more_assets(assets: str) -> Iterator[None]:
    """Models that dm_control's suite compiles in this block have these textures and materials in addition to their own.

    The suite's tasks read and compile their models themselves, and a compiled model cannot grow.
    """
    if not assets:
        yield
        return
    own = dm_mujoco.Physics.__dict__["from_xml_string"]

    def from_xml_string(cls: Any, xml_string: str | bytes, assets_: Any = None, **options: Any) -> Any:
        files = options.get("assets", assets_)
        return own.__func__(cls, with_assets(xml_string, assets), assets=files)

    with _loading:
        dm_mujoco.Physics.from_xml_string = classmethod(from_xml_string)
        try:
            yield
        finally:
            dm_mujoco.Physics.from_xml_string = own


def _texture_element(name: str) -> ElementTree.Element:
    root = ElementTree.fromstring(common.ASSETS[_ASSET_FILES[name]])
    element = root.find(f"./asset/texture[@name='{name}']")
    assert element is not None, f"dm_control's {_ASSET_FILES[name]} has no texture {name!r}"
    return element


def build_texture(name: str, attributes: Mapping[str, str]) -> np.ndarray:
    """Bytes of dm_control's texture `name` with some attributes replaced, made by MuJoCo's own compiler."""
    element = _texture_element(name)
    element.attrib.update(attributes)
    model = ElementTree.Element("mujoco")
    ElementTree.SubElement(model, "asset").append(element)
    return mujoco.MjModel.from_xml_string(ElementTree.tostring(model, encoding="unicode")).tex_data.copy()


def rgb_text(rgb: np.ndarray) -> str:
    """Three numbers as MJCF text that reads back to the same float64."""
    return " ".join(repr(float(value)) for value in rgb)


def mujoco_version() -> tuple[int, int]:
    """Major and minor version of the installed MuJoCo."""
    major, minor = mujoco.__version__.split(".")[:2]
    return int(major), int(minor)


def floor_offsets(model: Any) -> dict[str, tuple[int, int]]:
    """Texture name -> rows and columns to roll it by, so that it lies on its plane as it did when anchored at the center.

    With `texuniform`, a texture is 2 / texrepeat units long, and the corner is half a plane away from the center. An
    infinite plane (size 0) has no corner; without `texuniform` the texture is stretched with the plane, and a
    whole number of repeats on each half makes both anchors the same. Planes that share a texture have equal sizes
    in all of dm_control's tasks; the first one counts.
    """
    offsets: dict[str, tuple[int, int]] = {}
    for geom in np.flatnonzero(model.geom_type == int(mujoco.mjtGeom.mjGEOM_PLANE)):
        material = int(model.geom_matid[geom])
        if material < 0 or not model.mat_texuniform[material]:
            continue
        half_width, half_height = model.geom_size[geom][:2]
        repeat_x, repeat_y = model.mat_texrepeat[material]
        for texture in np.ravel(model.mat_texid[material]):
            if texture >= 0:
                rows = round(model.tex_height[texture] * half_height * repeat_y / 2)
                columns = round(model.tex_width[texture] * half_width * repeat_x / 2)
                offset = rows % int(model.tex_height[texture]), columns % int(model.tex_width[texture])
                offsets.setdefault(model.id2name(int(texture), "texture"), offset)
    return offsets


class SkyParts(NamedTuple):
    """What every skybox has in common, whatever its first color."""

    side: np.ndarray
    """Share of the first color in a texel, float64 (width, width): the same on the four side faces."""
    up: np.ndarray
    down: np.ndarray
    speck_texels: np.ndarray
    """Where the white specks are (`mark="random"`, with a fixed seed inside MuJoCo)."""
    speck_rgb: np.ndarray


@functools.cache
def sky_parts() -> SkyParts:
    """Computed once per process (0.2 s) and only read from then on."""
    width = int(_texture_element("skybox").attrib["width"])
    specks = build_texture("skybox", {"rgb1": "0 0 0", "rgb2": "0 0 0"}).reshape(-1, 3)
    speck_texels = np.flatnonzero(specks.any(axis=1))

    steps = 2 * np.arange(width) / (width - 1)
    x, y = steps[None, :] - 1, 1 - steps[:, None]
    radius = np.sqrt(1 + x * x + y * y)
    side = np.arcsin(y / radius) / (0.5 * np.pi)
    up = 1 - np.arccos(1 / radius) / (0.5 * np.pi)

    def share(elevation: np.ndarray) -> np.ndarray:
        """From the elevation in -1 (nadir) .. 1 (zenith)."""
        return np.clip(0.5 * (1 + elevation / np.sqrt(1 + elevation**2) * np.sqrt(2)), 0, 1)

    return SkyParts(share(side), share(up), share(-up), speck_texels, specks[speck_texels])


class SkyGradient:
    """dm_control's skybox for any first color: a gradient to black, with white specks.

    A texel is `floor(255 * share * rgb)`, where `share` depends on its elevation only. The shares follow
    MuJoCo's gradient; `matches` compares the result with a compiled texture, and the caller falls back to the
    compiler should another MuJoCo version differ.
    """

    def __init__(self) -> None:
        self._parts = sky_parts()
        self._product = np.empty((ROWS_AT_ONCE, self._parts.side.shape[1]))
        self._plane = np.empty(self._product.shape, np.uint8)

    def fill(self, texels: np.ndarray, rgb: np.ndarray) -> None:
        """Write the whole skybox with first color `rgb` into `texels`, uint8 (6 * width * width * 3,)."""
        parts = self._parts
        faces = texels.reshape(6, *parts.side.shape, 3)  # right, left, up, down, front, back
        for face, share in ((0, parts.side), (2, parts.up), (3, parts.down)):
            for top in range(0, len(share), ROWS_AT_ONCE):
                rows = slice(top, top + ROWS_AT_ONCE)
                for channel in range(3):
                    # Into kept buffers, plane by plane: several times faster than one broadcast expression.
                    np.multiply(share[rows], rgb[channel], out=self._product)
                    np.multiply(self._product, 255, out=self._product)
                    np.copyto(self._plane, self._product, casting="unsafe")
                    faces[face, rows, :, channel] = self._plane
        for face in (1, 4, 5):
            faces[face] = faces[0]
        texels.reshape(-1, 3)[parts.speck_texels] = parts.speck_rgb

    def matches(self, rgb: np.ndarray, compiled: np.ndarray) -> bool:
        """Whether this gradient and MuJoCo's compiler make the same texture of `rgb`."""
        built = np.empty_like(compiled)
        self.fill(built, rgb)
        return np.array_equal(built, compiled)


class Painter:
    """Recolors the model of one `physics`; a texture or material that the model lacks is left out."""

    def __init__(self, physics: dm_mujoco.Physics) -> None:
        self._physics = physics
        model = physics.model
        self._textures = {model.id2name(i, "texture"): i for i in range(model.ntex)}
        self._materials = {model.id2name(i, "material"): i for i in range(model.nmat)}
        self._default_sky = self._texels("skybox").copy() if "skybox" in self._textures else None
        # The robot of every task, and the table of robot push.
        self._default_rgb = {
            name: model.mat_rgba[self._materials[name], :3].copy()
            for name in ("self", "table")
            if name in self._materials
        }
        self._gradient: SkyGradient | None = None
        self._offsets = floor_offsets(model) if mujoco_version() >= CORNER_ANCHORED_SINCE else {}
        for name in self._offsets:
            self._write(name, self._texels(name).copy())
        if model.ntendon:
            # Later versions draw a tendon at its limit (the string of ball_in_cup) in this color, red by default.
            model.vis.rgba.constraint[:] = model.tendon_rgba[0]

    def make_green(self, floor: bool) -> None:
        """Green screen: the sky, and with `floor` also what the robot stands on: the grid (video_easy /
        video_hard) and the table.

        To be called before the first render, which uploads the model's textures.
        """
        self._write("skybox", build_texture("skybox", GREEN))
        if floor:
            self._write("grid", build_texture("grid", GREEN))
            if "table" in self._default_rgb:
                self._physics.model.mat_rgba[self._materials["table"], :3] = GREEN_RGB

    def prepare_colors(self) -> None:
        """The one-time work of `set_colors`."""
        gradient = SkyGradient()
        if self._default_sky is not None and gradient.matches(DEFAULT_SKY_RGB, self._default_sky):
            self._gradient = gradient

    def set_colors(self, color: Mapping[str, np.ndarray]) -> None:
        """Show one color setting; everything it does not name has dm_control's own color."""
        grid = {
            attribute: rgb_text(color[key])
            for key, attribute in (("grid_rgb1", "rgb1"), ("grid_rgb2", "rgb2"))
            if key in color
        }
        self._write("grid", build_texture("grid", grid))
        self._write_sky(color.get("skybox_rgb"))
        for name in ("grid", "skybox"):
            self._upload(name)
        for name, default in self._default_rgb.items():
            self._physics.model.mat_rgba[self._materials[name], :3] = color.get(f"{name}_rgb", default)

    def texture_size(self, name: str) -> tuple[int, int] | None:
        """Height and width of a texture; None if the model lacks it."""
        if name not in self._textures:
            return None
        model, index = self._physics.model, self._textures[name]
        return int(model.tex_height[index]), int(model.tex_width[index])

    def show_on_cube(self, name: str, image: np.ndarray) -> None:
        """Show one image, uint8 (size, size, 3), on all six faces of a cube or sky texture; the GL context exists.

        MuJoCo takes a texture that is as high as wide for all faces, and reads its size at each upload.
        """
        if name not in self._textures:
            return
        model, index = self._physics.model, self._textures[name]
        model.tex_height[index] = model.tex_width[index] = len(image)
        self._texels(name)[:] = image.ravel()
        self._upload(name)

    def set_alpha(self, material: str, alpha: float) -> None:
        """How opaque everything of this material is; with 0 it is not drawn."""
        if material in self._materials:
            self._physics.model.mat_rgba[self._materials[material], 3] = alpha

    def show_texture(self, name: str, texels: np.ndarray) -> None:
        """Replace a texture, uint8 (height, width, 3); the GL context exists already."""
        self._write(name, texels.ravel())
        self._upload(name)

    def _write_sky(self, rgb: np.ndarray | None) -> None:
        if rgb is None:
            self._write("skybox", self._default_sky)
        elif self._gradient is None:
            self._write("skybox", build_texture("skybox", {"rgb1": rgb_text(rgb)}))
        else:
            self._gradient.fill(self._texels("skybox"), rgb)

    def _texels(self, name: str) -> np.ndarray:
        """The texture's bytes inside the model, a view."""
        model, index = self._physics.model, self._textures[name]
        size = model.tex_height[index] * model.tex_width[index] * model.tex_nchannel[index]
        return model.tex_data[model.tex_adr[index] : model.tex_adr[index] + size]

    def _write(self, name: str, texels: np.ndarray | None) -> None:
        """Replace a texture's bytes; `texels` are as compiled, anchored at the plane's center."""
        if name in self._textures and texels is not None:
            if any(self._offsets.get(name, ())):
                height, width = self.texture_size(name) or (0, 0)
                texels = np.roll(texels.reshape(height, width, -1), self._offsets[name], axis=(0, 1)).ravel()
            self._texels(name)[:] = texels

    def _upload(self, name: str) -> None:
        if name in self._textures:
            contexts = self._physics.contexts
            with contexts.gl.make_current() as gl:
                gl.call(
                    mujoco.mjr_uploadTexture,
                    self._physics.model.ptr,
                    contexts.mujoco.ptr,
                    self._textures[name],
                )
