"""Single frames and stacks of them, against a list of frames."""

import gymnasium
import numpy as np
import pytest

from softaug.envs.observations import FrameStack, NewestFrames, StackedFrames, newest_frame, single_frames


class Counting(gymnasium.Env):
    """Frames (4, 6, 3) that all differ, also between channels."""

    observation_space = gymnasium.spaces.Box(0, 255, (4, 6, 3), np.uint8)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def frame(self):
        return np.random.default_rng(self.count).integers(0, 256, (4, 6, 3), dtype=np.uint8)

    def reset(self, *, seed=None, options=None):
        self.count = 10 * (options or {}).get("episode", 0)
        return self.frame(), {"episode": self.count}

    def step(self, action):
        self.count += 1
        return self.frame(), float(self.count), self.count % 10 == 9, False, {"frames": 2}


def naive_stack(frames, k):
    padded = [frames[0]] * k + list(frames[1:])
    return np.concatenate([frame.transpose(2, 0, 1) for frame in padded[-k:]])


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_stacks_are_the_last_frames_oldest_first(k):
    env, alone = StackedFrames(Counting(), k), Counting()
    assert env.observation_space == gymnasium.spaces.Box(0, 255, (3 * k, 4, 6), np.uint8)
    for episode in range(2):  # nothing of one episode is left in the next
        obs, info = env.reset(options={"episode": episode})
        frames = [alone.reset(options={"episode": episode})[0]]
        assert info == {"episode": 10 * episode}
        kept = [obs]
        for _ in range(6):
            obs, *rest = env.step(np.zeros(1))
            frame, *expected = alone.step(np.zeros(1))
            assert rest == expected
            frames.append(frame)
            kept.append(obs)
        for number, obs in enumerate(kept):  # each observation is the caller's: later steps do not change it
            np.testing.assert_array_equal(obs, naive_stack(frames[: number + 1], k))
            np.testing.assert_array_equal(newest_frame(obs), frames[number])


def test_a_given_stack_is_continued():
    stack = FrameStack((6, 4, 6))
    frames = list(np.random.default_rng(0).integers(0, 256, (3, 4, 6, 3), dtype=np.uint8))
    stack.obs = naive_stack(frames[:2], 2)
    np.testing.assert_array_equal(stack.add(frames[2]), naive_stack(frames, 2))


def test_single_frames_of_any_stacked_environment():
    inner = Counting()
    assert single_frames(StackedFrames(inner, 3)) is inner

    class StacksItself(gymnasium.ObservationWrapper):
        observation_space = gymnasium.spaces.Box(0, 255, (6, 4, 6), np.uint8)

        def observation(self, observation):
            return np.concatenate([np.zeros((3, 4, 6), np.uint8), observation.transpose(2, 0, 1)])

    frames = single_frames(StacksItself(Counting()))
    assert isinstance(frames, NewestFrames) and frames.observation_space == Counting.observation_space
    np.testing.assert_array_equal(frames.reset()[0], Counting().reset()[0])
    np.testing.assert_array_equal(frames.step(np.zeros(1))[0], frames.unwrapped.frame())
