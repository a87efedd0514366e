"""Checkpoints hold a tree exactly, appear all at once, and say which file is damaged."""

from pathlib import Path

import numpy as np
import pytest
import torch

from softaug import checkpoint
from softaug.errors import UserError


def assert_same(left, right):
    """Equal in type, shape, dtype, memory format and every bit."""
    assert type(left) is type(right)
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype and left.shape == right.shape and left.stride() == right.stride()
        assert torch.equal(left, right)
    elif isinstance(left, (np.ndarray, np.generic)):
        assert left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    elif isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            assert_same(a, b)
    else:
        assert left == right or (left != left and right != right)


def some_tree():
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).to(
        memory_format=torch.channels_last
    )
    optimiser = torch.optim.Adam(network.parameters())
    network(torch.rand(2, 3, 8, 8)).sum().backward()
    optimiser.step()
    return {
        "network": dict(network.state_dict()),
        "optimiser": optimiser.state_dict(),  # integer keys, tuples, None
        "pcg": np.random.default_rng(3).bit_generator.state,  # integers of 128 bits
        "mersenne": np.random.RandomState(3).get_state(legacy=False),  # uint32 keys
        "torch_rng": torch.Generator().manual_seed(5).get_state(),
        "shared": [shared := torch.arange(6.0), shared],
        "view": torch.arange(12).reshape(3, 4).t().contiguous()[1:],
        "half": torch.ones(2, dtype=torch.bfloat16),
        "arrays": [np.zeros((0, 3), np.uint8), np.array(1.5), np.float32(0.1), np.array([True])],
        "floats": [0.1, -0.0, float("inf"), float("nan"), 1e-320],
        "plain": {"none": None, "flag": True, "text": "ä/b", "$odd": (1, [2, ()])},
        "pairs": {(1, 2): "tuple key", None: 3},
    }  # fmt: skip


def test_a_tree_comes_back_exactly(tmp_path: Path):
    tree = some_tree()
    checkpoint.save_tree(tmp_path / "tree", tree)
    assert_same(checkpoint.load_tree(tmp_path / "tree"), tree)


def test_restored_generators_go_on_where_they_were(tmp_path: Path):
    rng, generator = np.random.default_rng(1), torch.Generator().manual_seed(1)
    rng.normal(size=5), torch.rand(5, generator=generator)
    checkpoint.save_tree(tmp_path / "t", {"n": rng.bit_generator.state, "t": generator.get_state()})
    tree = checkpoint.load_tree(tmp_path / "t")
    other, other_generator = np.random.default_rng(), torch.Generator()
    other.bit_generator.state = tree["n"]
    other_generator.set_state(tree["t"])
    assert np.array_equal(rng.normal(size=9), other.normal(size=9))
    assert torch.equal(torch.rand(9, generator=generator), torch.rand(9, generator=other_generator))


def test_what_cannot_be_saved_exactly_is_refused(tmp_path: Path):
    with pytest.raises(TypeError, match=r"cannot hold a set \(at /a/1\)"):
        checkpoint.save_tree(tmp_path / "t", {"a": [1, {2}]})
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    "name", ["tensors.safetensors", "arrays.safetensors", "tree.json", "policy.safetensors"]
)
@pytest.mark.parametrize("damage", ["truncate", "flip", "delete"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, damage: str):
    checkpoint.save_tree(tmp_path / "t", some_tree(), policy={"w": torch.arange(1000.0)})
    path = tmp_path / "t" / name
    data = bytearray(path.read_bytes())
    if damage == "truncate":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "flip":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    else:
        path.unlink()
    with pytest.raises(UserError, match=name):
        checkpoint.load_tree(tmp_path / "t")


def test_a_kill_before_the_rename_leaves_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def killed(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    policy = {"w": torch.zeros(1)}
    checkpoint.save_checkpoint(tmp_path, 10, {"n": 10}, policy, keep=2)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save_checkpoint(tmp_path, 20, {"n": 20}, policy, keep=2)
    assert [path.name for path in checkpoint.complete_checkpoints(tmp_path)] == ["000000010"]
    # The leftovers stand in nobody's way: neither of another attempt nor of the cleaning up.
    assert list(tmp_path.glob(".*"))
    checkpoint.save_checkpoint(tmp_path, 20, {"n": 20}, policy, keep=2)
    checkpoint.remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000010", "000000020"]
    assert checkpoint.load_tree(tmp_path / "000000020") == {"n": 20}


def test_the_last_are_kept_and_found(tmp_path: Path):
    for decisions in (5, 10, 15, 1_000_000_000):  # the last has ten digits: order is by number
        checkpoint.save_checkpoint(
            tmp_path / "checkpoints",
            decisions,
            {"n": decisions},
            {"w": torch.tensor([float(decisions)])},
            keep=2,
        )
    (tmp_path / "checkpoints" / ".writing-000000099").mkdir()
    complete = checkpoint.complete_checkpoints(tmp_path / "checkpoints")
    assert [int(path.name) for path in complete] == [15, 1_000_000_000]
    assert checkpoint.load_tree(checkpoint.find_checkpoint(tmp_path)) == {"n": 1_000_000_000}
    assert checkpoint.load_tree(checkpoint.find_checkpoint(tmp_path, "15")) == {"n": 15}
    with pytest.raises(UserError, match="choose one of last, best, 15, 1000000000"):
        checkpoint.find_checkpoint(tmp_path, "5")
    with pytest.raises(UserError, match="no checkpoint"):
        checkpoint.find_checkpoint(tmp_path / "elsewhere")


def test_best_holds_the_weights_and_says_whose_they_are(tmp_path: Path):
    from safetensors import safe_open

    checkpoints = tmp_path / "checkpoints"
    for decisions, value in ((10, 1.0), (20, 2.0)):
        checkpoint.save_best(
            checkpoints, {"w": torch.tensor([value])}, {"decisions": decisions, "return": value}
        )
    checkpoint.save_checkpoint(checkpoints, 30, {}, {"w": torch.tensor([3.0])}, keep=1)
    best = checkpoint.find_checkpoint(tmp_path, "best")
    assert checkpoint.load_weights(best)["w"].item() == 2.0
    with safe_open(best / "policy.safetensors", "pt") as file:
        assert file.metadata() == {"decisions": "20", "return": "2.0"}
    assert checkpoint.load_weights(checkpoint.find_checkpoint(tmp_path))["w"].item() == 3.0


def test_damaged_weights_are_a_clear_error(tmp_path: Path):
    checkpoint.save_tree(tmp_path / "t", {}, policy={"w": torch.zeros(100)})
    path = tmp_path / "t" / "policy.safetensors"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(UserError, match=r"policy\.safetensors is damaged"):
        checkpoint.load_weights(tmp_path / "t")
    with pytest.raises(UserError, match="does not exist"):
        checkpoint.load_weights(tmp_path)


def test_a_set_aside_checkpoint_no_longer_counts(tmp_path: Path):
    for decisions in (1, 2):
        checkpoint.save_checkpoint(tmp_path, decisions, {}, {}, keep=5)
    checkpoint.set_aside(tmp_path / "000000002")
    assert [path.name for path in checkpoint.complete_checkpoints(tmp_path)] == ["000000001"]
    assert (tmp_path / "damaged-000000002" / "tree.json").is_file()
