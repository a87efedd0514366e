"""Replay: one ring of single frames (uint8, H x W x 3), stacks made when sampled.

Each slot holds a frame and, unless it is the last of its episode, the action taken there and what it
earned. An episode of T decisions fills T + 1 slots, so every frame is stored once. On disk the arrays are
memory-mapped files in the run directory: RAM stays bounded by the page cache, and resuming needs no copy.

The ring has `slack` slots more than it may sample from. What is written after a checkpoint therefore lands
only on slots which that checkpoint could no longer sample, and a killed run resumes exactly.

On disk each slot also has a CRC-32, computed at the checkpoint after it was written (`flush`); a resumed run checks
every slot it may sample (`verify`). In RAM the arrays are part of the checkpoint, whose checksums cover them.

`gather_ahead` guesses which slots the next samples will be and gathers their frames on a thread. A sample is always
drawn from the caller's generator and from what the replay holds when it is asked for; frames that were gathered ahead
are used where the guess was right and gathered again where it was not. So a sample is the same, bit for bit, with and
without guesses, and no guess is ever part of a checkpoint.
"""

from __future__ import annotations

import copy
import os
import zlib
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softaug.errors import UserError


class Batch(NamedTuple):
    """Raw, un-augmented transitions. Pixels are uint8 (B, 3k, H, W) in channels_last memory."""

    obs: Tensor
    action: Tensor
    """(B, A)"""
    reward: Tensor
    """(B, 1): discounted sum over up to n steps."""
    discount: Tensor
    """(B, 1): gamma^n, or 0 where the environment terminated. A time limit does not terminate: it bootstraps."""
    next_obs: Tensor

    def to(self, device: torch.device) -> Batch:
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in self))


class DamagedReplay(UserError):
    """The replay's files are not as the checkpoint left them."""


class Guess(NamedTuple):
    """Observations gathered before they were asked for."""

    slots: np.ndarray
    written: int
    """slots that had been written when it was made; later ones are yet unknown"""
    stacks: Future[Tensor]


