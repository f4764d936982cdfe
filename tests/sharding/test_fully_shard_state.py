"""A sharded model's state: whole and in parts, to and from PyTorch, on other numbers of ranks, all or nothing."""

from __future__ import annotations

import math
import shutil

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard as torch_fully_shard

from dtcourse import launch
from dtcourse.checkpoint import checksums
from dtcourse.checkpoint.local_chunks import chunks_of
from dtcourse.launch import RankFailure
from dtcourse.sharding import (
    FullyShardedDataParallel,
    checkpoint,
    full_gradients,
    full_state_dict,
    fully_shard,
    load_full_state_dict,
)
from dtcourse.sharding.flat_parameter import local_range_of, padded_size
from dtcourse.verify import CASES, compare

# Each value of each parameter is tried every time, their other combinations by turns (tests/turns.py).
pytestmark = pytest.mark.each_once("dtcourse/sharding/")

# --- layout -----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(1, 9))
def test_every_element_is_kept_by_one_rank(sizes, ranks):
    part = padded_size(sum(sizes), ranks) // ranks
    assert part * ranks - max(sum(sizes), 1) < ranks, "no more padding than needed"
    start = 0
    for size in sizes:
        kept = [local_range_of(start, start + size, rank, part) for rank in range(ranks)]
        assert all(0 <= a <= b <= part for a, b in kept)
        elements = [rank * part + i for rank, (a, b) in enumerate(kept) for i in range(a, b)]
        assert elements == list(range(start, start + size))
        start += size


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 5), max_size=4), st.data())
def test_chunks_are_the_run(shape, data):
    elements = math.prod(shape)
    start = data.draw(st.integers(0, elements))
    end = data.draw(st.integers(start, elements))
    numbers = torch.arange(elements).view(shape)
    found = []
    for offsets, sizes in chunks_of(shape, start, end):
        cut = tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))
        found += numbers[cut].reshape(-1).tolist()
    assert found == list(range(start, end))
    assert len(chunks_of(shape, start, end)) <= max(1, 2 * len(shape) - 1)


# --- training that goes on elsewhere ----------------------------------------------------------------------------

SAMPLES = 24


def build():
    model = nn.Sequential(
        nn.Linear(6, 13), nn.BatchNorm1d(13), nn.Tanh(), nn.Linear(13, 7), nn.Linear(7, 3)
    )
    torch.manual_seed(3)
    for p in model.parameters():
        nn.init.normal_(p)
    model[3].bias.requires_grad_(False)
    return model.eval()  # so that BatchNorm is the same on every number of ranks


def sharded(shard, each=True, mesh=None, root=True):
    """root=False: the normalisation and the last layer are in no unit."""
    model = build()
    if each:
        for layer in (model[0], model[3]):
            shard(layer, mesh=mesh)
    return shard(model, mesh=mesh) if root else model


def adam(model):
    weights = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(
        [{"params": weights[:1], "weight_decay": 0.2}, {"params": weights[1:]}], lr=0.05
    )


def step(model, optimizer, number):
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    x, y = CASES["mlp"].batch(SAMPLES, number)
    optimizer.zero_grad()
    CASES["mlp"].loss(model(x.chunk(size)[rank]), y.chunk(size)[rank]).backward()
    if size > 1 and type(model) is nn.Sequential:  # what is in no unit is the user's to average
        for layer in (model[1], model[4]):
            for p in layer.parameters():
                dist.all_reduce(p.grad)
                p.grad /= size
    optimizer.step()


