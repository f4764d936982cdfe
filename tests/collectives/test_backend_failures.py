"""A failure on one rank raises on all: never a hang, never a silent wrong sum."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import launch
from dtcourse.collectives.backend import register as backend
from dtcourse.launch import RankFailure
from tests import at_once

BACKENDS = backend.choices()
LIMIT = 120.0  # a hang would end in RankTimeout


def _break_algorithm(culprit, collective):
    """From now on, that collective's algorithm raises on one rank."""
    from dtcourse.collectives.backend import table as algorithms

    original = algorithms.algorithm

    def broken(name, wanted):
        if wanted == collective and dist.get_rank() == culprit:

            def fails(*_, **__):
                raise ZeroDivisionError("injected")

            return fails
        return original(name, wanted)

    algorithms.algorithm = broken


def _by_all_reduce():
    _break_algorithm(2, "all_reduce")
    dist.all_reduce(torch.ones(5))


def _by_asynchronous_all_reduce():
    _break_algorithm(2, "all_reduce")
    dist.all_reduce(torch.ones(5), async_op=True).wait()


def _by_future():
    _break_algorithm(2, "all_reduce")
    dist.all_reduce(torch.ones(5), async_op=True).get_future().wait()


def _by_functional_collective():
    from torch.distributed import _functional_collectives as functional

    _break_algorithm(2, "all_reduce")
    return functional.all_reduce(torch.ones(5), "sum", dist.group.WORLD) + 1


def _by_ddp():
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(nn.Linear(3, 3))
    _break_algorithm(2, "all_reduce")
    model(torch.ones(2, 3)).sum().backward()


def _by_ddp_with_hook():
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(nn.Linear(3, 3))
    model.register_comm_hook(None, fp16_compress_hook)
    _break_algorithm(2, "all_reduce")
    model(torch.ones(2, 3)).sum().backward()


def _by_fully_shard_forward():
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(nn.Linear(3, 3))
    _break_algorithm(2, "all_gather_single")
    model(torch.ones(2, 3))


def _by_fully_shard_backward():
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(nn.Linear(3, 3))
    _break_algorithm(2, "reduce_scatter_single")
    model(torch.ones(2, 3)).sum().backward()


def _caught(function):
    """What the rank's failure looked like, and whether the group stays failed."""
    dist.all_reduce(torch.ones(5))  # all connections are there
    try:
        function()
    except Exception as error:
        try:
            dist.broadcast(torch.ones(1), src=0)
        except Exception:
            return type(error).__name__, str(error)
        return "the group went on", ""
    return "no error", ""


@pytest.mark.parametrize(
    "function",
    [
        _by_all_reduce,
        _by_asynchronous_all_reduce,
        _by_future,
        _by_functional_collective,
        _by_ddp,
        _by_ddp_with_hook,
        _by_fully_shard_forward,
        _by_fully_shard_backward,
    ],
    ids=lambda f: f.__name__.removeprefix("_by_"),
)
def test_a_failed_algorithm_raises_on_every_rank(function):
    run = launch(_caught, 4, function, backend="ring", timeout=LIMIT)
    for rank, (kind, text) in enumerate(run):
        assert kind not in ("no error", "the group went on"), f"rank {rank}"
        assert "injected" in text
        if rank != 2:
            assert "rank 2 failed in" in text
            assert "PeerFailure" in kind + text


@pytest.mark.parametrize("name", BACKENDS)
def test_a_failed_algorithm_raises_on_every_rank_of_each_backend(name):
    for kind, text in launch(_caught, 4, _by_all_reduce, backend=name, timeout=LIMIT):
        assert kind in ("ZeroDivisionError", "PeerFailure")
        assert "injected" in text


def _dies():
    dist.all_reduce(torch.ones(5))
    if dist.get_rank() == 1:
        raise KeyError("a mistake of one rank")
    for _ in range(100):
        dist.all_reduce(torch.ones(5))


@pytest.mark.parametrize("name", ["ring", "tree"])
def test_a_rank_that_leaves_is_the_one_that_is_reported(name):
    with pytest.raises(RankFailure, match="a mistake of one rank") as caught:
        launch(_dies, 4, backend=name, timeout=LIMIT)
    assert caught.value.rank == 1


# --- ranks that disagree ----------------------------------------------------------------------------------------


def _shapes():
    dist.all_reduce(torch.ones(10 + 2 * (dist.get_rank() == 1)))


def _dtypes():
    # As many bytes on each rank: a transport that only counts bytes would add integers to floats.
    dist.all_reduce(torch.ones(4, dtype=torch.int32 if dist.get_rank() == 1 else torch.float32))


