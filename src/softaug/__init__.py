"""Vision-based RL agents that still work when the world looks different (SODA and DMControl-GB)."""

__version__ = "0.1.0"
