"""How procedural test videos differ from the benchmark's own, as numbers of frames resized to an observation.

    python video_statistics.py DMCGB > video_statistics.jsonl        # the folder with video_easy/ and video_hard/

One line of JSON per set of videos, means over its videos: brightness, contrast (standard deviation within a frame) and edges
(mean absolute difference of neighbors) of the gray values in 0..1, motion (mean absolute difference of successive frames) and
colorfulness (Hasler and Süsstrunk's, in 0..1). The committed line with a version is of the easy videos before they changed.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from softaug.media.procedural_videos import ProceduralVideos
from softaug.media.video_files import FileVideos

SIZE, FRAMES = 84, 200


def describe(frames: np.ndarray) -> dict[str, float]:
    """frames: (N, H, W, 3), 0..1."""
    gray = frames.mean(3)
    red_green = frames[..., 0] - frames[..., 1]
    yellow_blue = (frames[..., 0] + frames[..., 1]) / 2 - frames[..., 2]
    return {
        "brightness": gray.mean(),
        "contrast": gray.std((1, 2)).mean(),
        "edges": np.abs(np.diff(gray, axis=1)).mean() + np.abs(np.diff(gray, axis=2)).mean(),
        "motion": np.abs(np.diff(frames, axis=0)).mean(),
        "color": np.hypot(red_green.std(), yellow_blue.std())
        + 0.3 * np.hypot(red_green.mean(), yellow_blue.mean()),
    }


parser = argparse.ArgumentParser(description="Statistics of procedural and official test videos.")
parser.add_argument("folder", type=Path, help="the benchmark's, with video_easy/ and video_hard/")
folder = parser.parse_args().folder
for level in ("easy", "hard"):
    files = sorted((folder / f"video_{level}").glob("*.mp4"))
    if not files:
        parser.error(
            f"no *.mp4 in {folder / f'video_{level}'}; give the folder with video_easy/ and video_hard/"
        )
    for kind, videos in (("official", FileVideos(files)), ("procedural", ProceduralVideos(level))):
        numbers = []
        for index in range(len(videos)):
            video = videos.open(index, SIZE, SIZE)
            frames = np.stack([video.frame(position) for position in range(min(FRAMES, len(video)))])
            numbers.append(describe(frames / np.float32(255)))
        means = {name: round(float(np.mean([n[name] for n in numbers])), 4) for name in numbers[0]}
        print(json.dumps({"level": level, "videos": kind, "count": len(videos)} | means), flush=True)
