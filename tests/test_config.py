"""The config: layers, checks, flags and its JSON form."""

import argparse
import dataclasses
from pathlib import Path

import pytest

from softaug.commands.config_flags import add_config_arguments, given_arguments
from softaug.config import Config, make_config, read_config, write_config
from softaug.config.comparing import differences
from softaug.errors import UserError
from softaug.learning.agent import make_encoders
from softaug.learning.networks import feature_shape
from softaug.methods import ALIASES, METHODS
from softaug.presets import METHOD_TASK_PRESETS, PRESETS, TASK_PRESETS

EVERY = [(method, preset) for method in METHODS for preset in PRESETS]


def parse(*flags: str) -> dict:
    parser = argparse.ArgumentParser()
    add_config_arguments(parser)
    return given_arguments(parser.parse_args(flags))


@pytest.mark.parametrize(("method", "preset"), EVERY)
def test_every_method_and_preset_makes_a_config_that_survives_json(tmp_path: Path, method: str, preset: str):
    config = make_config("finger_spin", method, preset, seed=3)
    write_config(config, tmp_path / "config.json")
    assert read_config(tmp_path / "config.json") == config
    assert (config.method, config.preset, config.task, config.seed) == (method, preset, "finger_spin", 3)


def test_the_papers_numbers():
    """The paper's Table III."""
    config = make_config("walker_walk", "soda", "paper")
    assert (config.image_size, config.crop_size, config.frame_stack) == (100, 84, 3)
    assert (config.decisions, config.replay_capacity, config.discount) == (500_000, 500_000, 0.99)
    assert (config.batch_size, config.aux_batch_size, config.aux_every) == (128, 256, 2)
    assert (config.actor_lr, config.critic_lr, config.alpha_lr, config.aux_lr) == (1e-3, 1e-3, 1e-4, 3e-4)
    assert (config.actor_every, config.target_every, config.update_every) == (2, 2, 1)
    assert (config.soda_tau, config.critic_tau, config.encoder_tau) == (0.005, 0.01, 0.05)
    assert (config.random_decisions, config.initial_updates, config.initial_temperature) == (1000, 1000, 0.1)
    assert (len(config.filters), sum(config.strides)) == (11, 12)
    assert (make_config(method="curl").aux_batch_size, make_config(method="curl").aux_every) == (128, 1)
    assert (make_config(method="pad").aux_lr, make_config(method="pad").aux_every) == (1e-3, 2)


def test_layers_win_in_order():
    defaults = Config()
    small = make_config(method="soda", preset="small")
    assert small.decisions == PRESETS["small"]["decisions"] != defaults.decisions  # preset over default
    assert small.soda_tau == METHODS["soda_overlay"].numbers["soda_tau"]
    assert small.aux_batch_size == PRESETS["small"]["aux_batch_size"]  # preset over method
    assert (
        make_config(method="soda", preset="small", aux_batch_size=7).aux_batch_size == 7
    )  # the user over all


@pytest.mark.parametrize(("preset", "task"), TASK_PRESETS)
def test_a_presets_numbers_for_a_task_are_that_tasks_alone_and_give_way_to_the_users(preset: str, task: str):
    own, walker = (make_config(name, "curl", preset) for name in (task, "walker_walk"))
    for name, value in TASK_PRESETS[preset, task].items():
        assert getattr(own, name) == value != getattr(walker, name)
        assert getattr(make_config(task, preset="paper"), name) == getattr(make_config(), name)
    assert make_config(task, preset=preset, batch_size=7).batch_size == 7


@pytest.mark.parametrize(("preset", "task", "method"), METHOD_TASK_PRESETS)
def test_a_presets_numbers_for_a_method_on_a_task_are_for_both_alone(preset: str, task: str, method: str):
    for name, value in METHOD_TASK_PRESETS[preset, task, method].items():
        assert getattr(make_config(task, method, preset), name) == value
        assert getattr(make_config(task, "curl", preset), name) != value
        walker, paper = make_config("walker_walk", method, preset), make_config(task, method)
        assert getattr(walker, name) == getattr(make_config("walker_walk", "curl", preset), name)
        assert getattr(paper, name) == getattr(make_config(task, "curl"), name)
    given = make_config(task, method, preset, alpha_lr=7e-5, strides=(1, 1, 1), frame_differences=0.0)
    assert (given.alpha_lr, given.strides, given.frame_differences) == (7e-5, (1, 1, 1), 0)


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_is_its_method(alias: str):
    assert make_config(method=alias) == make_config(method=ALIASES[alias])


