"""Which numbers may be compared with the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from softaug.media.official import VIDEO_COUNTS

PROCEDURAL_NOTE = "procedural media: not comparable with the paper"
OUTDATED_NOTE = (
    "procedural videos of another version: not comparable with the paper, nor with results on today's"
)
OUTDATED = "earlier procedural"
"""The kind of media of results on procedural videos that are not today's: they are never mixed with those on today's."""
OWN_MEDIA_NOTE = "not the benchmark's own media: not comparable with the paper"

PROCEDURAL_VIDEO_VERSIONS = {"easy": 2, "hard": 1}
"""Of each level: raise it when the videos of `procedural_videos` change."""


def outdated(facts: Mapping[str, Any] | None) -> bool:
    """Whether these are facts of procedural videos that are not today's."""
    if not isinstance(facts, Mapping) or facts.get("kind") != "procedural":
        return False
    version = facts.get("version")
    today = PROCEDURAL_VIDEO_VERSIONS.get(str(facts.get("level")), version)
    return version is not None and version != today


def media_note(mode: str, kind: str | None, facts: Mapping[str, Any] | None) -> str:
    """The plain sentence that keeps numbers from being compared that must not be; empty if they may."""
    if kind == OUTDATED or outdated(facts):
        return OUTDATED_NOTE
    if kind == "procedural":
        return PROCEDURAL_NOTE
    if kind == "davis" and mode.startswith("distracting"):
        return ""
    if kind not in (None, "official"):
        return OWN_MEDIA_NOTE
    # The robot's video_background shows the videos of video_easy; DMControl-GB2's screens show the same videos.
    level = "easy" if mode == "video_background" else mode.rpartition("video_")[2]
    expected = VIDEO_COUNTS.get(level, 0) if "video_" in mode else 0
    found = (facts or {}).get("videos", expected)
    if found < expected:
        return f"{mode}: only {found} of the benchmark's {expected} videos: not comparable with the paper"
    return ""