def write(shard, folder, kind="ours"):
    """Two steps, saved; a third. Returns the whole model after it."""
    if kind == "ours":
        model = sharded(shard)
    elif kind == "hybrid":
        model = sharded(shard, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b")))
    elif kind == "inner units":
        model = sharded(shard, root=False)
    elif kind == "PyTorch's":
        model = sharded(torch_fully_shard)
    else:
        model = build()
    optimizer = adam(model)
    for number in range(2):
        step(model, optimizer, number)
    if kind in ("ours", "hybrid", "inner units"):
        checkpoint.save(folder, model, optimizer)
    else:
        both = {
            "model": model.state_dict(),
            "optimizer": get_optimizer_state_dict(model, optimizer),
        }
        dcp.save(both, checkpoint_id=folder)
    step(model, optimizer, 2)
    if kind in ("ours", "hybrid", "inner units"):
        return full_state_dict(model)
    whole = {n: getattr(t, "full_tensor", lambda t=t: t)() for n, t in model.state_dict().items()}
    return {n: t.detach().clone() for n, t in whole.items()}


def read(shard, folder, kind="ours"):
    """Loads into a model that starts elsewhere, and takes the third step."""
    shard = torch_fully_shard if kind == "PyTorch's" else shard
    root = kind != "inner units"
    model = build() if kind == "plain" else sharded(shard, kind != "ours", root=root)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3.0)
    optimizer = adam(model)
    if kind == "plain" or kind == "PyTorch's":
        # PyTorch's way: states must be there to be loaded into.
        both = {
            "model": model.state_dict(),
            "optimizer": get_optimizer_state_dict(model, optimizer),
        }
        dcp.load(both, checkpoint_id=folder)
        model.load_state_dict(both["model"])
        set_optimizer_state_dict(model, optimizer, both["optimizer"])
    else:
        checkpoint.load(folder, model, optimizer)
    step(model, optimizer, 2)
    if kind in ("plain", "PyTorch's"):
        whole = {
            n: getattr(t, "full_tensor", lambda t=t: t)() for n, t in model.state_dict().items()
        }
        return {n: t.detach().clone() for n, t in whole.items()}
    return full_state_dict(model)


def test_training_goes_on_on_another_number_of_ranks_and_in_plain_pytorch(shard, tmp_path):
    folder = str(tmp_path / "from 3 ranks")
    expected = launch(write, 3, shard, folder)[1]
    for ranks in (1, 2, 4):
        for state in launch(read, ranks, shard, folder):
            compare(state, expected, what=f"on {ranks} ranks: value")
    compare(read(shard, folder, "plain"), expected, what="in plain PyTorch: value")
    compare(
        launch(read, 2, shard, folder, "PyTorch's")[1], expected, what="in PyTorch's own: value"
    )


@pytest.mark.parametrize(
    ("kind", "ranks"), [("plain", 1), ("PyTorch's", 2), ("hybrid", 4), ("inner units", 2)]
)
def test_training_goes_on_from_others(shard, tmp_path, kind, ranks):
    folder = str(tmp_path / "from others")
    expected = (
        write(shard, folder, kind)
        if kind == "plain"
        else launch(write, ranks, shard, folder, kind)[0]
    )
    for state in launch(read, 3, shard, folder):
        compare(state, expected, what=f"from {kind}: value")
    if kind == "inner units":
        compare(read(shard, folder, "plain"), expected, what="in plain PyTorch: value")
        for other in ("inner units", "PyTorch's"):
            compare(launch(read, 3, shard, folder, other)[2], expected, what=f"in {other}: value")


def test_whole_states_to_and_from_a_plain_model(shard):
    def on_ranks(state):
        model = sharded(shard)
        load_full_state_dict(model, state)
        only_first = full_state_dict(model, only_first=True)
        if shard is fully_shard:  # the same, in torch's words
            whole = StateDictOptions(full_state_dict=True)
            set_model_state_dict(model, {n: 2 * t for n, t in state.items()}, options=whole)
            doubled = get_model_state_dict(model, options=whole)
            compare(doubled, {n: 2 * t for n, t in state.items()}, tolerance=0.0)
            parts = {n: p.clone() for n, p in model.state_dict().items()}
            with torch.no_grad():
                for p in model.parameters():
                    p.zero_()
            model.load_state_dict(parts)
            compare(full_state_dict(model), doubled, tolerance=0.0)
            load_full_state_dict(model, state)
        else:
            model.load_state_dict(state)
        tied = shard(CASES["tied"].build(dist.get_rank()))
        return full_state_dict(model), sorted(only_first), full_state_dict(tied)

    plain = build()
    state = {
        n: torch.randn_like(t) if t.is_floating_point() else t
        for n, t in plain.state_dict().items()
    }
    first, other = launch(on_ranks, 2, state)
    for whole, _, tied in (first, other):
        assert list(whole) == list(state)
        compare(whole, state, tolerance=0.0)
        CASES["tied"].build(5).load_state_dict(tied)
        compare(tied, CASES["tied"].build(0).state_dict(), tolerance=0.0)
    assert (first[1], other[1]) == (sorted(state), [])


