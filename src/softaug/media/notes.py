"""Which numbers may stand beside the paper's."""

from __future__ import annotations

from typing import Any

PROCEDURAL_NOTE = "procedural media: not comparable with the paper"
OWN_MEDIA_NOTE = "not the benchmark's own media: not comparable with the paper"
OFFICIAL_VIDEOS = {"video_easy": 10, "video_hard": 100}


def media_note(mode: str, kind: str | None, facts: dict[str, Any] | None) -> str:
    """The plain sentence that keeps numbers from being compared that must not be; empty if they may."""
    if kind == "procedural":
        return PROCEDURAL_NOTE
    if kind not in (None, "official"):
        return OWN_MEDIA_NOTE
    expected = OFFICIAL_VIDEOS.get(mode, 0)
    found = (facts or {}).get("videos", expected)
    if found < expected:
        return f"{mode}: only {found} of the benchmark's {expected} videos: not comparable with the paper"
    return ""
