"""Run a policy written by `softaug export RUN --format onnx`, without softaug, PyTorch or a simulator.

pip install numpy onnxruntime
python run_exported_policy.py policy.onnx
"""

import json
import sys

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
facts = session.get_modelmeta().custom_metadata_map
_, height, width = json.loads(facts["observation_shape"])
frame_stack = int(facts["frame_stack"])


class Camera:
    """Put your robot here: an RGB image after each action. This one shows noise for ten decisions."""

    def reset(self):
        self.left, self.rng = 10, np.random.default_rng(0)
        return self.image()

    def step(self, action):
        self.left -= 1
        return self.image(), self.left == 0

    def image(self):
        return self.rng.integers(0, 256, (height, width, 3), dtype=np.uint8)


env, over = Camera(), False
frames = [env.reset().transpose(2, 0, 1)] * frame_stack
while not over:
    action = session.run(["action"], {"pixels": np.concatenate(frames)[None]})[0][0]
    print(np.round(action, 3))
    frame, over = env.step(action)
    frames = [*frames[1:], frame.transpose(2, 0, 1)]
