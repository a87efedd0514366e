"""Overlay pictures from a folder of JPEG, PNG or WebP files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


class FolderImages:
    """Being written."""

    kind = "folder"

    def __init__(self, folder: Path) -> None:
        raise NotImplementedError

    def sample(self, count: int, height: int, width: int, rng: np.random.Generator) -> np.ndarray:
        """`count` pictures, uint8 (count, height, width, 3)."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Facts for logs and checkpoints."""
        raise NotImplementedError