class Around(nn.Module):
    """Parameters and buffers of every kind that are in no unit, or are known by two names."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.shift = nn.Parameter(torch.randn(3))
        self.frozen = nn.Parameter(torch.randn(()), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(2, 2))
        self.block = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.again = self.norm  # one module, two names
        self.tied = nn.Linear(3, 3)
        self.tied.bias = self.shift
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("scratch", torch.ones(2), persistent=False)

    def forward(self, x):
        return self.tied(self.again(self.norm(self.block(x)))) * self.frozen + self.shift


def test_what_is_in_no_unit_is_part_of_the_state(shard, tmp_path):
    """fully_shard on inner modules only; PyTorch's get_model_state_dict has the rest as well."""
    folder = str(tmp_path / "saved")
    x = torch.arange(12.0).view(4, 3)

    def on_ranks():
        model = Around()
        shard(model.block)
        model(x).square().sum().backward()
        gradients, whole = full_gradients(model), full_state_dict(model)
        only_first = full_state_dict(model, only_first=True)
        checkpoint.save(folder, model)

        theirs = Around()
        torch_fully_shard(theirs.block)
        names = get_model_state_dict(theirs, options=StateDictOptions(full_state_dict=True))

        states = []
        for load in (
            lambda: load_full_state_dict(model, whole),
            lambda: checkpoint.load(folder, model),
        ):
            with torch.no_grad():
                for tensor in (*model.parameters(), *model.buffers()):
                    tensor.mul_(0)
            load()
            states.append(full_state_dict(model))
        return gradients, whole, sorted(only_first), sorted(names), states, model.scratch.sum()

    plain = Around()
    plain(x).square().sum().backward()
    for rank, (gradients, whole, only_first, names, states, scratch) in enumerate(
        launch(on_ranks, 2)
    ):
        compare(gradients, {n: p.grad for n, p in plain.named_parameters()})
        assert list(whole) == list(plain.state_dict()) and names == sorted(whole)
        for state in (whole, *states):
            compare(state, plain.state_dict(), tolerance=1e-6)
        assert only_first == (sorted(whole) if rank == 0 else [])
        assert scratch == 0, "a buffer that is not persistent is in no state"
        Around().load_state_dict(whole)  # strict


def test_an_optimizer_with_parameters_of_another_model(shard, tmp_path):
    def on_ranks():
        model, other = sharded(shard), nn.Linear(5, 2)
        optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()])
        checkpoint.save(str(tmp_path / "saved"), model, optimizer)

    with pytest.raises(
        RankFailure, match=r"holds 2 parameters that the model has not, the first of shape \[2, 5\]"
    ):
        launch(on_ranks, 2)


# --- all or nothing ---------------------------------------------------------------------------------------------


def refused(shard, load):
    """What `load(model, optimizer)` raises, and whether it left everything as it was."""
    model = sharded(shard)
    optimizer = adam(model)
    step(model, optimizer, 0)

    def everything():
        states = [t.clone() for s in optimizer.state.values() for t in s.values()]
        return [p.detach().clone() for p in model.parameters()] + states + list(model.buffers())

    before = everything()
    try:
        load(model, optimizer)
    except ValueError as error:
        same = all(torch.equal(a, b) for a, b in zip(before, everything(), strict=True))
        return str(error), same
    return "loaded", False


