"""Saved on one layout and loaded on another: values bit for bit, and training goes on as in one process."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from dtcourse import checkpoint, launch
from dtcourse.checkpoint import checksums
from dtcourse.checkpoint.coverage import check_covered
from dtcourse.parameters.whole import full_state_dict
from dtcourse.sharding import ShardedDataParallel, ZeroRedundancyOptimizer
from dtcourse.verify import compare
from tests.pairs.layouts import (
    EXPERTS,
    GPT2,
    LLAMA,
    Layout,
    Training,
    alone,
    build,
    sgd,
)

STEPS = 2


def write(layout, config, folder):
    """Two steps, saved: the whole state."""
    training = Training(layout, config, seed=0)
    for number in range(STEPS):
        training.step(number)
    checkpoint.save(folder, training.wrapped, training.optimizer)
    return full_state_dict(training.model)


def read(layout, config, folder):
    """Into a model that starts elsewhere: the whole state, and what it is after one step more."""
    training = Training(layout, config, seed=7)
    optimizer = training.optimizer
    if layout.outer == "ZeRO-1":  # states of before, which are old after the load
        training.step(0)
        optimizer.consolidate_state_dict()
    checkpoint.load(folder, training.wrapped, optimizer)
    if "ZeRO" in layout.outer:
        assert {*optimizer.state} <= {*optimizer.owned()}, "each rank has the states it owns alone"
        with pytest.raises(RuntimeError, match="consolidate_state_dict"):
            optimizer.state_dict()
    loaded = full_state_dict(training.model)
    training.step(STEPS)
    return loaded, full_state_dict(training.model)


FULL, FLAT = "fully_shard", "FullyShardedDataParallel"
WAYS = [
    (GPT2, Layout(FULL, "tensor", (2, 2)), Layout(FLAT, "tensor", (2, 2))),
    (LLAMA, Layout(FLAT, "tensor", (2, 2)), Layout(FULL, "nothing", (3, 1))),
    (GPT2, Layout(FULL, "nothing", (3, 1)), Layout(FULL, "tensor", (2, 2))),
    (LLAMA, Layout("nothing", "tensor", (1, 2)), Layout(FLAT, "tensor", (2, 2))),
    (EXPERTS, Layout(FLAT, "expert", (2, 2)), Layout(FULL, "expert", (2, 2))),
    (EXPERTS, Layout(FULL, "expert", (2, 2)), Layout("nothing", "expert", (1, 4))),
    (GPT2, Layout("ZeRO-1", "tensor", (2, 2)), Layout(FULL, "sequence", (2, 2))),
    (GPT2, Layout(FLAT, "tensor", (2, 2)), Layout("ZeRO-2", "nothing", (3, 1))),
    (LLAMA, Layout("ZeRO-2", "sequence", (2, 2)), Layout("ZeRO-1", "tensor", (3, 2))),
    (EXPERTS, Layout("ZeRO-1", "expert", (2, 2)), Layout(FULL, "expert", (2, 2))),
    (EXPERTS, Layout("nothing", "expert", (1, 4)), Layout("ZeRO-1", "expert", (2, 2))),
    (GPT2, Layout("ZeRO-1", "nothing", (2, 1)), Layout("nothing", "nothing", (1, 1))),
]


@pytest.mark.parametrize(
    ("config", "source", "target"), WAYS, ids=[f"{a} to {b}" for _, a, b in WAYS]
)
def test_saved_on_one_layout_and_loaded_on_another(config, source, target, tmp_path):
    folder = str(tmp_path / "saved")
    saved = launch(write, source.ranks, source, config, folder)[0]
    right = alone(config, STEPS + 1).state
    for loaded, after in launch(read, target.ranks, target, config, folder):
        compare(loaded, saved, 0.0, "value")
        compare(after, right, 1e-12, "value after another step", norm=2)


def adams(folder, save):
    """ZeRO-2 with AdamW, whose states have a number of steps too: the whole optimizer's state on the first rank."""
    torch.manual_seed(0 if save else 1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1)
    wrapped = ShardedDataParallel(model, optimizer)
    if save:
        wrapped(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        checkpoint.save(folder, wrapped, optimizer)
    else:
        checkpoint.load(folder, wrapped, optimizer)
        assert {*optimizer.state} == {*optimizer.owned()}
    optimizer.consolidate_state_dict()
    return optimizer.state_dict() if optimizer.rank == 0 else None


def plain_adam(folder):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.2)
    checkpoint.load(folder, model, optimizer)
    return optimizer.state_dict()


