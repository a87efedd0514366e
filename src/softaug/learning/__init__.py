"""The learner: replay, augmentations, networks, SAC, auxiliary tasks, and the agent that wires them together.

Knows observations as arrays only: no environment is made and no file of a run is read here. May import `media` (overlay
images), `storage` and what is below.
"""
