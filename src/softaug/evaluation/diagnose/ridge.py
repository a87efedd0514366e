"""Ridge regression in closed form, for many targets and more features than samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

STRENGTHS = 10.0 ** np.arange(-6, 4)
"""Strengths of the ridge penalty to choose from, in units of the features' mean squared norm."""
CONSTANT = 1e-6
"""A component whose standard deviation (m, rad, m/s, rad/s or 1) is below this does not vary: there is nothing to explain."""


@dataclass(frozen=True)
class Ridge:
    """y = (x - x_mean) weights + y_mean, for C components at once."""

    weights: np.ndarray
    """(D, C)"""
    x_mean: np.ndarray
    y_mean: np.ndarray
    constant: np.ndarray
    """bool (C,): components that did not vary where it was fitted"""

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return (x - self.x_mean) @ self.weights + self.y_mean


def fit_ridge(x: np.ndarray, y: np.ndarray, fitted: np.ndarray, validation: np.ndarray) -> Ridge:
    """x (n, D), y (n, C), two masks (n,). Each component has the strength that does best on `validation`; then both parts
    are fitted with it."""
    candidates = _ridge_weights(x[fitted], y[fitted], STRENGTHS)  # (strengths, D, C)
    guesses = (x[validation] - x[fitted].mean(0)) @ candidates + y[fitted].mean(0)
    best = np.square(guesses - y[validation]).sum(1).argmin(0)
    both = fitted | validation
    weights = _ridge_weights(x[both], y[both], STRENGTHS)[best, :, np.arange(y.shape[1])].T
    return Ridge(weights, x[both].mean(0), y[both].mean(0), y[both].std(0) < CONSTANT)


def _ridge_weights(x: np.ndarray, y: np.ndarray, strengths: np.ndarray) -> np.ndarray:
    """(strengths, D, C): w = x' (x x' + strength)^-1 y of centered x and y, the closed form for D larger than n."""
    x, y = x - x.mean(0), y - y.mean(0)
    values, vectors = np.linalg.eigh(x @ x.T)
    scale = max(float(values.mean()), np.finfo(np.float64).tiny)
    shrunk = 1 / (np.maximum(values, 0) + strengths[:, None] * scale)
    return x.T @ (vectors @ (shrunk[:, :, None] * (vectors.T @ y)))


def score(ridge: Ridge, x: np.ndarray, y: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
    """R² of each component: 1 - squared error / squared distance from the mean of y; None where y does not vary."""
    errors, spread = np.square(ridge(x) - y).mean(0), y.var(0)
    known = ~ridge.constant & (np.sqrt(spread) >= CONSTANT)
    values = [float(1 - e / s) if ok else None for e, s, ok in zip(errors, spread, known, strict=True)]
    at_least_0 = [max(value, 0.0) for value in values if value is not None]
    mean = float(np.mean(at_least_0)) if at_least_0 else None
    return {"mean": mean, "components": dict(zip(names, values, strict=True))}
