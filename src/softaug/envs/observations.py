"""The layout of an observation: uint8 (3k, H, W), k RGB frames from oldest to newest."""

from __future__ import annotations

import numpy as np


def newest_frame(obs: np.ndarray) -> np.ndarray:
    """The last frame (H, W, 3) of a stack (3k, H, W)."""
    return np.ascontiguousarray(obs[-3:].transpose(1, 2, 0))
