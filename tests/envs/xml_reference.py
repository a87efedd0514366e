"""The benchmark done the slow way: really edit the task's XML, recompile it, render with dm_control, and key the
green pixels one by one with `colorsys`."""

import colorsys
import importlib
import re

import mujoco
import numpy as np

from softaug.envs import gl
from softaug.tasks import domain_and_task

gl.choose_backend()
from dm_control import suite  # noqa: E402 - the GL back end comes first
from dm_control.suite import common  # noqa: E402

GREEN = (0.2, 0.8, 0.2)
# Rows and columns by which the floor's texture is rolled to lie as published; found by matching the golden frames.
FLOOR_ROLL = {"walker": (120, 0), "cartpole": (0, 0), "ball_in_cup": (30, 90), "finger": (30, 90)}


def edited_assets(color=None, green_sky=False, green_floor=False):
    """dm_control's common XML files with the attributes that DMControl-GB changes replaced by plain text substitution."""
    skybox = common.ASSETS["./common/skybox.xml"].decode()
    materials = common.ASSETS["./common/materials.xml"].decode()
    color = dict(color or {})
    sky = {"rgb1": color.get("skybox_rgb")}
    grid = {"rgb1": color.get("grid_rgb1"), "rgb2": color.get("grid_rgb2")}
    if green_sky:
        sky = dict.fromkeys(("rgb1", "rgb2", "markrgb"), GREEN)
    if green_floor:
        grid = dict.fromkeys(("rgb1", "rgb2", "markrgb"), GREEN)
    skybox = _replace(skybox, "texture", "skybox", sky)
    materials = _replace(materials, "texture", "grid", grid)
    if "self_rgb" in color:
        materials = _replace(materials, "material", "self", {"rgba": (*color["self_rgb"], 1)})
    return {
        **common.ASSETS,
        "./common/skybox.xml": skybox.encode(),
        "./common/materials.xml": materials.encode(),
    }


def _replace(xml, tag, name, attributes):
    element = re.search(rf'<{tag} name="{name}".*?/>', xml, re.DOTALL).group()
    edited = element
    for attribute, values in attributes.items():
        if values is not None:
            text = " ".join(repr(float(value)) for value in values)
            edited, count = re.subn(rf'\b{attribute}="[^"]*"', f'{attribute}="{text}"', edited)
            assert count == 1
    return xml.replace(element, edited)


def reference_env(task, seed, **edits):
    """dm_control's own environment on the recompiled model, not yet reset."""
    domain, name = domain_and_task(task)
    environment = suite.load(domain, name, task_kwargs={"random": seed})
    xml, _ = importlib.import_module(f"dm_control.suite.{domain}").get_model_and_assets()
    environment.physics.reload_from_xml_string(xml, edited_assets(**edits))
    correct_floor(environment.physics.model, domain)
    return environment


def correct_floor(model, domain):
    """What MuJoCo 3.12 and later draw differently from the benchmark, undone by hand."""
    if tuple(map(int, mujoco.__version__.split(".")[:2])) >= (3, 12):
        grid = model.name2id("grid", "texture")
        height, width, start = model.tex_height[grid], model.tex_width[grid], model.tex_adr[grid]
        texels = model.tex_data[start : start + height * width * 3]
        texels[:] = np.roll(texels.reshape(height, width, 3), FLOOR_ROLL[domain], axis=(0, 1)).ravel()
    if domain == "ball_in_cup":
        model.vis.rgba.constraint[:] = (0.5, 0.5, 0.5, 1)  # its string, when taut


def naive_is_green(pixel):
    h, s, v = colorsys.rgb_to_hsv(*(int(channel) / 255.0 for channel in pixel))
    return 100 <= h * 360 <= 185 and 80 <= s * 255 <= 255 and 70 <= v * 255 <= 255


def naive_chroma_key(frame, background):
    """frame, background: uint8 (H, W, 3)."""
    keyed = frame.copy()
    for y in range(frame.shape[0]):
        for x in range(frame.shape[1]):
            if naive_is_green(frame[y, x]):
                keyed[y, x] = background[y, x]
    return keyed


def to_hwc(chw):
    return np.ascontiguousarray(np.asarray(chw).transpose(1, 2, 0))