def damage(folder, how):
    file = sorted(folder.glob("*.distcp"))[-1]
    content = bytearray(file.read_bytes())
    if how == "a byte":
        content[len(content) // 2] ^= 0xFF
    elif how == "half":
        content = content[: len(content) // 2]
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes(content)


def test_a_damaged_checkpoint_is_refused_and_nothing_changes(shard, tmp_path):
    launch(write, 2, shard, str(tmp_path / "good"))
    for how in ("a byte", "half", "gone", "half, no checksums", "no metadata"):
        folder = tmp_path / how.replace(",", "")
        shutil.copytree(tmp_path / "good", folder)
        damage(folder, how.split(",")[0])
        if how.endswith("no checksums"):
            (folder / checksums.NAME).unlink()
        if how == "no metadata":
            (folder / ".metadata").unlink()

    def try_all():
        found = {}
        for folder in sorted(tmp_path.iterdir()):
            found[folder.name] = refused(shard, lambda m, o, f=folder: checkpoint.load(f, m, o))
        return found

    words = {
        "a byte": "damaged", "half": "damaged", "gone": "missing",
        "half no checksums": "could not be read", "no metadata": "no checkpoint", "good": "loaded",
    }  # fmt: skip
    said = list(launch(try_all, 2))
    for found in said:
        assert found.keys() == words.keys()
        for name, (message, unchanged) in found.items():
            assert words[name] in message or "could not go on" in message, (name, message)
            assert unchanged == (name != "good"), name
    for name, word in words.items():
        assert any(word in found[name][0] for found in said), name


def test_another_models_state_is_refused_on_all_ranks(shard, tmp_path):
    launch(write, 2, shard, str(tmp_path / "saved"))

    def try_all():
        good = {n: t * 2 for n, t in build().state_dict().items()}
        missing = {n: t for n, t in good.items() if n != "3.weight"}
        bad = {
            "missing": missing,
            "extra": {**good, "other.weight": torch.ones(2)},
            "shape": {**good, "3.weight": torch.ones(7, 12)},
            "one rank": missing if dist.get_rank() == 1 else good,
        }
        found = {
            k: refused(shard, lambda m, o, s=s: load_full_state_dict(m, s)) for k, s in bad.items()
        }

        def into_another(model, optimizer):
            other = shard(nn.Sequential(nn.Linear(6, 13), nn.Linear(13, 3)))
            checkpoint.load(tmp_path / "saved", other)

        def other_groups(model, optimizer):
            checkpoint.load(tmp_path / "saved", model, torch.optim.AdamW(model.parameters()))

        found["another model"] = refused(shard, into_another)
        found["other groups"] = refused(shard, other_groups)
        return found

    words = {
        "missing": "missing 3.weight", "extra": "unexpected other.weight", "shape": r"[7, 13] in the model and [7, 12]",
        "one rank": "missing 3.weight", "another model": "of another model", "other groups": "parameter groups of",
    }  # fmt: skip
    first, second = launch(try_all, 2)
    for name, word in words.items():
        for message, unchanged in (first[name], second[name]):
            assert unchanged, name
            assert word in message, (name, message)
    assert "rank 1 could not go on" in first["one rank"][0]


def test_a_state_dict_of_flat_parts_is_refused():
    with pytest.raises(RankFailure, match="full_state_dict"):
        launch(lambda: sharded(FullyShardedDataParallel).state_dict(), 2)


def test_an_optimizers_state_of_another_number_of_ranks_is_refused():
    """torch's optimizer.load_state_dict does not look at shapes: the next step must. (DTensors look themselves.)"""

    def save_parts():
        model = sharded(FullyShardedDataParallel)
        optimizer = adam(model)
        step(model, optimizer, 0)
        return optimizer.state_dict()

    parts = launch(save_parts, 2)[0]

    def load_parts():
        model = sharded(FullyShardedDataParallel)
        optimizer = adam(model)
        optimizer.load_state_dict(parts)
        step(model, optimizer, 1)

    with pytest.raises(RankFailure, match="a state of another number of ranks"):
        launch(load_parts, 3)
