"""Data sets worth having, and which of them are used by default."""

from __future__ import annotations

from pathlib import Path


def default_images(datasets: dict[str, Path]) -> str | None:
    """The registered pictures that random overlay takes when nothing else is asked for."""
    return next((name for name in ("places365", "places365-standard") if name in datasets), None)
