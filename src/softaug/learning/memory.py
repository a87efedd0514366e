"""What fits into memory, and keeping freed memory in the process instead of page-faulting it in at every update."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from pathlib import Path

from softaug.config import Config
from softaug.errors import UserError

# Parameters of glibc's mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> bool:
    """Tell glibc to reuse large blocks instead of unmapping them; False where there is no glibc.

    Updates on the CPU are faster with it, and their results the same.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL("libc.so.6")
    return bool(libc.mallopt(M_MMAP_THRESHOLD, 1 << 30) and libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1))


def check_memory(config: Config, action_dim: int, *, training: bool, replay_bytes: int = 0) -> None:
    """Refuse networks and batches that cannot fit, before PyTorch tries to allocate them.

    A lower bound: what passes may still be too much, what is refused can never work.
    """
    needed = replay_bytes + least_bytes(config, action_dim, training=training)
    have = memory_bytes()
    if have is not None and needed > have:
        raise UserError(
            f"networks, batches and a replay in RAM of these sizes need at least {needed / 1e9:,.1f} GB of memory, but "
            f"there are {have / 1e9:,.1f} GB; lower hidden_dim, projection_dim, filters, batch_size, aux_batch_size or "
            "replay_capacity"
        )


def least_bytes(config: Config, action_dim: int, *, training: bool) -> int:
    """Memory that the networks and, in training, the larger batch take at the very least."""
    channels, size = 3 * config.frame_stack, config.crop_size
    encoder = activations = 0
    for filters, stride in zip(config.filters, config.strides, strict=True):
        size = (size - 3) // stride + 1
        encoder += 9 * channels * filters
        activations += filters * size**2
        channels = filters
    projection, hidden = config.projection_dim, config.hidden_dim
    head = channels * size**2 * projection + (projection + action_dim) * hidden + hidden**2
    if not training:
        return 4 * (encoder + head)
    weights = (
        encoder + 2 * head
    )  # actor and one of the Q functions, each with its gradient and Adam's two moments
    batch = max(config.batch_size, config.aux_batch_size if config.row.auxiliary else 0)
    pixels = 3 * config.frame_stack * config.image_size**2
    return 16 * weights + batch * (pixels + 4 * activations)


def memory_bytes() -> int | None:
    """The machine's memory or this container's part of it; None where the system does not say."""
    limits = []
    with contextlib.suppress(ValueError, OSError, AttributeError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with contextlib.suppress(ValueError, OSError):
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(limits, default=None)
