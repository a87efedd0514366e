"""Search spaces: what a file may say, and what is refused with a name to correct it."""

from __future__ import annotations

import json
import sys

import pytest

from softaug.config import make_config
from softaug.errors import UserError
from softaug.tuning.space import DEFAULT_SPACE, Parameter, default_space, make_space, read_space

optuna = pytest.importorskip("optuna")


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_json_space(tmp_path):
    space, _ = read_space(
        write(
            tmp_path / "space.json",
            {
                "actor_lr": {"low": 1e-4, "high": 1e-2, "log": True},
                "n_step": {"low": 1, "high": 5, "type": "int"},
                "discount": {"low": 0, "high": 1},
                "filters": {"choices": [[16, 32], [32, 32]]},
                "compile": {"choices": [False, True]},
            },
        )
    )
    assert space.parameters == (
        Parameter("actor_lr", 1e-4, 1e-2, log=True),
        Parameter("n_step", 1, 5, integer=True),
        Parameter("discount", 0, 1),
        Parameter("filters", choices=((16, 32), (32, 32))),
        Parameter("compile", choices=(False, True)),
    )


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib")
def test_a_toml_space(tmp_path):
    text = "[critic_tau]\nlow = 0.01\nhigh = 0.1\nlog = true\n[batch_size]\nchoices = [64, 128]\n"
    space, _ = read_space(write(tmp_path / "space.toml", text))
    assert space.names == ["critic_tau", "batch_size"]


def test_values_lie_in_the_space_and_have_the_types_of_the_config():
    content = {
        "n_step": {"low": 1, "high": 5},
        "critic_lr": {"low": 1e-4, "high": 1e-3, "log": True},
        "filters": {"choices": [[16, 32, 32], [32, 32, 32]]},
    }
    space, study = make_space(content, "test"), optuna.create_study()
    for _ in range(20):
        trial = study.ask()
        values = space.suggest(trial)
        assert values == space.suggest(trial), "asked again, a trial keeps its values"
        assert 1 <= values["n_step"] <= 5 and isinstance(values["n_step"], int)
        assert 1e-4 <= values["critic_lr"] <= 1e-3
        assert values["filters"] in ((16, 32, 32), (32, 32, 32))
        make_config("walker_stand", "sac", "small", **values)


def test_the_default_space_has_fields_of_the_config_and_holds_the_small_preset():
    space = default_space()
    config = make_config("walker_stand", "sac", "small")
    assert space.encoded({name: getattr(config, name) for name in space.names}) is not None
    assert space.names == list(DEFAULT_SPACE)


def test_values_outside_are_noticed():
    space = make_space({"n_step": {"low": 1, "high": 5}}, "test")
    assert space.encoded({"n_step": 3}) == {"n_step": 3}
    assert space.encoded({"n_step": 6}) is None


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"actor_rl": {"low": 0, "high": 1}}, "unknown config field 'actor_rl'; did you mean actor_lr"),
        ({"seed": {"low": 0, "high": 5}}, "seed cannot be searched"),
        ({"actor_lr": {"low": 0, "hihg": 1}}, "unknown key 'hihg'; did you mean high"),
        ({"actor_lr": {"low": 1e-3, "high": 1e-4}}, "must be smaller than high"),
        ({"actor_lr": {"low": 0, "high": 1, "log": True}}, "low must be positive"),
        ({"actor_lr": {"low": 1e-4}}, "low and high of actor_lr must be numbers, not None"),
        ({"actor_lr": {"low": 1e-4, "high": 1, "choices": [1, 2]}}, "either low and high, or choices"),
        ({"n_step": {"low": 1, "high": 2.5}}, "must be integers, not 2.5"),
        ({"n_step": {"low": 1, "high": 3, "type": "float"}}, "of type int"),
        ({"filters": {"low": 1, "high": 2}}, "is no number"),
        ({"batch_size": {"choices": [64, "128"]}}, "cannot be '128'"),
        ({"batch_size": {"choices": [64]}}, "at least two choices"),
        ({"batch_size": {"choices": [64, 64]}}, "same choice twice"),
        ({"batch_size": 64}, "must have low and high or choices"),
        ({}, "at least one field"),
        ([1], "no JSON object"),
        ({"actor_lr": {"low": 0, "high": 10**400}}, "must be numbers"),
        ({"actor_lr": {"low": 0, "high": float("inf")}}, "must be numbers"),
    ],
)
def test_wrong_spaces_are_refused(tmp_path, content, sentence):
    with pytest.raises(UserError, match=sentence):
        read_space(write(tmp_path / "space.json", content))


def test_files_that_are_no_space(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_space(tmp_path / "missing.json")
    with pytest.raises(UserError, match="is damaged"):
        read_space(write(tmp_path / "space.json", "{"))
    with pytest.raises(UserError, match="nested too deeply"):
        read_space(write(tmp_path / "space.json", "[" * 100_000))