@pytest.mark.parametrize("method", ["drq", "svea_conv"])
def test_methods_that_shift_render_at_the_networks_size(method: str):
    assert make_config(method=method).image_size == make_config(method=method).crop_size == 84
    assert make_config(method=method, crop_size=48).image_size == 48


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decisions": 0}, "decisions must be at least 1, not 0"),
        ({"seed": -1}, "seed must not be negative"),
        ({"discount": 1.5}, "discount must lie between 0 and 1"),
        ({"critic_lr": 0.0}, "critic_lr must be positive"),
        ({"method": "sodaa"}, r"unknown method 'sodaa'; did you mean soda\? Choose one of sac, "),
        ({"preset": "large"}, "unknown preset 'large'; choose one of paper, small"),
        ({"device": "gpu"}, r"unknown device 'gpu'; did you mean cpu\? Choose one of auto, cpu, cuda, mps"),
        ({"crop_size": 101}, "crop_size 101 is larger than image_size 100"),
        ({"filters": (32,)}, r"filters \(1\) and strides \(11\)"),
        ({"random_decisions": 3}, "random_decisions 3 is too few for a batch of 128"),
        ({"actor_lr": float("nan")}, "actor_lr must be positive, not nan"),
        ({"aux_lr": float("inf")}, "aux_lr must be positive, not inf"),
        ({"filters": (4, 0), "strides": (2, 1)}, "filters must be at least 1 each, not 4,0"),
        ({"filters": (4,), "strides": (0,)}, "strides must be at least 1 each"),
        ({"crop_size": 42}, "crop_size 42 is too small for 11 convolutions"),
        ({"eval_modes": ()}, "eval_modes must name at least one mode"),
        ({"eval_modes": ("train", "train")}, "eval_modes must name .* each once"),
    ],
)
def test_values_that_cannot_work_are_refused(changes: dict, message: str):
    with pytest.raises(UserError, match=message):
        Config(**changes)


def test_the_smallest_crop_the_encoder_can_take_is_allowed():
    config = Config(crop_size=43)
    encoder, _ = make_encoders(config, 9)
    assert feature_shape(encoder, (9, 43, 43)) == (32, 1, 1)


def test_an_unknown_field_lists_the_valid_ones():
    with pytest.raises(
        UserError,
        match=r"unknown config field 'batchsize'; did you mean batch_size\? Choose one of .*discount",
    ):
        make_config(batchsize=3)


@pytest.mark.parametrize(("method", "layers", "most"), [("sac", 3, 2), ("sac", -1, 2), ("pad", 3, 2)])
def test_some_layer_must_see_the_frames_together(method: str, layers: int, most: int):
    with pytest.raises(UserError, match=f"frame_layers must lie between 0 and {most}, not {layers}"):
        make_config(method=method, preset="small", frame_layers=layers)
    assert make_config(method=method, preset="small", frame_layers=most).frame_layers == most


def test_every_field_has_a_flag_with_help():
    parser = argparse.ArgumentParser()
    add_config_arguments(parser)
    text = parser.format_help()
    for field in dataclasses.fields(Config):
        assert "--" + field.name.replace("_", "-") in text
        assert len(field.metadata["help"]) > 5
    for promised in (
        "--decisions",
        "--eval-every",
        "--eval-episodes",
        "--eval-modes",
        "--checkpoint-every",
        "--workers",
    ):
        assert promised in text


def test_only_flags_that_were_given_count():
    assert parse() == {}
    given = parse(
        "--decisions",
        "7",
        "--eval-modes",
        "train, video_hard",
        "--filters=8,16",
        "--no-env-process",
        "--actor-lr=1e-4",
    )
    assert given == {
        "decisions": 7,
        "eval_modes": ("train", "video_hard"),
        "filters": (8, 16),
        "env_process": False,
        "actor_lr": 1e-4,
    }


def test_the_flags_of_a_config_make_it_again():
    config = make_config("cartpole_swingup", "svea_conv", "small", seed=5, images="a b", compile=True)
    flags = []
    for name, value in config.to_json().items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            flags.append(f"{flag}={','.join(map(str, value)) if isinstance(value, list) else value}")
    assert make_config(**parse(*flags)) == config


def test_differences_name_what_could_change_results_and_nothing_else():
    ours = make_config(
        seed=1, batch_size=64, workers=4, env_process=False, tensorboard=False, keep_checkpoints=9
    )
    assert differences(ours, make_config()) == ["seed 1 (was 0)", "batch_size 64 (was 128)"]
    assert differences(ours, ours) == []


def test_a_config_of_another_version_names_its_fields(tmp_path: Path):
    values = Config().to_json()
    values["bacth_size"] = values.pop("batch_size")
    with pytest.raises(UserError, match=r"unknown or missing fields \(bacth_size, batch_size\)"):
        Config.from_json(values)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        read_config(tmp_path / "config.json")
    with pytest.raises(UserError, match="does not exist"):
        read_config(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("decisions", "abc"),
        ("decisions", 1.5),
        ("decisions", True),
        ("filters", 5),
        ("filters", ["x"]),
        ("task", None),
    ],
)
def test_a_config_with_a_value_of_the_wrong_type_names_it(field: str, value: object):
    with pytest.raises(UserError, match=f"the config's {field} cannot be"):
        Config.from_json({**Config().to_json(), field: value})


@pytest.mark.parametrize("content", [b"null", b"[]", b'"text"', b"\xff\xfe\x00"])
def test_a_config_file_that_holds_something_else_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UserError, match=r"config\.json is damaged"):
        read_config(tmp_path / "config.json")


def test_a_path_that_is_no_file_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="cannot be read"):
        read_config(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="does not exist"):
        read_config(tmp_path / "file" / "config.json")


def test_the_robot_is_seen_in_one_frame_unless_told_otherwise():
    assert make_config("robot_push", preset="small").frame_stack == 1
    assert make_config("robot_push", frame_stack=2).frame_stack == 2
    assert make_config("walker_stand").frame_stack == 3
