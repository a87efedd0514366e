"""The golden frames, and how far ours are from them. `python tests/envs/golden.py` prints the table as JSON.

`golden_frames.npz` was rendered with MuJoCo 3.3.0 and dm_control 1.0.28 (EGL, llvmpipe) from XML that an independent
program edited and recompiled: three states of each task, in four appearances.
"""

import json
from pathlib import Path

import numpy as np

from softaug.envs import PAPER_TASKS, make_env

GOLDEN = np.load(Path(__file__).with_name("golden_frames.npz"))
META = json.loads(str(GOLDEN["meta"]))
MODES = {
    "train": ("train", {}),
    "color": ("color_hard", {"colors": [META["color"]]}),
    "green_easy": ("video_easy", {}),
    "green_hard": ("video_hard", {}),
}


def frames_of(env, task):
    """The scene as rendered, before a video replaces the green, in each golden state."""
    env.reset(seed=0)
    for state in GOLDEN[f"{task}/states"]:
        env.physics.set_state(state)
        env.physics.forward()
        yield env._open_camera().render()


def differences(task, appearance):
    """Mean absolute difference (of 255) and share of pixels that differ by more than 8, for each state."""
    mode, options = MODES[appearance]
    env = make_env(task, mode, **options).unwrapped
    found = []
    for frame, golden in zip(frames_of(env, task), GOLDEN[f"{task}/{appearance}"], strict=True):
        apart = np.abs(frame.astype(int) - golden)
        found.append((float(apart.mean()), float((apart.max(axis=-1) > 8).mean())))
    env.close()
    return found


if __name__ == "__main__":
    from importlib.metadata import version

    worst = {}
    for task in PAPER_TASKS:
        for appearance in MODES:
            means, shares = zip(*differences(task, appearance), strict=True)
            worst[f"{task}/{appearance}"] = {
                "mean": round(max(means), 3),
                "share_above_8": round(max(shares), 4),
            }
    print(
        json.dumps(
            {"mujoco": version("mujoco"), "dm_control": version("dm_control"), "worst_of_3_states": worst}
        )
    )