class Replay:
    """The ring. `begin_episode` and `add` write; `sample` and `sample_observations` read.

    capacity: transitions that can be sampled. slack: decisions between checkpoints (see above).
    episode_decisions: length of an episode, from which both are turned into slots; where episodes end earlier, each
    takes a further slot, and checkpoints must lie closer together (the training loop sees to that).
    directory: where the arrays live, or None for RAM.
    """

    def __init__(
        self,
        directory: Path | None,
        *,
        capacity: int,
        slack: int,
        episode_decisions: int,
        frame_shape: tuple[int, int, int],
        frame_stack: int,
        action_dim: int,
        discount: float,
    ):
        self.window = slots_for(capacity, episode_decisions)
        self.slots = self.window + slots_for(slack, episode_decisions)
        self.frame_stack = frame_stack
        self.discount = discount
        self.added = 0  # slots ever written; slot number s lives at index s % slots
        self.episode_start = 0  # slot number of the current episode's first frame
        self._guesses: deque[Guess] = deque()
        self._gatherer = ThreadPoolExecutor(
            1, thread_name_prefix="softaug-gather"
        )  # begins with the first guess
        self._last_guess = (0, 0)  # slots written and the episode's first slot at that time
        self._growth = 0  # slots written between one guess and the next, in mid-episode
        layout: dict[str, tuple[tuple[int, ...], type]] = {
            "frames": (frame_shape, np.uint8),
            "actions": ((action_dim,), np.float32),
            "rewards": ((), np.float32),
            "terminated": ((), np.bool_),
            "last": ((), np.bool_),
            "starts": ((), np.int64),
        }
        self._new_files = directory is not None and not all(
            (directory / f"{name}.bin").exists() for name in layout
        )
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
        self._arrays = {
            name: _open_array(directory, name, (self.slots, *shape), dtype)
            for name, (shape, dtype) in layout.items()
        }
        self.frames, self.actions, self.rewards = (self._arrays[k] for k in ("frames", "actions", "rewards"))
        self.terminated, self.last, self.starts = (self._arrays[k] for k in ("terminated", "last", "starts"))
        self._directory = directory
        # Not one of the arrays above: runs begun before there were checksums have no such file.
        self._sums = (
            None if directory is None else _open_array(directory, "checksums", (self.slots,), np.uint32)
        )
        self._summed = 0  # slots whose checksum is written: all before this slot number

    def __len__(self) -> int:
        """Slots that can be sampled from."""
        return min(self.added, self.window)

    @staticmethod
    def disk_bytes(
        capacity: int, slack: int, episode_decisions: int, frame_shape: tuple[int, int, int], action_dim: int
    ) -> int:
        """Size of the arrays of such a replay."""
        slots = slots_for(capacity, episode_decisions) + slots_for(slack, episode_decisions)
        return slots * (int(np.prod(frame_shape)) + 4 * action_dim + 4 + 1 + 1 + 8 + 4)

    def begin_episode(self, frame: np.ndarray) -> None:
        """Store the first frame (H, W, 3) of an episode."""
        self.episode_start = self.added
        self._append(frame)

    def add(self, action: np.ndarray, reward: float, terminated: bool, next_frame: np.ndarray) -> None:
        """Store what was done at the newest frame and the frame it led to."""
        here = (self.added - 1) % self.slots
        self.actions[here] = action
        self.rewards[here] = reward
        self.terminated[here] = terminated
        self.last[here] = False
        self._append(next_frame)

    def sample(self, batch_size: int, rng: np.random.Generator, n_step: int = 1) -> Batch:
        """Uniform transitions; rewards over up to `n_step` decisions, fewer at an episode's end."""
        first = self._draw(batch_size, rng, self._has_transition)
        end, reward, discount = self._follow(first, n_step)
        return Batch(
            obs=self._observations(first),
            action=torch.from_numpy(self.actions[first % self.slots]),
            reward=torch.from_numpy(reward)[:, None],
            discount=torch.from_numpy(discount)[:, None],
            next_obs=self._observations(end),
        )

    def sample_observations(self, batch_size: int, rng: np.random.Generator) -> Tensor:
        """Uniform observations (B, 3k, H, W), for tasks that need no transitions."""
        return self._observations(self._draw(batch_size, rng, self._has_stack))

    def gather_ahead(
        self, rng: np.random.Generator, wanted: Sequence[tuple[int, int]], *, pin: bool = False
    ) -> None:
        """Start to gather the next samples: `wanted` has (batch size, n_step) of each, n_step 0 for observations.

        The guess: `rng` as it is, and as many new transitions as came since the last guess. It fails for a whole
        sample when an episode ends in between, and for single observations that have not arrived yet.
        pin: into page-locked memory, from which a GPU copies by itself.
        """
        written, start = self._last_guess
        if start == self.episode_start:
            self._growth = self.added - written
        self._last_guess = (self.added, self.episode_start)
        added, rng = self.added + self._growth, copy.deepcopy(rng)
        slots: list[np.ndarray] = []
        for batch_size, n_step in wanted:
            valid = self._has_transition if n_step else self._has_stack
            slots.append(self._draw(batch_size, rng, valid, added))
            if n_step:
                slots.append(self._follow(slots[-1], n_step, added)[0])
        self._guesses = deque(
            Guess(
                guess, self.added, self._gatherer.submit(self._stacks, np.minimum(guess, self.added - 1), pin)
            )
            for guess in slots
        )

    def flush(self) -> None:
        """Hand what was written to the file system (a checkpoint is only as good as the replay below it)."""
        self._sum_new_slots()
        for array in (*self._arrays.values(), self._sums):
            if isinstance(array, np.memmap):
                array.flush()

    def state(self) -> dict[str, Any]:
        """The cursors; the frames stay where they are, unless they are in RAM."""
        tree: dict[str, Any] = {"added": self.added, "episode_start": self.episode_start, "slots": self.slots}
        if self._sums is not None:
            self._sum_new_slots()  # `flush` has done it where a checkpoint is made
            tree["sum"] = self._sum_of_sums(self.added)
        else:
            filled = min(self.added, self.slots)
            tree["arrays"] = {name: array[:filled].copy() for name, array in self._arrays.items()}
        return tree

    def verify(self, tree: dict[str, Any]) -> None:
        """Refuse files in which anything that the checkpoint `tree` may sample is not as it was written.

        Says nothing of a replay in RAM, nor of a checkpoint made before there were checksums.
        """
        self._check_fits(tree)
        if self._sums is None or not has_checksums(tree):
            return
        whole = self._whole_slots(tree["added"])
        wrong = sum(int(self._sums[slot % self.slots]) != self._sum_of_slot(slot) for slot in whole)
        if wrong or tree["sum"] != self._sum_of_sums(tree["added"]):
            what = f"{wrong:,} of {len(whole):,} slots" if wrong else "the newest slot or the checksums"
            raise DamagedReplay(
                f"the replay in {self._directory} is damaged ({what} changed since the checkpoint), so the run cannot "
                "be resumed exactly; restore these files from a copy or start a new run"
            )

    def load_state(self, tree: dict[str, Any]) -> None:
        self._check_fits(tree)
        self.added, self.episode_start = tree["added"], tree["episode_start"]
        self._guesses.clear()
        for name, values in tree.get("arrays", {}).items():
            self._arrays[name][: len(values)] = values
        # A killed run may have written past its last checkpoint: the newest slot has no transition yet.
        if self.added:
            self.last[(self.added - 1) % self.slots] = True
        # Slots of a run begun before there were checksums get theirs with the next checkpoint.
        self._summed = max(0, self.added - 1 if has_checksums(tree) else self.added - len(self))

    def _check_fits(self, tree: dict[str, Any]) -> None:
        if tree["slots"] != self.slots:
            raise UserError(
                f"the replay on disk has {tree['slots']} slots, this run needs {self.slots}; start a new run"
            )
        if tree["added"] and self._new_files:
            raise UserError(
                "the run's replay files are missing, so it cannot be resumed exactly; start a new run"
            )

    def _sum_new_slots(self) -> None:
        """Write the checksums of the slots since the last call; the newest slot still lacks its transition."""
        if self._sums is None:
            return
        whole = self._whole_slots(self.added)
        for slot in range(max(self._summed, whole.start), whole.stop):
            self._sums[slot % self.slots] = self._sum_of_slot(slot)
        self._summed = max(0, self.added - 1)

    def _whole_slots(self, added: int) -> range:
        """The slots that can be sampled once `added` are written, without the newest, whose transition is to come."""
        return range(max(0, added - self.window), max(0, added - 1))

    def _sum_of_slot(self, slot: int) -> int:
        index = slot % self.slots
        value = 0
        for array in self._arrays.values():
            value = zlib.crc32(array[index].data, value)  # no copy: a row, or a single value, as a buffer
        return value

    def _sum_of_sums(self, added: int) -> int:
        """Of the checksums of every slot that can be sampled, and of the newest slot, which has none yet."""
        assert self._sums is not None
        newest = (added - 1) % self.slots
        whole = np.array(self._whole_slots(added), np.int64) % self.slots
        value = zlib.crc32(self.frames[newest], zlib.crc32(self._sums[whole].tobytes()))
        return zlib.crc32(self.starts[newest].tobytes(), value)

    def _append(self, frame: np.ndarray) -> None:
        index = self.added % self.slots
        self.frames[index] = frame
        self.last[index] = True  # until `add` says otherwise
        self.starts[index] = self.episode_start
        self.added += 1

    def _draw(self, count: int, rng: np.random.Generator, valid: Any, added: int | None = None) -> np.ndarray:
        """`count` slot numbers, uniform over the valid ones, by rejection.

        added: draw as if that many slots had been written, the new ones continuing the current episode.
        """
        added = self.added if added is None else added
        oldest = added - min(added, self.window)
        slots = rng.integers(oldest, added, count)
        for _ in range(1000):
            wrong = np.flatnonzero(~valid(slots, added))
            if not len(wrong):
                return slots
            slots[wrong] = rng.integers(oldest, added, len(wrong))
        raise UserError("the replay holds no whole transition yet; act longer before the first update")

    def _follow(
        self, first: np.ndarray, n_step: int, added: int | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The slots up to `n_step` decisions later, the discounted rewards on the way, and the discount there."""
        reward = np.zeros(len(first), np.float32)
        discount = np.ones(len(first), np.float32)
        slot = first.copy()
        for _ in range(n_step):
            here = slot % self.slots
            going = ~self._is_last(slot, added) & (discount > 0)
            reward += np.where(going, discount * self.rewards[here], 0)
            discount *= np.where(going, self.discount * ~self.terminated[here], 1).astype(np.float32)
            slot += going
        return slot, reward, discount

    def _has_stack(self, slots: np.ndarray, added: int | None = None) -> np.ndarray:
        # An episode cut by the window's tail lacks the older frames of its first stacks.
        added = self.added if added is None else added
        oldest = added - min(added, self.window)
        starts = np.where(slots < self.added, self.starts[slots % self.slots], self.episode_start)
        return np.maximum(slots - self.frame_stack + 1, starts) >= oldest

    def _has_transition(self, slots: np.ndarray, added: int | None = None) -> np.ndarray:
        return self._has_stack(slots, added) & ~self._is_last(slots, added)

    def _is_last(self, slots: np.ndarray, added: int | None = None) -> np.ndarray:
        """Whether no decision was taken there (yet)."""
        last = self.last[slots % self.slots]
        if added is None or added == self.added:
            return last
        return np.where(slots < self.added - 1, last, slots == added - 1)

    def _observations(self, slots: np.ndarray) -> Tensor:
        """`_stacks(slots)`, from what was gathered ahead where that was a right guess."""
        guess = self._guesses.popleft() if self._guesses else None
        if guess is None or len(guess.slots) != len(slots):
            return self._stacks(slots)
        stacks = guess.stacks.result()
        wrong = np.flatnonzero((guess.slots != slots) | (slots >= guess.written))
        if len(wrong):
            stacks[torch.from_numpy(wrong)] = self._stacks(slots[wrong])
        return stacks

    def _stacks(self, slots: np.ndarray, pin: bool = False) -> Tensor:
        """Observations (B, 3k, H, W) ending at `slots`; before an episode's start its first frame repeats."""
        starts = self.starts[slots % self.slots]
        height, width, colours = self.frames.shape[1:]
        shape = (len(slots), height, width, self.frame_stack * colours)
        stacks = torch.empty(shape, dtype=torch.uint8, pin_memory=pin)
        out = stacks.numpy().reshape(*shape[:3], self.frame_stack, colours)
        for k in range(self.frame_stack):
            frames = self.frames[np.maximum(slots - (self.frame_stack - 1 - k), starts) % self.slots]
            for colour in range(colours):  # byte by byte: six times faster than copying three at a time
                out[:, :, :, k, colour] = frames[:, :, :, colour]
        return stacks.permute(0, 3, 1, 2)


def has_checksums(tree: dict[str, Any]) -> bool:
    """Whether a checkpoint's replay state can be checked: with files from before there were checksums, it cannot."""
    return "sum" in tree or "arrays" in tree


def slots_for(decisions: int, episode_decisions: int) -> int:
    """Slots that many decisions fill: one frame each and a first frame per episode begun."""
    return decisions + -(-decisions // episode_decisions) + 1


def _open_array(directory: Path | None, name: str, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    if directory is None:
        return np.zeros(shape, dtype)
    path = directory / f"{name}.bin"
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if not path.exists():
        _allocate(path, size)
    if path.stat().st_size != size:
        raise UserError(f"{path} has {path.stat().st_size} bytes instead of {size}; start a new run")
    return np.memmap(path, dtype=dtype, mode="r+", shape=shape)


def _allocate(path: Path, size: int) -> None:
    """Create a file of zeros with all its blocks: a disk that fills up later would kill the run with SIGBUS."""
    with path.open("wb") as file:
        if not hasattr(os, "posix_fallocate"):
            file.truncate(size)
            return
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            path.unlink()
            raise UserError(
                f"cannot reserve {size / 1e9:.2f} GB for the replay at {path} ({error.strerror}); free some space, "
                "choose another --out or a smaller --replay-capacity"
            ) from None
