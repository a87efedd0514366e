"""Environments of the user's own: imported by name, as stacked pixels, with colors and videos on their images."""
