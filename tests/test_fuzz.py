"""A few hundred of the cases that `make fuzz` plays by the thousands, and whether they would notice anything."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "fuzz"))

import run as fuzz_run
from cases import Cases, Finding, status_of
from corpus import dot_env, make_corpus

COUNT = 300
SEED = int(os.environ.get("SOFTAUG_FUZZ_SEED", "0"))


@pytest.mark.slow
def test_300_cases_without_a_finding() -> None:
    print(f"seed {SEED}")
    summary = fuzz_run.fuzz(COUNT, SEED, quiet=True)
    assert not summary["findings"], summary["findings"][:3]
    assert len(summary["endings"]) > 15, "the cases should be of many kinds"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    make_corpus(folder)
    return folder


@pytest.fixture
def cases(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cases]:
    monkeypatch.setenv("SOFTAUG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("softaug.envs.make_env", dot_env)
    monkeypatch.setattr("softaug.evaluation.gallery.make_env", dot_env)
    yield Cases(corpus, tmp_path / "work")


def test_the_undamaged_command_lines_work(cases: Cases) -> None:
    """Otherwise the mutated ones would all be refused for the same reason."""
    cases.work.mkdir()
    for words in cases.lines():
        # `diagnose` needs a real physics engine.
        if words[0] not in ("train", "data", "diagnose"):
            assert status_of(words).endswith(" 0"), words


def test_unnoticed_damage_is_a_finding(cases: Cases, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a policy that acts differently, as one flipped bit would make it."""
    cases.actions = {which: action + np.float32(1e-3) for which, action in cases.actions.items()}
    monkeypatch.setattr("cases.damage", lambda rng, file: None)
    cases.work.mkdir()
    with pytest.raises(Finding, match="acts differently"):
        cases.policy(random.Random(0))


def test_a_case_is_a_function_of_seed_and_number(cases: Cases) -> None:
    assert [cases.play(3, n) for n in range(12)] == [cases.play(3, n) for n in range(12)]
