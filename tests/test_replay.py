"""The ring equals a plain list of episodes, never crosses an episode, and survives what follows a checkpoint.

Every frame is stamped with its slot number, and so is the action taken there, so that a batch tells which
transitions were drawn without looking into the replay.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from softaug.errors import UserError
from softaug.learning.replay import Batch, DamagedReplay, Replay

DISCOUNT = 0.9
SHAPE = (2, 4, 3)


def frame_of(slot: int) -> np.ndarray:
    frame = np.zeros(SHAPE, np.uint8)
    frame.reshape(-1)[:4] = np.frombuffer(np.uint32(slot).tobytes(), np.uint8)
    frame[1] = slot % 251
    return frame


def slots_of(obs: Tensor) -> np.ndarray:
    """The slot numbers (B, k) of the frames in raw observations (B, 3k, H, W)."""
    frames = obs.permute(0, 2, 3, 1).reshape(len(obs), *SHAPE[:2], -1, 3)  # (B, H, W, k, 3)
    frames = frames.permute(0, 3, 1, 2, 4).numpy()
    slots = (
        np.ascontiguousarray(frames.reshape(*frames.shape[:2], -1)[:, :, :4])
        .view(np.uint32)[..., 0]
        .astype(int)
    )
    naive = np.stack([[frame_of(slot) for slot in row] for row in slots])
    assert np.array_equal(frames, naive)
    return slots


@dataclass
class Episodes:
    """Everything ever written, as a list of episodes; the naive replay."""

    frame_stack: int
    window: int
    starts: list[int] = field(default_factory=list)
    rewards: dict[int, float] = field(default_factory=dict)  # by slot; none for an episode's last slot
    terminated: set[int] = field(default_factory=set)
    added: int = 0

    def start_of(self, slot: int) -> int:
        return max(start for start in self.starts if start <= slot)

    def stack(self, slot: int) -> list[int]:
        start = self.start_of(slot)
        return [max(slot - i, start) for i in reversed(range(self.frame_stack))]

    def samplable(self) -> set[int]:
        oldest = max(0, self.added - self.window)
        return {slot for slot in self.rewards if min(self.stack(slot)) >= oldest}

    def transition(self, slot: int, n_step: int) -> tuple[float, float, list[int]]:
        """Reward, discount and next stack: the definition, one decision at a time."""
        reward, discount = 0.0, 1.0
        for _ in range(n_step):
            if slot not in self.rewards:
                break
            reward += discount * self.rewards[slot]
            discount *= DISCOUNT
            slot += 1
            if slot - 1 in self.terminated:
                discount = 0.0
                break
        return reward, discount, self.stack(slot)


class Writer:
    """Writes the same stamped episodes to a replay and to the naive list."""

    def __init__(self, replay: Replay, seed: int = 0):
        self.replay = replay
        self.naive = Episodes(replay.frame_stack, replay.window)
        self.rng = np.random.default_rng(seed)

    def begin(self) -> None:
        self.naive.starts.append(self.naive.added)
        self.replay.begin_episode(frame_of(self.naive.added))
        self.naive.added += 1

    def step(self, *, terminated: bool = False) -> None:
        here, reward = self.naive.added - 1, float(np.float32(self.rng.normal()))
        self.replay.add(np.array([here], np.float32), reward, terminated, frame_of(here + 1))
        self.naive.rewards[here] = reward
        if terminated:
            self.naive.terminated.add(here)
        self.naive.added += 1

    def episode(self, length: int, *, terminated: bool = False) -> None:
        self.begin()
        for t in range(length):
            self.step(terminated=terminated and t == length - 1)


def make_replay(directory: Path | None = None, **overrides: int) -> Replay:
    values = {"capacity": 50, "slack": 10, "episode_decisions": 10, "frame_stack": 3, **overrides}
    return Replay(directory, frame_shape=SHAPE, action_dim=1, discount=DISCOUNT, **values)


def check(batch: Batch, naive: Episodes, n_step: int) -> np.ndarray:
    """Compare a batch with the naive list; returns the slots drawn."""
    drawn = batch.action[:, 0].numpy().astype(int)
    assert set(drawn) <= naive.samplable()
    expected = [naive.transition(slot, n_step) for slot in drawn]
    assert np.array_equal(slots_of(batch.obs), [naive.stack(slot) for slot in drawn])
    assert np.array_equal(slots_of(batch.next_obs), [stack for _, _, stack in expected])
    np.testing.assert_allclose(batch.reward[:, 0], [r for r, _, _ in expected], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(batch.discount[:, 0], [d for _, d, _ in expected], rtol=1e-6)
    return drawn


def equal(left: Batch, right: Batch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@given(
    lengths=st.lists(st.integers(1, 10), min_size=1, max_size=25),
    endings=st.lists(st.booleans(), min_size=25, max_size=25),
    unfinished=st.booleans(),
    n_step=st.integers(1, 5),
    frame_stack=st.integers(1, 4),
    capacity=st.sampled_from([12, 30, 500]),
)
def test_batches_equal_the_list_of_episodes(lengths, endings, unfinished, n_step, frame_stack, capacity):
    """Any episodes, any wrap: rewards, discounts, stacks, and nothing outside the window."""
    writer = Writer(make_replay(capacity=capacity, frame_stack=frame_stack))
    for length, terminated in zip(lengths, endings, strict=False):
        writer.episode(length, terminated=terminated)
        if writer.naive.samplable():
            check(writer.replay.sample(16, np.random.default_rng(length), n_step), writer.naive, n_step)
    if unfinished:
        writer.begin()
        writer.step()
    batch = writer.replay.sample(64, np.random.default_rng(0), n_step)
    check(batch, writer.naive, n_step)
    stacks = slots_of(writer.replay.sample_observations(64, np.random.default_rng(1)))
    oldest = max(0, writer.naive.added - writer.naive.window)
    assert np.array_equal(stacks, [writer.naive.stack(slot) for slot in stacks[:, -1]])
    assert stacks.min() >= oldest


def test_layout_and_types_of_a_batch():
    writer = Writer(make_replay())
    writer.episode(10)
    batch = writer.replay.sample(4, np.random.default_rng(0))
    assert batch.obs.shape == batch.next_obs.shape == (4, 9, 2, 4)
    assert batch.obs.dtype == torch.uint8 and batch.obs.is_contiguous(memory_format=torch.channels_last)
    assert batch.action.shape == batch.reward.shape == batch.discount.shape == (4, 1)
    assert all(t.dtype == torch.float32 for t in (batch.action, batch.reward, batch.discount))


def test_time_limit_bootstraps_and_termination_does_not():
    for terminated, discount in ((False, DISCOUNT), (True, 0.0)):
        writer = Writer(make_replay())
        writer.episode(1, terminated=terminated)
        assert float(writer.replay.sample(1, np.random.default_rng(0)).discount) == pytest.approx(discount)


def test_the_window_holds_at_least_capacity_transitions():
    writer = Writer(make_replay(capacity=40, slack=10))
    for _ in range(12):
        writer.episode(10)
        assert len(writer.naive.samplable()) >= min(40, 10 * len(writer.naive.starts))


def test_sampling_is_uniform_over_everything_samplable():
    """Chi-square with a fixed seed, after the ring has wrapped and cut an episode."""
    writer = Writer(make_replay(capacity=37, slack=5))
    for length in (10, 7, 10, 10, 3, 10, 10, 6, 10):
        writer.episode(length)
    rng = np.random.default_rng(0)
    drawn = np.concatenate(
        [writer.replay.sample(500, rng).action[:, 0].numpy().astype(int) for _ in range(20)]
    )
    slots, counts = np.unique(drawn, return_counts=True)
    assert set(slots) == writer.naive.samplable()
    expected = len(drawn) / len(slots)
    chi_square = ((counts - expected) ** 2 / expected).sum()
    degrees = len(slots) - 1
    assert chi_square < degrees + 4 * (2 * degrees) ** 0.5


def test_sampling_depends_only_on_the_generator():
    writer = Writer(make_replay())
    writer.episode(10)
    first = writer.replay.sample(8, np.random.default_rng(3))
    assert equal(first, writer.replay.sample(8, np.random.default_rng(3)))


def test_an_empty_replay_says_what_to_do():
    writer = Writer(make_replay())
    writer.begin()
    with pytest.raises(UserError, match="act longer"):
        writer.replay.sample(4, np.random.default_rng(0))


def test_disk_and_ram_are_the_same(tmp_path):
    disk, ram = Writer(make_replay(tmp_path / "replay")), Writer(make_replay())
    for length in (10, 4, 10, 10, 10, 9, 10):
        disk.episode(length)
        ram.episode(length)
        batches = [w.replay.sample(16, np.random.default_rng(length), 2) for w in (disk, ram)]
        assert equal(*batches)


# --- exact resume ----------------------------------------------------------------------------------------


@given(data=st.data())
def test_what_follows_a_checkpoint_cannot_change_what_it_samples(data, tmp_path_factory):
    """Kill anywhere within `slack` decisions after a checkpoint: the reopened replay is the checkpoint's."""
    length, slack = 6, data.draw(st.integers(1, 15), label="slack")
    values = {
        "capacity": data.draw(st.sampled_from([7, 20, 40])),
        "slack": slack,
        "episode_decisions": length,
    }
    directory = tmp_path_factory.mktemp("replay")
    writer = Writer(make_replay(directory, **values))

    def advance(w: Writer, decisions: int) -> None:
        for _ in range(decisions):
            if not w.naive.starts or w.naive.added - w.naive.starts[-1] > length:
                w.begin()
            w.step()
            over = w.naive.added - w.naive.starts[-1] > length
            if over and data.draw(st.booleans(), label="reset at once"):
                w.begin()  # the loop may store the next episode's first frame before the next decision

    advance(writer, data.draw(st.integers(2, 90), label="decisions before the checkpoint"))
    writer.replay.flush()
    state = writer.replay.state()
    expected = [writer.replay.sample(12, np.random.default_rng(seed), 3) for seed in range(3)]
    advance(writer, data.draw(st.integers(0, slack), label="decisions before the kill"))

    resumed = make_replay(directory, **values)
    resumed.verify(state)
    resumed.load_state(state)
    resumed.verify(state)
    assert all(
        equal(batch, resumed.sample(12, np.random.default_rng(seed), 3))
        for seed, batch in enumerate(expected)
    )


