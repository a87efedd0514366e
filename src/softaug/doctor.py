"""Checks that training can run here: each says ok or how to fix it."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

PACKAGES = ("softaug", "torch", "mujoco", "dm_control", "gymnasium", "numpy", "av", "pillow", "safetensors")
# With MuJoCo 4, dm_control 1.0.50 breaks.
MUJOCO_LIMIT = 4


@dataclass(frozen=True)
class Check:
    """One line of the report. `level`: ok, note (training runs all the same) or error (it cannot)."""

    name: str
    level: str
    found: str
    fix: str = ""


def run_checks() -> Iterator[Check]:
    """All checks, cheapest first; without the packages the rest cannot be asked."""
    yield check_python()
    packages = [check_package(name) for name in PACKAGES]
    yield from packages
    if any(check.level == "error" for check in packages):
        return
    yield check_device()
    yield check_rendering()
    yield check_environment()
    yield from check_data()
    yield check_disk(Path.cwd())


def check_python() -> Check:
    return Check("python", "ok", platform.python_version())


def check_package(name: str) -> Check:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Check(name, "error", "not installed", f"run: pip install {name}")
    if name == "mujoco" and int(version.split(".")[0]) >= MUJOCO_LIMIT:
        return Check(name, "error", version, f"dm_control needs: pip install 'mujoco<{MUJOCO_LIMIT}'")
    return Check(name, "ok", version)


def check_device() -> Check:
    import torch

    cores = f"{os.cpu_count()} cores, {torch.get_num_threads()} torch threads"
    if torch.cuda.is_available():
        return Check("device", "ok", f"cuda ({torch.cuda.get_device_name()}), {cores}")
    if torch.backends.mps.is_available():
        return Check("device", "ok", f"mps, {cores}")
    return Check(
        "device", "note", f"cpu only, {cores}", "--preset small is sized for this; paper wants a GPU"
    )


def check_rendering() -> Check:
    from softaug.envs.gl import REMEDY, find_working_backend, gpu_present, is_software

    working, failed = find_working_backend()
    if working is None:
        reasons = "; ".join(f"{check.backend}: {check.error}" for check in failed)
        return Check("rendering", "error", reasons, REMEDY)
    found = f"{working.backend}, {working.renderer}, {working.milliseconds:.1f} ms per 100x100 frame"
    if is_software(working.renderer) and gpu_present():
        return Check(
            "rendering",
            "note",
            found,
            "a GPU is there, but rendering is in software: install its OpenGL driver with EGL (for NVIDIA in a container: "
            "NVIDIA_DRIVER_CAPABILITIES=graphics,compute,utility), and see that MUJOCO_GL=egl works",
        )
    return Check("rendering", "ok", found)


def check_environment() -> Check:
    """Make the environment that training would make, and take a step."""
    from softaug.envs import make_env
    from softaug.errors import UserError

    try:
        env = make_env("cartpole_swingup", "video_easy")
        _, info = env.reset(seed=0)
        obs, *_ = env.step(env.action_space.sample() * 0)
        env.close()
    except UserError as error:  # says itself how to fix it
        return Check("environment", "error", str(error))
    except (ImportError, RuntimeError) as error:
        return Check("environment", "error", f"{type(error).__name__}: {error}", "fix rendering first")
    return Check(
        "environment",
        "ok",
        f"cartpole_swingup in video_easy steps, observation {obs.shape}, {info['media']} video",
    )


def check_data() -> Iterator[Check]:
    from softaug.errors import UserError
    from softaug.media import image_source, video_source

    for name, level in (("videos (easy)", "easy"), ("videos (hard)", "hard")):
        try:
            source = video_source(level)
        except UserError as error:
            yield Check(name, "error", str(error), "run: softaug data check")
            continue
        yield _media_check(name, source.kind, f"{source.kind}, {len(source)} videos", "dmcgb")
    try:
        images = image_source()
    except UserError as error:
        yield Check("overlay images", "error", str(error), "run: softaug data check")
        return
    yield _media_check("overlay images", images.kind, images.kind, "places365")


def check_disk(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free / 1e9
    if free < 1:
        return Check(
            "disk", "error", f"{free:.1f} GB free in {folder}", "free some space or choose another --out"
        )
    if free < 16:
        return Check(
            "disk", "note", f"{free:.1f} GB free", "a paper-size run keeps up to 15.1 GB of frames on disk"
        )
    return Check("disk", "ok", f"{free:.0f} GB free")


def _media_check(name: str, kind: str, found: str, dataset: str) -> Check:
    if kind == "procedural":
        return Check(name, "note", found, f"not comparable with the paper; softaug data add {dataset} PATH")
    return Check(name, "ok", found)
