"""Backgrounds of the Distracting Control Suite: DAVIS 2017's training videos where they are registered."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from softaug.media import folder_of, registry, video_source
from softaug.media.interface import VideoSource

DATASET = "davis"
# The catalogue's archive holds both sets; the benchmark shows the training videos alone, in alphabetical order.
VALIDATION = frozenset((
    "bike-packing", "blackswan", "bmx-trees", "breakdance", "camel", "car-roundabout", "car-shadow", "cows",
    "dance-twirl", "dog", "dogs-jump", "drift-chicane", "drift-straight", "goat", "gold-fish", "horsejump-high",
    "india", "judo", "kite-surf", "lab-coat", "libby", "loading", "mbike-trick", "motocross-jump",
    "paragliding-launch", "parkour", "pigs", "scooter-black", "shooting", "soapbox",
))  # fmt: skip


def background_videos(videos: str | Path | Sequence[str | Path] | None = None) -> VideoSource:
    """Registered DAVIS videos (kind `davis`), else the 100 hard procedural ones; or those that are given."""
    if videos is None and DATASET in registry.registered():
        from softaug.media.video_files import FileVideos, videos_in

        folder = folder_of(DATASET, "videos")
        training = [path for path in videos_in(folder) if path.name not in VALIDATION]
        return FileVideos(training, kind=DATASET, origin=folder)
    return video_source("hard", "procedural" if videos is None else videos)
