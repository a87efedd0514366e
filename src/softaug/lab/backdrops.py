"""What may be shown behind the scene: built-in or registered videos, an upload, the webcam's newest image."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from softaug.errors import UserError
from softaug.lab.images import square
from softaug.lab.settings import Settings
from softaug.media import video_source

UPLOAD_SIZE = 256
"""Side of the square frames that an upload is kept as."""
WEBCAM_PIXELS = 640 * 640


@dataclass
class Backdrops:
    """Frames for any size and position. Picklable; what is opened stays in its process."""

    folder: Path
    """Of decoded uploads: {id}.npy, uint8 (N, UPLOAD_SIZE, UPLOAD_SIZE, 3)."""
    videos: str = ""
    """As in a run's config: a registered name or a folder; empty takes the registered or the procedural ones."""
    webcam: np.ndarray | None = None
    """Newest image, uint8 (S, S, 3)."""
    _opened: dict[tuple[Any, ...], Any] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": {}}

    def take_webcam(self, content: bytes) -> None:
        """A JPEG image from the page; anything else is refused."""
        try:
            with Image.open(io.BytesIO(content), formats=("JPEG",)) as image:
                if image.width * image.height > WEBCAM_PIXELS:
                    raise UserError("the webcam's image is too large; send at most 640 x 640 pixels")
                self.webcam = square(image, UPLOAD_SIZE)
        except (OSError, ValueError, SyntaxError) as error:
            raise UserError(f"the webcam's image cannot be read ({error}); send JPEG") from None

    def check(self, settings: Settings) -> None:
        """Refuse an upload that is not here."""
        if settings.background == "upload" and not (
            settings.upload and self._file(settings.upload).is_file()
        ):
            raise UserError("the image or video of this link is not on this server; upload it again")

    def frame(self, settings: Settings, position: int, size: int) -> np.ndarray | None:
        """uint8 (size, size, 3) after `position` decisions; None if there is nothing to show (yet)."""
        if settings.background == "webcam":
            return None if self.webcam is None else _resized(self.webcam, size)
        if settings.background == "upload":
            frames = self._upload(settings.upload)
            return _resized(np.asarray(frames[position % len(frames)]), size)
        if settings.background in ("easy", "hard"):
            return self._video(settings.background, settings.video, size).frame(position)
        return None

    def _upload(self, upload: str) -> np.ndarray:
        key = ("upload", upload)
        if key not in self._opened:
            try:
                self._keep(key, np.load(self._file(upload), mmap_mode="r", allow_pickle=False))
            except (OSError, ValueError):
                raise UserError("this upload is not on this server any more; upload it again") from None
        return self._opened[key]

    def _video(self, level: str, index: int, size: int) -> Any:
        key = ("video", level, index, size)
        if key not in self._opened:
            self._keep(key, video_source(level, self.videos or None).open(index, size, size))
        return self._opened[key]

    def _keep(self, key: tuple[Any, ...], opened: Any) -> None:
        """The few that are shown now, each in two sizes; older ones are dropped."""
        while len(self._opened) >= 4:
            del self._opened[next(iter(self._opened))]
        self._opened[key] = opened

    def _file(self, upload: str) -> Path:
        return self.folder / f"{upload}.npy"


def _resized(image: np.ndarray, size: int) -> np.ndarray:
    if image.shape[:2] == (size, size):
        return np.array(image)
    return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR))