@pytest.mark.parametrize("memory", ["disk", "ram"])
def test_a_resumed_replay_goes_on_like_one_never_interrupted(memory, tmp_path):
    values = {"capacity": 20, "slack": 10, "episode_decisions": 10}
    whole = Writer(make_replay(**values))
    directory = tmp_path / "replay" if memory == "disk" else None
    killed = Writer(make_replay(directory, **values))
    for w in (whole, killed):
        for _ in range(4):
            w.episode(10)
        w.begin()
        w.step()
    killed.replay.flush()
    state = killed.replay.state()
    for _ in range(9):  # what the killed process still wrote, with other rewards
        killed.replay.add(np.array([-1], np.float32), -99.0, True, frame_of(123456))
    killed.replay = make_replay(directory, **values)
    killed.replay.load_state(state)
    for round_ in range(3):
        for w in (whole, killed):
            for _ in range(9):
                w.step()
            w.begin()
            w.step()
        batches = [w.replay.sample(32, np.random.default_rng(round_), 3) for w in (whole, killed)]
        assert equal(*batches)
        check(batches[0], whole.naive, 3)


ARRAYS = ["frames", "actions", "rewards", "terminated", "last", "starts", "checksums"]


@pytest.mark.parametrize("name", ARRAYS)
def test_every_slot_that_can_be_sampled_is_checked(tmp_path, name):
    values = {"capacity": 20, "slack": 10, "episode_decisions": 10}
    writer = Writer(make_replay(tmp_path, **values))
    for decisions in (7, 10, 10, 10, 10, 3):  # it has come round; a checkpoint in the middle of each episode
        writer.episode(decisions)
        writer.replay.flush()
    state = writer.replay.state()
    array = np.memmap(tmp_path / f"{name}.bin", np.uint8, "r+").reshape(writer.replay.slots, -1)
    added = state["added"]
    assert added > writer.replay.slots
    noticed = []
    for slot in range(added - writer.replay.slots, added):
        array[slot % writer.replay.slots, -1] ^= 1
        try:
            make_replay(tmp_path, **values).verify(state)
        except DamagedReplay:
            noticed.append(slot)
        array[slot % writer.replay.slots, -1] ^= 1
    # The newest slot has a frame but no transition yet.
    end = added if name in ("frames", "starts") else added - 1
    assert noticed == list(range(added - writer.replay.window, end))


