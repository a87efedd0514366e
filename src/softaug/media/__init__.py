"""Images and videos: what random overlay blends in, and what the video modes show behind the robot.

    images = image_source()               # registered images, else procedural ones
    images.sample(256, 84, 84, rng)       # uint8 (256, 84, 84, 3)
    videos = video_source("hard")         # the registered official files, else procedural ones
    videos.open(3, 100, 100).frame(17)    # uint8 (100, 100, 3)

Everything heavy is imported when used. Procedural overlay images and procedural test videos come from
disjoint seeds and from different generators, so that training never sees the test distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from softaug.errors import UserError
from softaug.media import official, registry
from softaug.media.interface import ImageSource, Video, VideoSource

__all__ = ["ImageSource", "Video", "VideoSource", "image_source", "video_source"]


def image_source(spec: str | Path | None = None, *, seed: int = 0) -> ImageSource:
    """Images for random overlay.

    `spec`: None takes the registered images (Places365 first) if there are any, else procedural ones;
    ``"procedural"`` forces those; otherwise a registered name or a folder. `seed` chooses the procedural bank.
    """
    from softaug.media.catalogue import default_images

    if spec is None:
        spec = default_images(registry.registered()) or "procedural"
    if spec == "procedural":
        from softaug.media.procedural_images import ProceduralImages

        return ProceduralImages(seed)
    from softaug.media.folder_images import FolderImages

    return FolderImages(folder_of(spec, "images"))


def video_source(level: str, videos: str | Path | Sequence[str | Path] | None = None) -> VideoSource:
    """Test videos of level ``easy`` (10) or ``hard`` (100).

    `videos`: None takes the registered official files that exist, else procedural videos; ``"procedural"``
    forces those; otherwise a registered name, a folder, one file, or a list of files.
    """
    official.check_level(level)
    if videos is None:
        files = official.registered_videos(level)
        if files:
            from softaug.media.video_files import FileVideos

            return FileVideos(files, kind="official", origin=files[0].parent)
        videos = "procedural"
    if isinstance(videos, str) and videos == "procedural":
        from softaug.media.procedural_videos import ProceduralVideos

        return ProceduralVideos(level)
    from softaug.media.video_files import FileVideos, videos_in

    if not isinstance(videos, (str, Path)):
        return FileVideos(videos)
    if Path(videos).expanduser().is_file():
        return FileVideos([videos], origin=videos)
    folder = folder_of(videos, "videos")
    root = official.find_root(folder)
    if root is not None and (files := official.video_files(root, level)):
        return FileVideos(files, kind="official", origin=files[0].parent)
    return FileVideos(videos_in(folder), origin=folder)


def folder_of(spec: str | Path, what: str) -> Path:
    """The folder behind a registered name or a path."""
    datasets = registry.registered()
    if isinstance(spec, str) and spec in datasets:
        folder = datasets[spec]
        if not folder.is_dir():
            raise UserError(
                f"the folder {folder} registered as '{spec}' is gone; run `softaug data add {spec} PATH` or "
                f"`softaug data remove {spec}`."
            )
        return folder
    folder = Path(spec).expanduser()
    if not folder.is_dir():
        known = ", ".join(datasets) or "none"
        raise UserError(f"{what} '{spec}': no such folder, and no registered data set (registered: {known}).")
    return folder
