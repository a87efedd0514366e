"""Choose an OpenGL back end that works without a display, before MuJoCo is imported."""

from __future__ import annotations

import os


def choose_backend() -> str:
    os.environ.setdefault("MUJOCO_GL", "egl")
    return os.environ["MUJOCO_GL"]
