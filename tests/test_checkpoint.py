"""Checkpoints hold a tree exactly, appear all at once, and say which file is damaged."""

from pathlib import Path

import numpy as np
import pytest
import torch

from softaug.errors import UserError
from softaug.storage import checkpoint


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
    optimizer = torch.optim.Adam(network.parameters())
    network(torch.rand(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    return {
        "network": dict(network.state_dict()),
        "optimizer": optimizer.state_dict(),  # integer keys, tuples, None
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
        facts = file.metadata()
    assert len(facts.pop("sha256")) == 64
    assert facts == {"decisions": "20", "return": "2.0"}
    assert checkpoint.load_weights(checkpoint.find_checkpoint(tmp_path))["w"].item() == 3.0


def test_damaged_weights_are_a_clear_error(tmp_path: Path):
    checkpoint.save_tree(tmp_path / "t", {}, policy={"w": torch.zeros(100)})
    path = tmp_path / "t" / "policy.safetensors"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(UserError, match=r"policy\.safetensors is damaged"):
        checkpoint.load_weights(tmp_path / "t")
    with pytest.raises(UserError, match="does not exist"):
        checkpoint.load_weights(tmp_path)


@pytest.mark.parametrize("content", ["", "0", "{whole}", "{other lines}", None])
@pytest.mark.parametrize("load", [checkpoint.load_tree, checkpoint.load_weights])
def test_a_damaged_list_of_checksums_is_damage(tmp_path: Path, content: str | None, load):
    directory = checkpoint.save_checkpoint(tmp_path, 10, {"n": 1}, {"w": torch.arange(9.0)}, keep=1)
    sums = directory / "SHA256SUMS"
    whole = sums.read_text()
    if content is None:
        sums.unlink()
    elif content == "{whole}":
        sums.write_text(whole[:-1])  # truncated in the last line
    elif content == "{other lines}":
        needed = "policy" if load is checkpoint.load_weights else "tree"
        sums.write_text("".join(line for line in whole.splitlines(True) if needed not in line))
    else:
        sums.write_text(content)
    with pytest.raises(checkpoint.Damaged, match=r"SHA256SUMS is (damaged|missing)"):
        load(directory)
    sums.write_text(whole)
    load(directory)


@pytest.mark.parametrize("best", [True, False])
def test_no_damaged_byte_of_the_weights_goes_unnoticed(tmp_path: Path, best: bool):
    weights = {"encoder.w": torch.arange(6.0).reshape(2, 3), "encoder.b": torch.zeros(2)}
    if best:
        checkpoint.save_best(tmp_path, weights, {"decisions": 20, "training_return": 1.5})
        directory = tmp_path / "best"
    else:
        directory = checkpoint.save_checkpoint(tmp_path, 10, {}, weights, keep=1)
    path = directory / "policy.safetensors"
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in (0, 5):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            with pytest.raises(UserError, match="damaged"):
                checkpoint.load_weights(directory)
    path.write_bytes(whole)
    loaded = checkpoint.load_weights(directory)
    assert_same({name: loaded[name] for name in weights}, weights)


def test_best_files_from_before_there_were_checksums_load(tmp_path: Path):
    from safetensors.torch import save_file

    for number, facts in enumerate((None, {"decisions": "20", "training_return": "1.5"})):
        directory = tmp_path / str(number) / "best"
        directory.mkdir(parents=True)
        save_file({"w": torch.arange(3.0)}, directory / "policy.safetensors", metadata=facts)
        assert checkpoint.load_weights(directory)["w"].tolist() == [0, 1, 2]


def test_equal_weights_and_facts_give_equal_bytes(tmp_path: Path):
    weights = {name: torch.full((3,), float(i)) for i, name in enumerate("zcab")}
    facts = {f"fact {i}": i for i in range(8)}
    for run in ("one", "two"):
        checkpoint.save_best(tmp_path / run, weights, facts)
        weights, facts = dict(reversed(weights.items())), dict(reversed(facts.items()))
    one, two = ((tmp_path / run / "best" / "policy.safetensors").read_bytes() for run in ("one", "two"))
    assert one == two
    # The header's entries in order, so that it is no accident of the library's random order.
    assert one.index(b'"fact 0"') < one.index(b'"fact 1"') < one.index(b'"fact 7"') < one.index(b'"sha256"')


def test_a_checkpoint_of_the_same_decisions_is_replaced(tmp_path: Path):
    for n in (1, 2):
        checkpoint.save_checkpoint(tmp_path, 10, {"n": n}, {}, keep=2)
    assert checkpoint.load_tree(tmp_path / "000000010") == {"n": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["000000010"]


@pytest.mark.parametrize("kill_at", [1, 2, 3])
def test_a_kill_while_a_checkpoint_is_replaced_leaves_one_of_the_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill_at: int
):
    checkpoint.save_checkpoint(tmp_path, 10, {"n": 1}, {}, keep=2)
    rename, calls = Path.rename, 0

    def killed(self: Path, target: Path) -> Path:
        nonlocal calls
        calls += 1
        if calls == kill_at:
            raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save_checkpoint(tmp_path, 10, {"n": 2}, {}, keep=2)
    checkpoint.remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["000000010"]
    assert checkpoint.load_tree(tmp_path / "000000010") == {"n": 1 if kill_at == 1 else 2}


def test_a_set_aside_checkpoint_no_longer_counts(tmp_path: Path):
    for decisions in (1, 2):
        checkpoint.save_checkpoint(tmp_path, decisions, {}, {}, keep=5)
    checkpoint.set_aside(tmp_path / "000000002")
    assert [path.name for path in checkpoint.complete_checkpoints(tmp_path)] == ["000000001"]
    assert (tmp_path / "damaged-000000002" / "tree.json").is_file()
