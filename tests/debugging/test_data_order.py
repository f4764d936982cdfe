"""Which samples each rank reads, and what is wrong with that."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler as TorchSampler

from dtcourse import launch
from dtcourse.data.sampler import DistributedSampler
from dtcourse.debugging import data_order, gathered_order


def ours(padding="exact", shuffle=True):
    def samples(rank, size, epoch):
        sampler = DistributedSampler(10, size, rank, shuffle=shuffle, padding=padding)
        sampler.set_epoch(epoch)
        return sampler

    return samples


def torchs(rank, size, epoch):
    return TorchSampler(range(10), size, rank)  # and nobody calls set_epoch


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_each_once_on_any_world_size(world_size):
    order = data_order(ours(), 10, world_size, epochs=2)
    assert order.covers_once
    uneven = bool(10 % world_size)
    assert any("in a collective" in fault for fault in order.faults) == uneven
    assert len(order.faults) == 2 * uneven, "that alone, in each epoch"
    assert ("each once" in str(order)) != uneven


def test_padding_repeats_and_dropping_leaves_out():
    order = data_order(ours("repeat", shuffle=False), 10, 4)
    assert not order.covers_once
    assert order.faults == [
        "2 samples (0, 1) are read by several ranks, the first by ranks 0 and 2"
    ]
    order = data_order(ours("drop", shuffle=False), 10, 4)
    assert order.faults == ["2 samples (8, 9) are read by nobody"]


def test_a_sampler_that_was_not_told_its_rank():
    order = data_order(lambda rank, size, epoch: range(10), 10, 3)
    assert order.faults == [
        "10 samples (0, 1, 2, 3, 4, ...) are read by several ranks, the first by ranks 0, 1 and 2"
    ]
    assert str(order).startswith("3 ranks read 10, 10 and 10 of 10 samples: 10 samples (0,")


def test_twice_by_one_rank_and_no_set_epoch():
    order = data_order(lambda rank, size, epoch: [0, 1, 2, 1], 3, 1)
    assert order.faults == ["1 sample (1) is read twice by one rank, the first by rank 0"]
    (fault,) = data_order(torchs, 10, 2, epochs=2).faults
    assert fault.startswith("epoch 1 has the order of epoch 0: set_epoch was not called")
    assert data_order(ours(), 10, 2, epochs=3).faults == []


def test_the_same_batches_whatever_the_number_of_ranks():
    batches = {p: data_order(ours(), 10, p).batches(4 // p) for p in (1, 2, 4)}
    assert batches[1] == batches[2] == batches[4] and len(batches[1]) == 3
    blocks = lambda rank, size, epoch: range(rank * 10 // size, (rank + 1) * 10 // size)  # noqa: E731
    assert data_order(blocks, 10, 2).batches(2) != data_order(blocks, 10, 1).batches(4)


def reads():
    sampler = TorchSampler(range(10), dist.get_world_size(), dist.get_rank(), shuffle=False)
    return str(gathered_order(list(DataLoader(range(10), batch_size=2, sampler=sampler)), 10))


def test_what_ranks_have_really_read():
    said = "3 ranks read 4, 4 and 4 of 10 samples: 2 samples (0, 1) are read by several ranks, "
    said += "the first by ranks 0 and 1."
    assert list(launch(reads, 3)) == [said] * 3


def test_numbers_that_are_none():
    with pytest.raises(ValueError, match=r"1 or more; got 10, 0 and 1"):
        data_order(ours(), 10, 0)
    with pytest.raises(ValueError, match="rank 0 reads sample 9, and there are 0 to 8"):
        data_order(ours(), 9, 1)
