"""SyncBatchNorm on ranks is nn.BatchNorm on the whole batch: output, gradients, running statistics."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import launch
from dtcourse.data_parallel import DistributedDataParallel, SyncBatchNorm, batch_statistics
from dtcourse.profiling.memory_tracker import MemoryTracker
from tests.turns import taking_turns


def whole(momentum, affine):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5, momentum=momentum, affine=affine), nn.Tanh()
    )
    return model.double(), torch.randn(12, 2, 6, 6, dtype=torch.double) * 3 + 1


def train(model, x, wrap=lambda m: m):
    x = x.clone().requires_grad_()
    wrapped = wrap(model)
    y = wrapped(x)
    y.square().mean().backward()
    return x.grad, {n: p.grad for n, p in model.named_parameters()}, dict(model.named_buffers()), y


def part(momentum, affine):
    model, x = whole(momentum, affine)
    model = SyncBatchNorm.convert(model)
    mine = x.chunk(dist.get_world_size())[dist.get_rank()]
    return train(model, mine, lambda m: DistributedDataParallel(m, broadcast_buffers=False))


@pytest.mark.parametrize("world_size", [1, 3, *taking_turns(2, about="dtcourse/data_parallel/")])
@pytest.mark.parametrize(("momentum", "affine"), [(0.1, True), (None, True), (0.3, False)])
def test_equal_to_one_process(world_size, momentum, affine):
    x_grad, gradients, buffers, y = train(*whole(momentum, affine))
    run = launch(part, world_size, momentum, affine)
    # Each rank's loss is the mean over its part, so its inputs' gradients are world_size times those of the whole.
    got = torch.cat([r[0] for r in run]) / world_size
    assert torch.allclose(got, x_grad, atol=1e-12)
    assert torch.allclose(torch.cat([r[3] for r in run]), y, atol=1e-12)
    for _, mine, statistics, _ in run:
        for name, gradient in gradients.items():
            assert torch.allclose(mine[name], gradient, atol=1e-12), name
        for name, value in buffers.items():
            assert torch.allclose(statistics[name], value, atol=1e-6), name


def test_plain_batchnorm_on_parts_is_something_else():
    """What SyncBatchNorm repairs: the same comparison fails without it."""

    def without():
        model, x = whole(0.1, True)
        return train(model, x.chunk(2)[dist.get_rank()], DistributedDataParallel)

    y = train(*whole(0.1, True))[3]
    assert not torch.allclose(torch.cat([r[3] for r in launch(without, 2)]), y, atol=1e-3)


@pytest.mark.parametrize("counts", [(5,), (1, 6), (2, 3, 4)])
def test_the_statistics_are_those_of_all_samples(counts):
    x = torch.randn(sum(counts), 3, 4, dtype=torch.double) * 2 - 1

    def mine():
        return batch_statistics(x.split(counts)[dist.get_rank()])

    for mean, variance, count in launch(mine, len(counts)):
        assert torch.allclose(mean, x.mean((0, 2)), atol=1e-12)
        assert torch.allclose(variance, x.var((0, 2), unbiased=False), atol=1e-12)
        assert count == 4 * sum(counts)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precision_is_not_converted_as_a_whole(dtype):
    """1 M values far from 0: the statistics are float32's, and what they need besides the batch is a fraction of it."""
    torch.manual_seed(0)
    x = (torch.randn(128, 8, 32, 32) * 0.5 + 30).to(dtype)

    def mine():
        with MemoryTracker() as tracker:
            mean, variance, _ = batch_statistics(x)
        return mean, variance, tracker.peak.bytes

    mean, variance, peak = launch(mine, 1)[0]
    wide = x.double()
    assert torch.allclose(mean, wide.mean((0, 2, 3)), rtol=1e-6)
    assert torch.allclose(variance, wide.var((0, 2, 3), unbiased=False), rtol=1e-4)
    assert peak - x.nbytes < 0.6 * x.nbytes, "the batch is counted too"


def one_value(samples):
    norm = SyncBatchNorm(3)
    x = torch.randn(samples[dist.get_rank()], 3)
    try:
        norm(x)
    except ValueError as error:
        return str(error), norm.running_var.isfinite().all().item()
    return "", norm.running_var.isfinite().all().item()


@pytest.mark.parametrize("samples", [(1,), (1, 0), (0, 0)])
def test_one_value_per_channel_has_no_variance_and_is_refused_on_all_ranks(samples):
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        nn.BatchNorm1d(3)(torch.randn(1, 3))  # the rule that it follows
    for rank, (said, finite) in enumerate(launch(one_value, len(samples), samples)):
        size = f"got input size [{samples[rank]}, 3] here and {sum(samples)} on all ranks together"
        assert "Expected more than 1 value per channel when training, " + size in said
        assert finite


def test_one_value_on_each_of_two_ranks_is_a_batch_of_two():
    assert list(launch(one_value, 2, (1, 1))) == [("", True)] * 2


def in_half_precision(dtype, offset, all_half):
    """Errors against double precision, and dtypes: of SyncBatchNorm, and of nn.BatchNorm."""
    x = (torch.randn(64, 4, 3, generator=torch.Generator().manual_seed(1)) + offset).to(dtype)
    norm = nn.BatchNorm1d(4).to(dtype if all_half else torch.float32)
    exact = normalised(nn.BatchNorm1d(4).double(), x.double())
    found = []
    for one in (SyncBatchNorm.convert(copy.deepcopy(norm)), norm):
        got = normalised(one, x)
        errors = [(a.double() - b).abs().max().item() for a, b in zip(got, exact, strict=True)]
        found.append((errors, [t.dtype for t in got]))
    return found


def normalised(norm, x):
    """Output, the input's gradient, the weight's, the running mean and variance."""
    x = x.clone().requires_grad_()
    y = norm(x)
    (y * torch.arange(3.0, dtype=y.dtype)).sum().backward()
    return [y.detach(), x.grad, norm.weight.grad, norm.running_mean, norm.running_var]


@pytest.mark.parametrize("all_half", [False, True], ids=["float32 weights", "half weights"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("offset", [0.0, 20.0])
def test_in_half_precision_it_is_as_exact_as_batchnorm(dtype, offset, all_half):
    """A batch far from 0: nothing may be rounded before the mean is subtracted."""
    (ours, our_types), (theirs, their_types) = launch(
        in_half_precision, 1, dtype, offset, all_half
    )[0]
    assert our_types == their_types
    for mine, other in zip(ours, theirs, strict=True):
        assert mine <= 1.1 * other + 1e-6
