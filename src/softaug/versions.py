"""The versions that results may depend on, as recorded with every run, evaluation and export."""

from __future__ import annotations

import importlib.metadata
import platform

VERSION = "0.1.0"
"""Of softaug itself."""
RECORDED_PACKAGES = ("torch", "mujoco", "dm_control", "gymnasium", "numpy")


def versions() -> dict[str, str]:
    """Package -> installed version; nothing here names the machine or its user."""
    return {
        "softaug": VERSION,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in RECORDED_PACKAGES},
    }