def test_a_checkpoint_sums_only_what_is_new(tmp_path, monkeypatch):
    summed = []
    sum_of_slot = Replay._sum_of_slot
    monkeypatch.setattr(
        Replay, "_sum_of_slot", lambda self, slot: (summed.append(slot), sum_of_slot(self, slot))[1]
    )
    writer = Writer(make_replay(tmp_path))
    for _ in range(4):
        writer.episode(10)
        writer.replay.flush()
        writer.replay.state()
    assert summed == list(range(43))


def test_a_replay_of_another_run_is_noticed(tmp_path):
    states = []
    for seed in (1, 2):
        writer = Writer(make_replay(tmp_path / str(seed)), seed=seed)
        writer.episode(10)
        writer.replay.flush()
        states.append(writer.replay.state())
    with pytest.raises(DamagedReplay, match="the newest slot or the checksums"):
        make_replay(tmp_path / "1").verify(states[1])


def test_state_of_a_disk_replay_holds_no_frames(tmp_path):
    writer = Writer(make_replay(tmp_path / "replay"))
    writer.episode(10)
    assert not any(isinstance(value, (np.ndarray, Tensor, dict)) for value in writer.replay.state().values())


def test_resuming_without_the_files_is_an_error(tmp_path):
    writer = Writer(make_replay(tmp_path / "replay"))
    writer.episode(10)
    state = writer.replay.state()
    with pytest.raises(UserError, match="missing"):
        make_replay(tmp_path / "elsewhere").load_state(state)
    (tmp_path / "replay" / "rewards.bin").unlink()
    with pytest.raises(UserError, match="missing"):
        make_replay(tmp_path / "replay").load_state(state)


def test_files_of_another_size_are_an_error(tmp_path):
    make_replay(tmp_path / "replay")
    with pytest.raises(UserError, match="bytes"):
        make_replay(tmp_path / "replay", capacity=60)


def test_disk_bytes_is_what_the_files_take(tmp_path):
    make_replay(tmp_path / "replay")
    written = sum(path.stat().st_size for path in (tmp_path / "replay").iterdir())
    assert Replay.disk_bytes(50, 10, 10, SHAPE, 1) == written