def test_states_on_their_owners_are_saved_by_name_and_loaded_on_their_owners_alone(tmp_path):
    folder = str(tmp_path / "saved")
    saved = launch(adams, 2, folder, True)[0]
    stored = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    for name in ("0.weight", "0.bias", "1.weight", "1.bias"):
        assert {f"optimizer.state.{name}.{slot}" for slot in ("exp_avg", "step")} <= stored.keys()
    for loaded in (launch(adams, 3, folder, False)[0], launch(plain_adam, 1, folder)[0]):
        assert loaded["state"].keys() == saved["state"].keys() == {0, 1, 2, 3}
        for number, state in saved["state"].items():
            compare(loaded["state"][number], state, 0.0, f"state {number}")
        assert loaded["param_groups"][0]["lr"] == 0.1


def test_plain_pytorch_reads_it(tmp_path):
    folder = str(tmp_path / "saved")
    saved = launch(write, 4, Layout(FULL, "tensor", (2, 2)), GPT2, folder)[3]
    plain = build(GPT2, seed=9)
    state = {"model": plain.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    compare(state["model"], saved, 0.0, "value")


# --- a damaged one ----------------------------------------------------------------------------------------------------


def damaged(folder: Path, key: str, change) -> None:
    """Changes what the checkpoint says of one tensor's pieces, as if a rank's had been lost or written twice."""
    file = folder / ".metadata"
    metadata = pickle.loads(file.read_bytes())
    stored = metadata.state_dict_metadata[key]
    assert isinstance(stored, TensorStorageMetadata)
    change(stored.chunks)
    file.write_bytes(pickle.dumps(metadata))


def lose(chunks):
    del chunks[-1]


def twice(chunks):
    moved = pickle.loads(pickle.dumps(chunks[0]))
    moved.offsets = torch.Size([chunks[0].offsets[0] + 1, *chunks[0].offsets[1:]])
    chunks.append(moved)


def beyond(chunks):
    chunks[-1].offsets = torch.Size([1000, *chunks[-1].offsets[1:]])


def refused(layout, folder):
    mesh = layout.mesh()
    model = layout.apply(build(GPT2, seed=7), mesh)
    optimizer, before = sgd(model), full_state_dict(model)
    with pytest.raises(ValueError) as caught:
        checkpoint.load(folder, model, optimizer)
    compare(full_state_dict(model), before, 0.0, "value")
    assert not optimizer.state
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lose, r"pieces of model.blocks.0.mlp.up.weight \[64, 16\] hold \d+ of its 1024 elements"),
        (twice, r"two pieces of model.blocks.0.mlp.up.weight in the checkpoint overlap: \[0:\d+, 0:16\] and \[1:"),
        (beyond, r"model.blocks.0.mlp.up.weight is \[64, 16\], and a piece of it .*\[1000:\d+, 0:16\], is not within"),
    ],
)  # fmt: skip
def test_pieces_that_do_not_make_up_a_parameter_are_refused_on_every_rank(change, words, tmp_path):
    folder = tmp_path / "saved"
    launch(write, 4, Layout(FULL, "tensor", (2, 2)), GPT2, str(folder))
    damaged(folder, "model.blocks.0.mlp.up.weight", change)
    assert json.loads((folder / checksums.NAME).read_text()), "files are as they were"
    for said in launch(refused, 2, Layout(FLAT, "nothing", (2, 1)), str(folder)):
        assert re.search(words, said), said


def test_a_scalar_and_an_empty_tensor_are_covered():
    metadata = dcp.metadata.Metadata({})
    for name, shape in (("scalar", ()), ("empty", (0, 3))):
        tensor = torch.ones(shape)
        chunk = dcp.metadata.ChunkStorageMetadata(torch.Size([0] * len(shape)), torch.Size(shape))
        properties = dcp.metadata.TensorProperties.create_from_tensor(tensor)
        metadata.state_dict_metadata[name] = TensorStorageMetadata(
            properties, torch.Size(shape), [chunk]
        )
    check_covered(metadata, ["scalar", "empty"])
    metadata.state_dict_metadata["scalar"].chunks.clear()
    with pytest.raises(ValueError, match="hold 0 of its 1 elements"):
        check_covered(metadata, ["scalar"])


def test_the_optimizer_is_one_of_the_models():
    model = nn.Linear(2, 2)
    stranger = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)

    def save():
        with pytest.raises(ValueError, match="2 parameters that the model has not"):
            checkpoint.save("nowhere", model, stranger)

    launch(save, 1)
