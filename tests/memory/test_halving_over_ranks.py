"""One rank alone runs out of memory, in earnest or amid its backward: all halve, and gradients are right."""

from __future__ import annotations

import resource
import sys
from contextlib import contextmanager, nullcontext

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from dtcourse import launch
from dtcourse.launch import RankFailure
from dtcourse.memory import train_step_with_halving
from dtcourse.verify import compare, gradients_of

RANKS, FAILS = 3, 1
OWN = (16, 12, 5)  # samples of each rank: none divides by another
MIB = 2**20


class FailsInBackward(nn.Module):
    """The identity, whose backward runs out of memory for more than so many samples."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.calls = most, 0

    def forward(self, x):
        if x.requires_grad and len(x) > self.most:
            x.register_hook(self._fail)
        return x

    def _fail(self, gradient):
        self.calls += 1
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def model_of(most: int = 10**9, dropout: float = 0.0) -> nn.Sequential:
    """The last layers' gradients are there when backward fails: their buckets would have been sent."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8), FailsInBackward(most), nn.Dropout(dropout), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(),
        nn.Linear(8, 3),
    ).double()  # fmt: skip


def batch() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each rank's."""
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(sum(OWN), n, generator=generator, dtype=torch.double) for n in (6, 3))
    return list(zip(x.split(OWN), y.split(OWN), strict=True))


def step(wrap, most, by_samples, dropout=0.0, micro_batch=None):
    """(micro-batch, attempts), gradients, and the next random number."""
    rank = dist.get_rank()
    model = model_of(most if rank == FAILS else 10**9, dropout)
    wrapped = wrap(model)
    torch.manual_seed(5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    done = train_step_with_halving(
        wrapped, F.mse_loss, optimizer, *batch()[rank],
        group=dist.group.WORLD, by_samples=by_samples, micro_batch=micro_batch,
    )  # fmt: skip
    return (done.micro_batch, done.attempts), gradients_of(model), torch.rand(()).item()


@contextmanager
def limited_by_the_system(most):
    """This process may have so many bytes more than it has now. In one thread: none can be started then."""
    before, threads = resource.getrlimit(resource.RLIMIT_AS), torch.get_num_threads()
    with open("/proc/self/status") as status:
        now = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmSize"))
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (now + most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        torch.set_num_threads(threads)


def memory_ends():
    """One rank may have 96 MiB more than it has. The first layer's output is 48, and so is what ReLU makes of it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 512), nn.ReLU(), nn.Linear(512, 1)).double()
    x = torch.randn(12288, 4, dtype=torch.double)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with limited_by_the_system(96 * MIB) if dist.get_rank() == FAILS else nullcontext():
        done = train_step_with_halving(
            model, F.mse_loss, optimizer, x, x[:, :1].clone(), group=dist.group.WORLD
        )
    found = gradients_of(model)
    model.zero_grad()
    F.mse_loss(model(x), x[:, :1]).backward()
    return done.attempts, done.micro_batch, found, gradients_of(model)


def one_sample_too_much():
    try:
        step(lambda model: model, 0, False)
    except torch.OutOfMemoryError as error:
        return str(error)


def everything():
    from dtcourse.data_parallel import DistributedDataParallel

    wraps = {
        "plain": lambda model: model,
        "ours": DistributedDataParallel,
        "PyTorch's": nn.parallel.DistributedDataParallel,
    }
    found = {name: [step(wrap, 4, by) for by in (True, False)] for name, wrap in wraps.items()}
    found["dropout"] = [step(wraps["ours"], 4, True, 0.5)]
    found["dropout at once"] = [step(wraps["ours"], 10**9, True, 0.5, 3)]
    found["one"] = one_sample_too_much()
    if sys.platform == "linux":
        found["memory"] = memory_ends()
    return found


@pytest.fixture(scope="module")
def ranks():
    return list(launch(everything, RANKS))


def alone(by_samples):
    """One process's gradients of all samples, or of the mean of the ranks' means."""
    model = model_of()
    weights = [n / sum(OWN) if by_samples else 1 / RANKS for n in OWN]
    for weight, (x, y) in zip(weights, batch(), strict=True):
        (F.mse_loss(model(x), y) * weight).backward()
    return gradients_of(model)


@pytest.mark.parametrize("wrap", ["plain", "ours", "PyTorch's"])
def test_a_backward_that_fails_on_one_rank_alone_is_repeated_by_all(ranks, wrap):
    """12 samples, then 6, then 3. The others go along: from 16 to 6 to 3, and from 5 to 3."""
    for rank, found in enumerate(ranks):
        for by_samples, (what, gradients, _) in zip((True, False), found[wrap], strict=True):
            assert what == (3, (3, 3, 2)[rank]), (
                "the others, who have succeeded with more, once more"
            )
            compare(gradients, alone(by_samples), 1e-10, f"rank {rank}")
    with pytest.raises(AssertionError):
        compare(ranks[0][wrap][0][1], alone(False), 1e-10)


def test_masks_are_those_of_a_step_that_fitted_at_once(ranks):
    for found in ranks:
        (_, gradients, following), (_, at_once, also) = (
            found[name][0] for name in ("dropout", "dropout at once")
        )
        compare(gradients, at_once, 1e-15)
        assert following == also


def test_one_sample_too_much_is_said_on_all_ranks(ranks):
    for rank, found in enumerate(ranks):
        assert found["one"].startswith("one sample at a time is still too much: ")
        assert ("another rank" in found["one"]) == (rank != FAILS)


@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not hold a process to RLIMIT_AS")
def test_memory_that_ends_in_earnest_on_one_rank(ranks):
    told = {found["memory"][:2] for found in ranks}
    assert len(told) == 1
    attempts, micro_batch = told.pop()
    assert attempts > 1
    assert micro_batch == 12288 >> (attempts - 1)
    for found in ranks:
        compare(found["memory"][2], found["memory"][3], 1e-10)


def test_a_model_whose_forward_waits_for_others_is_refused():
    def sharded():
        from dtcourse.sharding import fully_shard

        model = model_of()
        fully_shard(model)
        train_step_with_halving(
            model, F.mse_loss, torch.optim.SGD(model.parameters(), lr=0.0), *batch()[0]
        )

    with pytest.raises(RankFailure, match="lies in parts on the ranks, by full sharding"):
        launch(sharded, 2)