def _reduce_ops():
    dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX if dist.get_rank() == 1 else dist.ReduceOp.SUM)


def _roots():
    dist.broadcast(torch.ones(4), src=int(dist.get_rank() == 1))


def _operations():
    dist.all_reduce(torch.ones(4)) if dist.get_rank() else dist.broadcast(torch.ones(4), src=0)


def _left_out():
    if dist.get_rank() != 1:
        dist.all_reduce(torch.ones(4))
    dist.barrier()


def _splits():
    sends, receives = [1, 1, 1], [1, 1, 1]
    if dist.get_rank() == 1:
        sends[2] = 7
    dist.all_to_all_single(torch.empty(3), torch.ones(sum(sends)), receives, sends)


def _messages():
    if dist.get_rank() == 0:
        dist.send(torch.ones(3), 1)
    elif dist.get_rank() == 1:
        dist.recv(torch.ones(4), 0)
    dist.barrier()


DISAGREEMENTS = [
    (_shapes, ["rank 0: all_reduce of 10 float32 (sum)", "rank 1: all_reduce of 12 float32"]),
    (_dtypes, ["rank 0: all_reduce of 4 float32", "rank 1: all_reduce of 4 int32"]),
    (
        _reduce_ops,
        ["rank 0: all_reduce of 4 float32 (sum)", "rank 1: all_reduce of 4 float32 (max)"],
    ),
    (_roots, ["root rank 0", "root rank 1"]),
    (_operations, ["rank 0: broadcast of 4 float32", "rank 1: all_reduce of 4 float32"]),
    (_left_out, ["rank 0: all_reduce of 4 float32", "rank 1: barrier"]),
    (_splits, ["rank 1 sends 7 elements to rank 2, which expects 1"]),
    (_messages, ["a message from rank 0 to rank 1", "rank 0: 3 float32", "rank 1: 4 float32"]),
]


def test_ranks_that_disagree_are_told_so():
    """Side by side: their guard takes its time to be sure."""
    found = at_once.outcomes(
        {
            function.__name__: lambda function=function: list(
                launch(_caught, 3, function, backend="ring", timeout=LIMIT)
            )
            for function, _ in DISAGREEMENTS
        }
    )
    for function, says in DISAGREEMENTS:
        run = found[function.__name__]
        assert isinstance(run, list), f"{function.__name__}: {run}"
        for kind, text in run:
            assert kind == "ValueError", function.__name__
            for words in says:
                assert words in text


def _slow_rank():
    x = torch.ones(4)
    if dist.get_rank() == 1:
        time.sleep(2.5)  # longer than the others' patience, and no mistake
    dist.all_reduce(x)
    return x.tolist()


def test_a_rank_that_is_late_is_no_mistake():
    assert list(launch(_slow_rank, 3, backend="ring", timeout=LIMIT)) == [[3.0] * 4] * 3


def _bad_calls():
    """Mistakes that one rank can see alone: raised by the call itself, on that rank, and nobody hangs."""
    errors = []

    def attempt(call):
        try:
            call()
        except ValueError as error:
            errors.append(str(error))

    from dtcourse.collectives import p2p

    rank, size = dist.get_rank(), dist.get_world_size()
    attempt(lambda: p2p.send(torch.ones(2), size))
    attempt(lambda: p2p.recv(torch.ones(2), rank))
    attempt(lambda: p2p.send(torch.ones(4, 4)[:, 0], (rank + 1) % size))
    pair = dist.new_group([0, 1])
    if rank == 2:
        attempt(lambda: p2p.send(torch.ones(2), 0, group=pair))
    dist.barrier()
    return errors


@pytest.mark.parametrize("name", ["gloo", "ring"])
def test_what_one_rank_can_see_alone_is_a_value_error(name):
    run = launch(_bad_calls, 3, backend=name, timeout=LIMIT)
    assert "dst=3 on rank 0 of a group of 3" in run[0][0]
    assert "src=1 on rank 1 of a group of 3" in run[1][1]
    assert "shape (4,) with strides (4,)" in run[0][2]
    assert "rank 2 is not in the group" in run[2][3]


def test_unknown_backends_are_refused():
    with pytest.raises(ValueError, match="no backend 'rings'; known are naive, ring"):
        backend.form_group("rings")


def test_the_launch_reports_the_cause_before_its_echoes():
    with pytest.raises(RankFailure, match="raised ZeroDivisionError: injected") as caught:
        launch(_by_all_reduce, 4, backend="ring", timeout=LIMIT)
    assert caught.value.rank == 2
