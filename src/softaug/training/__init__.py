"""One run: the loop, the environment behind a stepper, metrics, and the preparation of its directory.

`run.train` wires the parts; `loop.Training` is the loop. May import `evaluation`, `learning`, `envs` and what is below.
"""
