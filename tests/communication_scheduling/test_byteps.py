"""Servers beside peers: the sum is the sum, bytes are the paper's, and its mix is the fastest,
on paper and under emulation."""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed as dist

from dtcourse import emulation, launch
from dtcourse.communication_scheduling.byteps import push_pull_seconds, shares
from dtcourse.communication_scheduling.push_pull import HEADER, PushPull, push_pull_hook, serve
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.emulation import EmulatedNetwork
from dtcourse.verify import CASES, compare, gradients_of

# --- the mix -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("k", [0, 1, 2, 4, 8, 9])
@pytest.mark.parametrize("speed", [0.5, 1.0, 4.0])
def test_no_other_mix_is_faster(n, k, speed):
    x, y = shares(n, k, speed)
    assert n * x + k * y == pytest.approx(1.0)
    best = push_pull_seconds(1.0, 1.0, n, k, speed)
    for i in range(101 if k else 1):
        assert best <= push_pull_seconds(1.0, 1.0, n, k, speed, at_servers=i / 100) + 1e-12
    if n > 1 and k * speed >= n:
        # all at the servers, and a worker's own bytes are all there is
        assert best == pytest.approx(1.0)
    elif n > 1 and speed == 1.0:
        assert best == pytest.approx(2 * n * (n - 1) / (n * n + k * n - 2 * k))  # the paper's


# --- the exchange ------------------------------------------------------------------------------------------------

ELEMENTS = 1001  # nothing divides it


def sums(num_servers, mixes):
    """Sums of whole numbers, and the counts of elements that the shares make."""
    rank, n = dist.get_rank(), dist.get_world_size() - num_servers
    if rank >= n:
        return serve(num_servers)
    found = []
    for mix in mixes:
        exchange = PushPull(num_servers, at_servers=mix, chunk_bytes=256)
        x = torch.arange(ELEMENTS, dtype=torch.float64) * (rank + 1)
        y = torch.full((3, 5), float(rank))
        works = [exchange(x), exchange(y, average=True)]
        for work in works:
            work.wait()
        assert torch.equal(x, torch.arange(ELEMENTS, dtype=torch.float64) * n * (n + 1) / 2)
        assert torch.equal(y, torch.full((3, 5), (n - 1) / 2))
        found.append(len(x))
    exchange.stop()
    return found


@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 0), (2, 1), (3, 1), (2, 2), (4, 2)])
def test_the_sum_and_the_bytes_of_every_rank(n, k):
    mix = shares(n, k)[1] * k
    run = launch(sums, n + k, k, [None], backend="ring", record=True)
    sent = [run.traffic.bytes_sent(rank=r, operation="push_pull") for r in range(n + k)]
    expected = [0] * (n + k)
    for elements, itemsize in ((ELEMENTS, 8), (15, 4)):
        served = round(mix * elements)
        for rank in range(n + k):
            owned, of, first = (served, k, n) if rank >= n else (elements - served, n, 0)
            part = owned // of + (rank - first < owned % of)
            others = elements - part if rank < n else 0
            expected[rank] += (others + part * (n - (rank < n))) * itemsize
    assert sent == expected
    told = [run.traffic.bytes_sent(rank=r, operation="push_pull header") for r in range(n + k)]
    assert told == [3 * k * HEADER * 8] + [0] * (n + k - 1)
    if n > 1 and k < n:  # and, but for what does not divide, the formula's
        x, y = shares(n, k)
        whole = ELEMENTS * 8 + 15 * 4
        assert sent[0] == pytest.approx((1 + (n - 2) * x) * whole, abs=8 * (n + 2))
        assert sent[-1] == pytest.approx((n * y if k else 1 + (n - 2) * x) * whole, abs=8 * (n + 2))


def trained():
    """Gradients of three steps under the hook, on two workers and a server."""
    rank, found = dist.get_rank(), []
    workers = dist.new_group([0, 1])
    if rank == 2:
        return serve(1)
    exchange = PushPull(1, chunk_bytes=64)
    case = CASES["tied"]
    wrapped = DistributedDataParallel(
        case.build(rank).double(), process_group=workers, bucket_cap_mb=5e-4
    )
    wrapped.register_comm_hook(exchange, push_pull_hook)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        x, y = (t.chunk(2)[rank] for t in case.batch(8, step))
        case.loss(wrapped(x), y).backward()
        found.append(gradients_of(wrapped.module))
        optimizer.step()
    exchange.stop()
    return found


def test_as_a_hook_it_gives_the_gradients_of_one_process():
    run = launch(trained, 3, backend="ring")
    case = CASES["tied"]
    model = case.build(0).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        x, y = case.batch(8, step)
        case.loss(model(x), y).backward()
        for rank in (0, 1):
            compare(run[rank][step], gradients_of(model), 1e-12)
        optimizer.step()
    assert run[2] >= 3 * 2, "several buckets a step"


# --- under emulation ---------------------------------------------------------------------------------------------

LARGE = 12_000  # elements of 4 bytes


def timed(num_servers, mixes):
    rank, n = dist.get_rank(), dist.get_world_size() - num_servers
    if rank >= n:
        return serve(num_servers)
    times = []
    for mix in mixes:
        exchange = PushPull(num_servers, at_servers=mix, chunk_bytes=240)
        begun = float(int(emulation.now()) + 2)  # all begin at one moment
        emulation.sleep(begun - emulation.now())
        exchange(torch.ones(LARGE)).wait()
        times.append(emulation.now() - begun)
    exchange.stop()
    return times


def test_the_mix_that_is_predicted_is_the_fastest_that_is_measured():
    n, k = 4, 2
    bandwidth = LARGE * 4.0  # all of it in a second
    best = shares(n, k)[1] * k
    mixes = sorted([0.0, 0.2, 0.4, 0.5, best, 0.7, 0.8, 1.0])
    network = EmulatedNetwork(bandwidth=bandwidth)
    run = launch(timed, n + k, k, mixes, backend="ring", network=network, clock="virtual")
    measured = [max(run[rank][i] for rank in range(n)) for i in range(len(mixes))]
    predicted = [push_pull_seconds(LARGE * 4, bandwidth, n, k, at_servers=mix) for mix in mixes]
    for told, took in zip(predicted, measured, strict=True):
        assert told <= took <= told * 1.1, "the busiest port, and the first and last chunks"
    assert mixes[measured.index(min(measured))] == best
    assert min(measured) < 0.9 * measured[0], "than peers alone"
    assert min(measured) < 0.67 * measured[-1], "than servers alone"


def refusals():
    def sentence(call):
        with pytest.raises(ValueError) as error:
            call()
        return str(error.value)

    return {
        "num_servers=1 of 1 ranks": sentence(lambda: PushPull(1)),
        "got chunk_bytes=0": sentence(lambda: PushPull(0, chunk_bytes=0)),
        "0 servers take .* between 0 and 0 .* at_servers=0.5": sentence(
            lambda: PushPull(0, at_servers=0.5)
        ),
        "got 0, 1 and 1.0": sentence(lambda: shares(0, 1)),
        "at_servers=1.5": sentence(lambda: shares(2, 1, at_servers=1.5)),
        "got torch.int64": sentence(lambda: PushPull(0)(torch.ones(3, dtype=torch.int64))),
        "rank 0 is a worker: the last 0 of 1": sentence(lambda: serve(0)),
    }


def test_what_cannot_be_is_refused():
    for pattern, said in launch(refusals, 1)[0].items():
        assert re.search(pattern, said), said
