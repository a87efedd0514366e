"""`set_state` continues an episode exactly, also in a fresh environment."""

import json

import numpy as np
import pytest
from test_env_interface import assert_same

from softaug.envs import make_env
from softaug.envs.observations import newest_frame
from softaug.errors import UserError

SMALL = {"image_size": 24, "render": "aliased"}
# Those that edit the model at the start of an episode (targets, sizes, terrain) or keep numbers of their own.
EDITING_TASKS = (
    "finger_turn_hard",
    "hopper_hop",
    "swimmer_swimmer6",
    "manipulator_bring_ball",
    "stacker_stack_2",
    "fish_swim",
    "quadruped_escape",
    "dog_walk",
)


def json_round_trip(state):
    """As a checkpoint would store it: arrays apart, everything else through JSON."""
    arrays = []

    def take(value):
        if isinstance(value, dict):
            assert all(isinstance(key, str) for key in value)
            return {key: take(item) for key, item in value.items()}
        if isinstance(value, np.ndarray):
            arrays.append(value)
            return {"array": len(arrays) - 1}
        return value

    def put(value):
        if isinstance(value, dict):
            return (
                arrays[value["array"]] if set(value) == {"array"} else {k: put(v) for k, v in value.items()}
            )
        return value

    return put(json.loads(json.dumps(take(state))))


def play(env, actions):
    """Some decisions, then the next two episodes' beginnings."""
    trace = [env.step(action) for action in actions]
    trace += [env.reset(), env.step(actions[0]), env.reset()]
    return trace


@pytest.mark.parametrize(
    ("task", "mode"),
    [
        ("walker_walk", "train"),
        ("cartpole_swingup", "color_easy"),
        ("finger_spin", "color_random"),
        ("ball_in_cup_catch", "video_easy"),
        ("walker_stand", "video_hard"),
        ("reacher_hard", "train"),  # edits the model at the start of an episode
        *(
            pytest.param(task, "train", marks=pytest.mark.slow)
            for task in ("quadruped_escape", "humanoid_run", "dog_walk", "stacker_stack_2", "fish_swim")
        ),
    ],
)
def test_restore_in_the_middle_of_an_episode(task, mode):
    original = make_env(task, mode, seed=5, **SMALL)
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (14, *original.action_space.shape)).astype(np.float32)
    original.reset()
    original.reset()
    for action in actions[:6]:
        original.step(action)
    state = json_round_trip(original.get_state())
    expected = play(original, actions[6:])

    fresh = make_env(task, mode, seed=5, **SMALL)
    fresh.set_state(state)
    np.testing.assert_array_equal(fresh.render(), state["stack"][-3:].transpose(1, 2, 0))
    assert_same(play(fresh, actions[6:]), expected)
    fresh.close()

    # And back in time on the same object; the state itself was not changed by use.
    original.set_state(state)
    assert_same(play(original, actions[6:]), expected)
    original.close()


def test_state_right_after_reset_and_before_it():
    original = make_env("walker_walk", "video_easy", seed=1, **SMALL)
    untouched = original.get_state()
    first = original.reset()
    after_reset = original.get_state()
    step = original.step(np.ones(6, np.float32))

    fresh = make_env("walker_walk", "video_easy", seed=77, **SMALL)
    fresh.set_state(untouched)
    assert_same(fresh.reset(), first)
    fresh.set_state(after_reset)
    assert_same(fresh.step(np.ones(6, np.float32)), step)
    original.close()
    fresh.close()


def test_get_state_changes_nothing_and_is_a_copy():
    watched, control = (make_env("walker_walk", "color_random", seed=2, **SMALL) for _ in range(2))
    watched.reset(), control.reset()
    states = []
    for action in np.random.default_rng(3).uniform(-1, 1, (4, 6)):
        states.append(watched.get_state())
        assert_same(watched.step(action), control.step(action))
    assert not np.array_equal(states[0]["stack"], states[3]["stack"])
    assert not np.array_equal(states[0]["task"]["integration"], states[3]["task"]["integration"])
    watched.close(), control.close()


@pytest.mark.parametrize("mode", ["train", "video_easy"])
def test_states_of_earlier_versions_are_read(mode):
    """They held the stack instead of the newest frame, also without a stack around the environment."""
    original = make_env("cartpole_swingup", mode, seed=4, **SMALL)
    original.reset()
    original.step(np.ones(1, np.float32))
    state = original.get_state()
    earlier = {key: value for key, value in state.items() if key != "frame"}
    earlier["made_with"] = {k: v for k, v in state["made_with"].items() if k != "image_size"}
    earlier["made_with"]["observation_shape"] = [9, 24, 24]
    expected = original.step(-np.ones(1, np.float32))
    stacked = make_env("cartpole_swingup", mode, seed=9, **SMALL)
    stacked.set_state(earlier)
    assert_same(stacked.step(-np.ones(1, np.float32)), expected)
    single = stacked.env
    single.set_state(earlier)
    np.testing.assert_array_equal(single.render(), state["frame"])
    np.testing.assert_array_equal(single.step(-np.ones(1, np.float32))[0], newest_frame(expected[0]))
    original.close(), stacked.close()


def test_a_stack_of_another_length_is_refused():
    three, two = (make_env("cartpole_swingup", frame_stack=frames, **SMALL) for frames in (3, 2))
    with pytest.raises(UserError, match=r"\(9, 24, 24\), this one has \(6, 24, 24\)"):
        two.set_state(three.get_state())
    three.close(), two.close()


def test_restored_end_of_episode_needs_a_reset():
    env = make_env("cartpole_swingup", action_repeat=500, **SMALL)
    env.reset(seed=0)
    env.step(np.zeros(1))
    assert env.step(np.zeros(1))[3]
    state = env.get_state()
    env.reset()
    env.set_state(state)
    with pytest.raises(UserError, match="reset"):
        env.step(np.zeros(1))
    env.close()


def test_state_of_another_environment_is_refused():
    walker, cartpole = make_env("walker_walk", **SMALL), make_env("cartpole_swingup", **SMALL)
    with pytest.raises(UserError, match=r"walker_walk.*cartpole_swingup"):
        cartpole.set_state(walker.get_state())
    walker.close(), cartpole.close()
