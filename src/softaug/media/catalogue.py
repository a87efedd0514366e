"""Public data sets worth having: what they are, under which terms, and where they come from.

softaug needs none of them: without them, overlay images and test videos are procedural.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from softaug.errors import unknown


@dataclass(frozen=True)
class Dataset:
    """One downloadable data set."""

    name: str
    title: str
    kind: str
    """What it serves as: ``images`` (overlays), ``videos`` (backgrounds) or ``benchmark`` (DMControl-GB's files)."""
    licence: str
    url: str
    size: int
    """Size of the download in bytes, approximate."""
    checksum: str | None
    """``md5:...`` or ``sha256:...``; None when nobody published one."""
    homepage: str
    inner: tuple[str, ...] = ()
    """Where, below the unpacked folder, the images or videos may be: the first that exists is registered."""

    @property
    def archive(self) -> str:
        """File name of the download."""
        return f"{self.name}-{self.url.rsplit('/', 1)[-1]}"

    @property
    def checksum_note(self) -> str:
        """For people."""
        return self.checksum or "no published checksum"

    def locate(self, folder: Path) -> Path:
        """The folder to register, given the one it was unpacked to."""
        return next((folder / name for name in self.inner if (folder / name).is_dir()), folder)


_PLACES = "http://data.csail.mit.edu/places/places365"
_PLACES_TERMS = (
    "free for research and education; the images belong to their photographers: read the terms first"
)

# The MD5 sums of Places365 are those its authors publish and torchvision checks.
CATALOGUE = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            name="places365",
            title="Places365-Standard, small: 1.8 million scenes at 256x256 (training images)",
            kind="images",
            licence=_PLACES_TERMS,
            url=f"{_PLACES}/train_256_places365standard.tar",
            size=24_000_000_000,
            checksum="md5:53ca1c756c3d1e7809517cc47c5561c5",
            homepage="http://places2.csail.mit.edu/download.html",
        ),
        Dataset(
            name="places365-standard",
            title="Places365-Standard in one folder a class: the archive DMControl-GB's authors used",
            kind="images",
            licence=_PLACES_TERMS,
            url=f"{_PLACES}/places365standard_easyformat.tar",
            size=24_000_000_000,
            checksum=None,
            homepage="http://places2.csail.mit.edu/download.html",
            inner=("places365_standard/train",),
        ),
        Dataset(
            name="places365-large",
            title="Places365-Standard, high resolution (training images)",
            kind="images",
            licence=_PLACES_TERMS,
            url=f"{_PLACES}/train_large_places365standard.tar",
            size=105_000_000_000,
            checksum="md5:67e186b496a84c929568076ed01a8aa1",
            homepage="http://places2.csail.mit.edu/download.html",
        ),
        Dataset(
            name="davis",
            title="DAVIS 2017, train and validation at 480p: 90 short videos as folders of frames",
            kind="videos",
            licence="for research; read the terms on its page first",
            url="https://data.vision.ee.ethz.ch/csergi/share/davis/DAVIS-2017-trainval-480p.zip",
            size=800_000_000,
            checksum=None,
            homepage="https://davischallenge.org/davis2017/code.html",
            inner=("DAVIS/JPEGImages/480p", "JPEGImages/480p"),
        ),
        Dataset(
            name="dmcgb",
            title="DMControl Generalization Benchmark: its 10 + 100 test videos and 2 x 100 color settings",
            kind="benchmark",
            licence="repository under MIT; video_hard is from RealEstate10K, whose own terms apply",
            url="https://github.com/nicklashansen/dmcontrol-generalization-benchmark/archive/"
            "6861d3e5b3298f97795a8ce35a01944a1cc58b4b.zip",
            size=80_000_000,
            checksum=None,
            homepage="https://github.com/nicklashansen/dmcontrol-generalization-benchmark",
        ),
    )
}


def find(name: str) -> Dataset:
    """The data set of that name, or a `UserError` that lists all."""
    if name not in CATALOGUE:
        raise unknown("data set", name, CATALOGUE)
    return CATALOGUE[name]


def default_images(datasets: dict[str, Path]) -> str | None:
    """The registered images that random overlay takes when nothing else is asked for: Places365, else none."""
    return next((d.name for d in CATALOGUE.values() if d.kind == "images" and d.name in datasets), None)
