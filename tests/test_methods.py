"""The table of methods says what docs/methods says, with each paper's numbers."""

from __future__ import annotations

import pytest

from softaug.config import Config, make_config
from softaug.envs.modes import Mode
from softaug.errors import UserError
from softaug.methods import ALIASES, METHODS, get_method

RL = {"critic", "actor", "target"}
# name: weak view, strong view, what sees it, auxiliary task, training mode
EXPECTED = {
    "sac": ("crop", None, set(), None, "train"),
    "sac_dr": ("crop", None, set(), None, "color_random"),
    "sac_conv": ("crop", "conv", RL, None, "train"),
    "sac_overlay": ("crop", "overlay", RL, None, "train"),
    "curl": ("crop", None, set(), "curl", "train"),
    "pad": ("crop", None, set(), "inverse_dynamics", "train"),
    "soda_conv": ("crop", "conv", {"auxiliary"}, "soda", "train"),
    "soda_overlay": ("crop", "overlay", {"auxiliary"}, "soda", "train"),
    "soda_both_conv": ("crop", "conv", {*RL, "auxiliary"}, "soda", "train"),
    "soda_both_overlay": ("crop", "overlay", {*RL, "auxiliary"}, "soda", "train"),
    "drq": ("shift", None, set(), None, "train"),
    "svea_conv": ("shift", "conv", {"critic"}, None, "train"),
    "svea_overlay": ("shift", "overlay", {"critic"}, None, "train"),
    "sada": ("shift", "sada", {"critic", "actor"}, None, "train"),
    "sgqn": ("shift", "overlay", {"critic", "auxiliary"}, "sgqn", "train"),
    "madi": ("shift", "overlay", {"critic"}, None, "train"),
    "simgrl": ("shift", "moving_overlay", {"critic"}, None, "train"),
    "soda_sada": ("crop", "sada", {"auxiliary"}, "soda", "train"),
    "soda_simgrl": ("crop", "moving_overlay", {"auxiliary"}, "soda", "train"),
}


def test_the_table_has_exactly_the_rows_of_the_benchmark():
    assert set(METHODS) == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_row(name):
    row = get_method(name)
    sees = {
        part
        for part in ("critic", "actor", "target", "auxiliary")
        if getattr(row, f"{part}_sees") not in ("weak", "raw")
    }
    assert (row.weak, row.strong, sees, row.auxiliary, row.train_mode) == EXPECTED[name]
    assert (row.critic_sees == "both") == (name.startswith("svea") or name in ("sada", "simgrl", "madi"))
    assert row.masker == (row.target_sees == "raw") == (name == "madi")
    assert (row.actor_sees == "both") == (name == "sada")
    assert (row.auxiliary_shares == "trunk") == (name == "pad")
    assert row.uses_images == (name.endswith(("overlay", "sada", "simgrl", "sgqn", "madi")))
    assert row.adapts == (name == "pad")
    assert row.name == name


def test_every_training_mode_may_be_trained_in():
    for row in METHODS.values():
        assert Mode.parse(row.train_mode).split == "train"


@pytest.mark.parametrize(("alias", "name"), [("rad", "sac"), ("soda", "soda_overlay"), ("svea", "svea_conv")])
def test_alias(alias, name):
    assert get_method(alias) is METHODS[name]
    assert make_config(method=alias).method == name
    assert Config(method=alias, **({"image_size": 84} if alias == "svea" else {})).method == name


@pytest.mark.parametrize(
    ("saved", "name"), [("svea", "svea_overlay"), ("soda", "soda_overlay"), ("svea_conv", "svea_conv")]
)
def test_a_saved_alias_keeps_the_meaning_it_had(saved, name):
    """`svea` was SVEA with overlay when configs could still hold an alias."""
    values = make_config(method="svea").to_json()
    assert values["method"] == "svea_conv"  # no alias is saved any more
    assert Config.from_json({**values, "method": saved}).method == name


def test_unknown_method_lists_every_valid_name():
    with pytest.raises(UserError) as error:
        get_method("sodaa")
    assert "sodaa" in str(error.value)
    listed = str(error.value).rsplit("one of ", 1)[1].split(", ")
    assert set(listed) == set(METHODS) | set(ALIASES)


