"""Batches gathered ahead: the same samples, whatever was guessed, also over resumes; and most guesses are right."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from fakes import DotFactory, FakeImages, tiny_config
from tiny import AFTER_UPDATES, assert_same_on, generator, snapshot, tiny_agent, tiny_method

from softaug.config import Config
from softaug.learning.replay import Replay
from softaug.training import log
from softaug.training.run import train

FRAME = (6, 5, 3)


def make_replay(capacity=40, slack=20, episode=9):
    return Replay(
        None,
        capacity=capacity,
        slack=slack,
        episode_decisions=episode,
        frame_shape=FRAME,
        frame_stack=3,
        action_dim=2,
        discount=0.9,
    )


class Pair:
    """Two replays given the same transitions: one is asked to gather ahead, the other never."""

    def __init__(self, seed):
        print(f"seed {seed}")
        self.rng = np.random.default_rng(seed)
        self.replays = (make_replay(), make_replay())
        self.gathered = 0
        stacks = self.replays[0]._stacks

        def counted(slots, pin=False):
            self.gathered += len(slots)
            return stacks(slots, pin)

        self.replays[0]._stacks = counted
        self.begin()

    def begin(self):
        frame = self.rng.integers(0, 256, FRAME, dtype=np.uint8)
        for replay in self.replays:
            replay.begin_episode(frame)

    def step(self, terminated=False):
        action = self.rng.uniform(-1, 1, 2).astype(np.float32)
        reward, frame = float(self.rng.normal()), self.rng.integers(0, 256, FRAME, dtype=np.uint8)
        for replay in self.replays:
            replay.add(action, reward, terminated, frame)
        if terminated or self.rng.random() < 0.1:
            self.begin()

    def assert_same_samples(self, rngs, wanted):
        for size, n_step in wanted:
            ahead, plain = (
                replay.sample(size, rng, n_step) if n_step else [replay.sample_observations(size, rng)]
                for replay, rng in zip(self.replays, rngs, strict=True)
            )
            for left, right in zip(ahead, plain, strict=True):
                assert torch.equal(left, right) and left.stride() == right.stride()
        assert rngs[0].bit_generator.state == rngs[1].bit_generator.state


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("n_step", [1, 3])
def test_samples_are_the_same_whatever_happens_in_between(seed, n_step):
    """Growth changes, episodes end, the ring wraps several times, and the next samples may be others than guessed."""
    pair = Pair(seed)
    rngs = np.random.default_rng(seed), np.random.default_rng(seed)
    choices = [[(16, n_step)], [(16, n_step), (8, 0)], [(8, 0)]]
    for _ in range(5):
        pair.step()
    for _ in range(150):
        pair.assert_same_samples(rngs, choices[pair.rng.integers(3)])
        if pair.rng.random() < 0.9:
            pair.replays[0].gather_ahead(rngs[0], choices[pair.rng.integers(3)])
        for _ in range(pair.rng.choice([0, 1, 1, 1, 2, 5])):
            pair.step(terminated=pair.rng.random() < 0.1)


def test_the_sampling_range_is_what_is_stored_when_the_sample_is_asked_for():
    """The newest transition, which arrived after the guess, is drawn as often as any other."""
    replay = make_replay(capacity=400, episode=400)
    replay.begin_episode(np.zeros(FRAME, np.uint8))
    rng, newest = np.random.default_rng(0), []
    for number in range(1, 41):
        replay.add(np.zeros(2, np.float32), float(number), False, np.full(FRAME, number, np.uint8))
        batch = replay.sample(400, rng)
        drawn = batch.reward[:, 0].numpy()
        assert set(drawn) <= set(range(1, number + 1))
        np.testing.assert_array_equal(batch.next_obs[:, -1, 0, 0].numpy(), drawn)
        newest.append((drawn == number).mean() * number)
        replay.gather_ahead(rng, [(400, 1)])
    assert np.mean(newest) == pytest.approx(1, abs=0.1)


def test_in_mid_episode_nearly_everything_was_gathered_ahead():
    pair = Pair(1)
    rng = np.random.default_rng(0)
    replay = pair.replays[0]
    for _ in range(60):
        replay.add(np.zeros(2, np.float32), 0.0, False, np.zeros(FRAME, np.uint8))
    late = []
    for _ in range(30):
        replay.sample(64, rng)
        before = pair.gathered
        replay.gather_ahead(rng, [(64, 1)])
        replay._gatherer.submit(int).result()  # what was started is finished
        ahead = pair.gathered - before
        assert ahead == 128
        replay.add(np.zeros(2, np.float32), 0.0, False, np.zeros(FRAME, np.uint8))
        before = pair.gathered
        peek = np.random.default_rng()
        peek.bit_generator.state = rng.bit_generator.state
        guesses = list(replay._guesses)
        replay.sample(64, peek)
        late.append(pair.gathered - before)
        replay._guesses.extend(guesses)
    # The first guess is wrong (nothing had been added before it); later ones lack only the frame that was not there.
    assert max(late[2:]) <= 12 and np.mean(late[2:]) < 6


@pytest.mark.parametrize("method", ["sac", "soda_overlay", "soda_conv", "curl", "pad", "svea_overlay"])
@pytest.mark.parametrize("n_step", [1, 2])
def test_updates_are_the_same_with_and_without(method, n_step, device):
    agents = [
        tiny_agent(method, n_step=n_step, prefetch=prefetch, device=device) for prefetch in ("off", "on")
    ]
    assert [agent.prefetch for agent in agents] == [False, True]
    replays = [make_tiny_replay(tiny_method(method)) for _ in agents]
    for update in range(8):
        metrics = [agent.update(replay) for agent, replay in zip(agents, replays, strict=True)]
        assert_same_on(device, *metrics, 2 * AFTER_UPDATES)
        for replay in replays:
            rng = np.random.default_rng(update)
            shape = replay.frames.shape[1:]
            replay.add(np.zeros(2, np.float32), 1.0, False, rng.integers(0, 256, shape, dtype=np.uint8))
    assert agents[0].replay_rng.bit_generator.state == agents[1].replay_rng.bit_generator.state
    assert_same_on(device, *(snapshot(agent.sac) for agent in agents), 2 * AFTER_UPDATES)


def make_tiny_replay(config):
    from tiny import tiny_replay

    return tiny_replay(config)


class CountingImages(FakeImages):
    def __init__(self):
        self.threads = []

    def sample(self, count, height, width, rng):
        import threading

        self.threads.append(threading.current_thread().name)
        return super().sample(count, height, width, rng)


def test_overlay_images_are_sampled_ahead_once_each(device):
    from softaug.learning.agent import make_agent

    config = tiny_method("soda_overlay", prefetch="on", aux_every=2, device=device)
    images = CountingImages()
    agent = make_agent(config, (6, 16, 16), 2, images=images)
    replay = make_tiny_replay(config)
    for _ in range(8):
        agent.update(replay)
    agent.strong._ahead.result()
    # Four updates of SODA: the first samples for itself, each starts the next one's, none is sampled twice.
    assert len(images.threads) == 5
    assert [name.startswith("softaug-overlay") for name in images.threads] == [False] + [True] * 4


def metrics_of(run):
    lines = log.read_metrics(run / "metrics.jsonl")
    return [{key: value for key, value in line.items() if key not in log.WALL_CLOCK} for line in lines]


def final(run):
    return json.loads((run / "final_eval.json").read_text())


@pytest.mark.parametrize("method", ["sac", "soda_overlay"])
def test_a_run_and_its_resume_are_the_same_with_and_without(tmp_path, method):
    """Interrupted with a batch gathered and not used, and resumed with prefetching on or off."""

    def run(name, **settings):
        config = tiny_config(method=method, **settings)
        options = {"env_factory": DotFactory(terminates=True), "images": FakeImages(), "quiet": True}
        out = tmp_path / name
        train(config, out, **options, resume=out.exists())
        return out

    plain = run("off", prefetch="off")
    ahead = run("on", prefetch="on")
    assert metrics_of(plain) == metrics_of(ahead) and final(plain) == final(ahead)
    for second in ("on", "off"):
        out = tmp_path / f"stopped-{second}"
        stop_after(97, out, tiny_config(method=method, prefetch="on"))
        assert not (out / "final_eval.json").exists()
        run(out.name, prefetch=second)
        assert metrics_of(out) == metrics_of(plain) and final(out) == final(plain)


def stop_after(decisions, out, config: Config):
    """Train until that decision, as if Ctrl-C had come then."""
    from softaug.training.loop import Training

    decide = Training.decide

    def counting(self):
        decide(self)
        if self.counters.decisions == decisions:
            self.interrupt.requested = True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "decide", counting)
        train(config, out, env_factory=DotFactory(terminates=True), images=FakeImages(), quiet=True)


def test_auto_means_on_for_cuda_alone_and_changes_no_result():
    assert Config().prefetch == "auto" and not tiny_agent("sac").prefetch
    field = Config.__dataclass_fields__["prefetch"]
    assert field.metadata["runtime"] and field.metadata["later"]


def test_a_wrong_guess_of_the_overlay_is_not_used(device):
    """The generator continues otherwise than guessed, or the next batch has another size."""
    from softaug.learning.augment import RandomCrop, RandomOverlay

    crop, obs = RandomCrop(8), torch.zeros(5, 3, 10, 10, dtype=torch.uint8, device=device)
    for spoil in (lambda draws: torch.rand(1, generator=draws, device=device), lambda draws: None):
        results = []
        for guess in (False, True):
            overlay, draws = RandomOverlay(FakeImages()), generator(device, 3)
            if guess:
                overlay.fetch_ahead(lambda ahead: crop(obs, ahead), draws)
            spoil(draws)
            results.append(overlay(crop(obs[:4], draws), draws))
        assert_same_on(device, *results)


@pytest.mark.slow
def test_bench_data_prints_what_it_measured(capsys):
    from softaug.cli import main

    arguments = ["--updates", "4", "--repeats", "1", "--decisions", "250", "--sleep-ms", "1", "--json"]
    assert main(["bench", "data", *arguments]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["images"]["pack"] == {"images": 400, "size": 256} and result["images"]["speedup"] > 0
    assert [row["prefetch"] for row in result["waiting"]] == ["off", "on"]
    assert all(0 < row["waiting"] < 1 for row in result["waiting"])
