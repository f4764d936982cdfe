"""What is real and what is a shape where a rank is traced: whole numbers are read, weights take no memory."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from dtcourse import torch_private
from dtcourse.collectives.backend import virtual
from dtcourse.profiling.memory_tracker import MemoryTracker
from dtcourse.torch_private import is_fake, needs_values, without_values


def fake(tensor):
    return is_fake(type(tensor))


def test_whole_numbers_are_read_and_floats_are_shapes():
    with without_values():
        assert torch.arange(6).view(2, 3).tolist() == [[0, 1, 2], [3, 4, 5]]
        assert torch.tensor([3, 1]).sort().values.tolist() == [1, 3]
        assert torch.zeros(2, dtype=torch.int64).add_(7).tolist() == [7, 7]
        assert 0 <= int(torch.randint(2**62, ())) < 2**62
        assert torch.full((2,), 5).tolist() == [5, 5]
        for made in (torch.zeros(2), torch.randn(2), torch.empty(2), torch.full((2,), 5.0)):
            assert fake(made)


def test_a_terabyte_of_weights_and_many_whole_numbers_take_none():
    with without_values():
        assert fake(nn.Linear(500_000, 500_000).weight)
        assert fake(torch.zeros(torch_private.shapes.MOST + 1, dtype=torch.int64))


def test_a_model_is_converted():
    """In torch's FakeTensorMode that raises, but where an operation's shapes were worked out before."""
    with without_values():
        for dtype in (torch.float64, torch.bfloat16):
            model = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7)).to(dtype)
            assert {weight.dtype for weight in model.parameters()} == {dtype}
            assert all(map(fake, model.parameters()))


def test_a_real_tensor_meets_a_fake_one_as_a_shape():
    with without_values():
        table = nn.Embedding(8, 4)
        tokens = torch.randint(8, (2, 3))
        rows = table(tokens)
        assert fake(rows) and rows.shape == (2, 3, 4)
        rows.sum().backward()
        assert fake(table.weight.grad)
        assert not fake(tokens)


def test_the_draws_are_those_of_a_plain_run():
    def draw():
        return torch.randint(100, (5,), generator=torch.Generator().manual_seed(3)).tolist()

    with without_values():
        traced = draw()
    assert traced == draw()


def test_what_has_no_values_is_not_written_into_what_has():
    with without_values(), pytest.raises(ValueError, match="writes what has no values"):
        torch.zeros(3, dtype=torch.int64).copy_(torch.zeros(3))


@pytest.mark.parametrize("read", [torch.Tensor.item, torch.Tensor.nonzero, torch.Tensor.tolist])
def test_a_read_of_a_shape_is_told_from_other_errors(read):
    with without_values(), pytest.raises(RuntimeError) as caught:
        read(torch.zeros(()))
    assert needs_values(caught.value)
    assert not needs_values(RuntimeError("something else"))


def test_optimizers_count_their_steps():
    with without_values():
        weight = nn.Parameter(torch.zeros(3))
        optimizer = torch.optim.AdamW([weight])
        for _ in range(2):
            weight.grad = torch.ones(3)
            optimizer.step()
        assert optimizer.state[weight]["step"].item() == 2


def test_nothing_is_left_behind():
    before = torch_private.settings_of_process()
    with without_values():
        torch.zeros(1)
    assert torch_private.settings_of_process() == before
    assert not fake(torch.zeros(1))


def test_a_dtensor_comes_back_as_what_this_rank_holds():
    """Its own fake tensors, by which it works out shapes, are left alone."""
    with virtual.group(1, 4), without_values():
        mesh = init_device_mesh("cpu", (4,))
        whole = DTensor.from_local(torch.zeros(2, 3), mesh, [Shard(0)])
        assert whole.shape == (8, 3)
        doubled = whole * 2
        assert fake(doubled.to_local()) and doubled.to_local().shape == (2, 3)
        with MemoryTracker() as tracker:  # what is worked out once is kept, on a real rank and here
            kept = whole * 2
        assert tracker.peak.bytes == 2 * (2 * 3 * 4), (
            "this rank's parts, and not all ranks' together"
        )
        del kept