def test_paper_defaults_are_those_of_the_papers_table():
    config = make_config(method="sac")
    expected = {
        "image_size": 100, "crop_size": 84, "frame_stack": 3, "discount": 0.99, "decisions": 500_000,
        "replay_capacity": 500_000, "batch_size": 128, "actor_lr": 1e-3, "critic_lr": 1e-3, "alpha_lr": 1e-4,
        "actor_every": 2, "target_every": 2, "critic_tau": 0.01, "encoder_tau": 0.05, "initial_temperature": 0.1,
        "random_decisions": 1000, "initial_updates": 1000, "update_every": 1, "n_step": 1, "filters": (32,) * 11,
        "strides": (2,) + (1,) * 10, "projection_dim": 100, "hidden_dim": 1024, "overlay_alpha": 0.5,
    }  # fmt: skip
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("method", "numbers"),
    [
        ("soda_conv", {"aux_batch_size": 256, "aux_every": 2, "aux_lr": 3e-4, "soda_tau": 0.005}),
        ("soda_overlay", {"aux_batch_size": 256, "aux_every": 2, "aux_lr": 3e-4, "soda_tau": 0.005}),
        ("soda_both_conv", {"aux_batch_size": 256, "aux_every": 2, "aux_lr": 3e-4, "soda_tau": 0.005}),
        ("soda_both_overlay", {"aux_batch_size": 256, "aux_every": 2, "aux_lr": 3e-4, "soda_tau": 0.005}),
        ("curl", {"aux_batch_size": 128, "aux_every": 1, "aux_lr": 1e-3}),
        ("pad", {"aux_batch_size": 128, "aux_every": 2, "aux_lr": 1e-3, "pad_own_layers": 3}),
        ("drq", {"image_size": 84, "crop_size": 84}),
        ("svea_conv", {"image_size": 84, "crop_size": 84}),
        (
            "sgqn",
            {
                "aux_every": 2,
                "aux_lr": 3e-4,
                "sgqn_quantile": 0.95,
                "critic_weight_decay": 0.0,
                "image_size": 84,
            },
        ),
        (
            "simgrl",
            {
                "filters": (16, 16, 16, 32, 32, 32, 32, 32, 32, 32, 32),
                "strides": (2,) + (1,) * 10,
                "frame_layers": 3,
                "frame_join": "features",
                "image_size": 84,
                "batch_size": 128,
                "share_features": False,
            },
        ),
        (
            "soda_simgrl",
            {"frame_layers": 3, "frame_join": "features", "aux_batch_size": 256, "image_size": 100},
        ),
        ("soda_sada", {"aux_batch_size": 256, "aux_every": 2, "aux_lr": 3e-4, "share_features": False}),
        (
            "sada",
            {
                "image_size": 84,
                "crop_size": 84,
                "action_repeat": 2,
                "update_every": 2,
                "decisions": 500_000,
                "batch_size": 256,
                "projection_dim": 50,
                "hidden_dim": 1024,
                "actor_lr": 5e-4,
                "critic_lr": 5e-4,
                "alpha_lr": 5e-4,
                "alpha_beta": 0.9,
                "filters": (32,) * 4,
                "strides": (2, 1, 1, 1),
                "pixel_offset": 0.5,
                "final_relu": True,
                "share_features": True,
                "actor_every": 1,
                "target_every": 1,
                "critic_tau": 0.01,
                "encoder_tau": 0.01,
                "n_step": 1,
                "random_decisions": 2000,
                "initial_updates": 0,
            },
        ),
    ],
)
def test_numbers_of_each_paper_reach_the_config(method, numbers):
    config = make_config(method=method)
    assert {name: getattr(config, name) for name in numbers} == numbers


@pytest.mark.parametrize("task", ["cartpole_swingup", "ball_in_cup_catch"])
def test_sgqn_masks_more_where_objects_are_small(task):
    config = make_config(task, "sgqn")
    assert (config.sgqn_quantile, config.critic_weight_decay) == (0.98, 1e-5)
    assert make_config(task, "sgqn", sgqn_quantile=0.5).sgqn_quantile == 0.5
    assert make_config(task, "svea").critic_weight_decay == 0


def test_sadas_paper_is_the_gb2_preset():
    values = {**make_config(method="sada", preset="gb2").to_json(), "preset": "paper"}
    assert make_config(method="sada").to_json() == values


def test_small_is_small_for_sada_too():
    """What makes the method stays, its paper's sizes and rates do not."""
    sada, drq = (make_config(method=method, preset="small").to_json() for method in ("sada", "drq"))
    differs = {name for name in sada if sada[name] != drq[name]}
    assert differs == {
        "method", "share_features", "actor_every", "target_every", "critic_tau", "encoder_tau",
    }  # fmt: skip
    assert sada["critic_tau"] == drq["critic_tau"] / drq["target_every"]


def test_what_the_user_gives_wins_over_the_methods_numbers():
    assert make_config(method="soda", aux_lr=0.5).aux_lr == 0.5


def test_shift_sees_the_whole_image():
    """A shifted view keeps the image's size, so an image that is not the network's size cannot work."""
    assert make_config(method="drq", crop_size=64).image_size == 64
    assert make_config(method="drq", image_size=64).crop_size == 64
    with pytest.raises(UserError, match="image_size"):
        make_config(method="drq", image_size=100, crop_size=84)
    with pytest.raises(UserError, match="image_size"):
        Config(method="svea_conv", image_size=100, crop_size=84)
