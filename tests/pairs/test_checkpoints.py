"""What a checkpoint of several techniques holds, and what is said of one that is damaged. Loaded on other layouts:
test_other_layouts.py.
"""

from __future__ import annotations

import json
import pickle
import re
import shutil
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
from tests.pairs.layouts import GPT2, Layout, build, sgd
from tests.pairs.saving import write

FULL, FLAT = "fully_shard", "FullyShardedDataParallel"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of two techniques, and its state."""
    folder = tmp_path_factory.mktemp("saved") / "two steps"
    return folder, launch(write, 4, Layout(FULL, "tensor", (2, 2)), GPT2, str(folder), 2)[3]


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


def test_plain_pytorch_reads_it(saved):
    folder, right = saved
    plain = build(GPT2, seed=9)
    state = {"model": plain.state_dict()}
    dcp.load(state, checkpoint_id=str(folder))
    compare(state["model"], right, 0.0, "value")


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
def test_pieces_that_do_not_make_up_a_parameter_are_refused_on_every_rank(
    saved, change, words, tmp_path
):
    folder = Path(shutil.copytree(saved[0], tmp_path / "damaged"))
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
