"""What a program may count on with gloo, it may count on with our backends, and with gloo when it is watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import launch
from dtcourse.collectives import EmulatedNetwork
from dtcourse.collectives.backend import register as backend
from dtcourse.collectives.backend import table as algorithms

RANKS = 3
BACKENDS = backend.choices()
WATCHED = {"record": {"record": True}, "network": {"network": EmulatedNetwork(latency=1e-6)}}


# --- in-place changes, as autograd counts them ------------------------------------------------------------------


def strided(elements: int) -> torch.Tensor:
    return torch.ones(elements, 2)[:, 0]


def calls_that_write(
    make: Callable[[int], torch.Tensor],
) -> Iterator[tuple[str, list[torch.Tensor], Callable[[], Any]]]:
    """Each collective: its name, the tensors of the user that it writes into, the call."""
    n, first = dist.get_world_size(), dist.get_rank() == 0
    x, whole, xs = make(4), make(4 * n), [make(4) for _ in range(n)]
    y, big, ys = make(4), torch.ones(4 * n), [make(4) for _ in range(n)]
    yield "all_reduce", [x], lambda: dist.all_reduce(x)
    yield "all_reduce max", [x], lambda: dist.all_reduce(x, dist.ReduceOp.MAX)
    yield "all_reduce async", [x], lambda: dist.all_reduce(x, async_op=True).wait()
    yield "reduce", [x], lambda: dist.reduce(x, 1)
    yield "broadcast", [x], lambda: dist.broadcast(x, 1)
    yield "scatter", [x], lambda: dist.scatter(x, ys if first else None)
    yield "gather", xs, lambda: dist.gather(y, xs if first else None)
    yield "all_gather", xs, lambda: dist.all_gather(xs, y)
    yield "all_gather_single", [whole], lambda: dist.all_gather_into_tensor(whole, y)
    yield "reduce_scatter", [x], lambda: dist.reduce_scatter(x, ys)
    yield "reduce_scatter_single", [x], lambda: dist.reduce_scatter_tensor(x, big)
    yield "all_to_all", xs, lambda: dist.all_to_all(xs, ys)
    if make is not strided:  # torch itself wants it contiguous
        yield "all_to_all_single", [whole], lambda: dist.all_to_all_single(whole, big)


def counted_changes() -> dict[str, bool]:
    """Whether autograd counts what each collective writes as an in-place change of the tensor."""
    import warnings

    warnings.simplefilter("ignore")  # torch's own, of the older names
    seen = {}
    for make in (torch.ones, strided):
        for name, tensors, call in calls_that_write(make):
            before = [t._version for t in tensors]
            call()
            after = [t._version for t in tensors]
            seen[f"{name}, {make.__name__}"] = before != after
    return seen


def test_a_collective_counts_as_an_in_place_change_where_it_does_on_gloo() -> None:
    gloo = launch(counted_changes, RANKS, backend="gloo")
    assert len(gloo[0]) == 25
    assert {"broadcast, ones", "all_reduce, strided"} <= {n for n, c in gloo[0].items() if not c}
    for name in BACKENDS:
        assert list(launch(counted_changes, RANKS, backend=name)) == list(gloo), name


class Scaled(nn.Module):
    """A buffer that backward needs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("by", torch.arange(1.0, 4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


def a_buffer_between_two_forwards_of_one_backward() -> None:
    from torch.nn.parallel import DistributedDataParallel as Torchs

    from dtcourse.data_parallel import DistributedDataParallel as Ours

    for wrap in (Torchs, Ours):
        model = wrap(nn.Sequential(nn.Linear(3, 3, bias=False), Scaled()))
        x = torch.ones(1, 3)
        (model(x).sum() + model(2 * x).sum()).backward()
        assert model.module[0].weight.grad[:, 0].tolist() == [3.0, 6.0, 9.0]


# --- tensors whose memory is not what they hold -----------------------------------------------------------------


@contextmanager
def refused(words: str) -> Iterator[None]:
    with pytest.raises(ValueError, match=words):
        yield


def views_that_conjugate_and_negate() -> None:
    rank = dist.get_rank()
    z = torch.tensor([1 + 2j * (rank + 1)])

    def conjugated() -> torch.Tensor:
        return z.clone().conj()

    def negated() -> torch.Tensor:
        return z.clone().conj().imag  # -2, -4, -6, stored as 2, 4, 6

    def run(collective: str, *args: Any, **more: Any) -> None:
        # torch refuses some of them, and not others, when they are conjugated; so ours are called directly
        algorithms.algorithm(dist.get_backend(), collective)(*args, **more)

    for make, values in ((conjugated, [1 - 2j, 1 - 4j, 1 - 6j]), (negated, [-2.0, -4.0, -6.0])):
        x = make()
        run("all_reduce", x)
        assert x.tolist() == [sum(values)]
        x = make()
        run("reduce", x, 2)
        assert x.tolist() == [sum(values) if rank == 2 else values[rank]]
        x = make()
        run("broadcast", x, 1)
        assert x.tolist() == [values[1]]
        xs = [make() for _ in values]
        run("all_gather", xs, make())
        assert [x.item() for x in xs] == values
        x = make()
        run("scatter", x, [make() * (i + 1) for i in range(3)] if rank == 1 else None, src=1)
        assert x.tolist() == [values[1] * (rank + 1)]
        x = make()
        run("reduce_scatter", x, [make() * (i + 1) for i in range(3)])
        assert x.tolist() == [sum(values) * (rank + 1)]
        run("all_to_all", xs, [make() * (i + 1) for i in range(3)])
        assert [x.item() for x in xs] == [value * (rank + 1) for value in values]
    with refused("call .resolve_conj"):
        dist.send(negated(), (rank + 1) % 3)
    with refused("a message must be dense, got layout torch.sparse_coo"):
        dist.recv(torch.eye(2).to_sparse(), (rank + 1) % 3)
    with refused("got a tensor on meta"):
        dist.isend(torch.ones(2, device="meta"), (rank + 1) % 3)


def tensors_of_inference_mode() -> None:
    def made() -> torch.Tensor:
        with torch.inference_mode():
            return torch.ones(3) + dist.get_rank()

    def all_of_them() -> None:
        x = made()
        dist.all_reduce(x)
        dist.broadcast(x, 1)
        dist.reduce(x, 1)
        dist.scatter(x, [made() for _ in range(3)] if dist.get_rank() == 0 else None)
        assert x.tolist() == [1.0] * 3
        xs = [made() for _ in range(3)]
        dist.all_gather(xs, made())
        assert [t[0].item() for t in xs] == [1.0, 2.0, 3.0]
        dist.all_gather_into_tensor(torch.cat(xs), made())
        dist.reduce_scatter(x, xs)
        normal = torch.ones(3)
        dist.all_reduce(normal, async_op=True).wait()  # in memory that was kept from before
        assert normal.tolist() == [3.0] * 3

    with torch.inference_mode():
        all_of_them()
    all_of_them()


def unusual_tensors() -> None:
    tensors_of_inference_mode()  # first: what it leaves in memory must not be in the others' way
    a_buffer_between_two_forwards_of_one_backward()
    views_that_conjugate_and_negate()


@pytest.mark.parametrize("name", BACKENDS)
def test_unusual_tensors(name: str) -> None:
    launch(unusual_tensors, 3, backend=name)


def what_torch_cannot_compute() -> None:
    x = torch.ones(4, dtype=torch.uint16)
    dist.broadcast(x, 0)  # carrying is no computing
    with refused("PyTorch does not compute SUM of torch.uint16 on cpu: use a wider dtype"):
        dist.all_reduce(x)


def a_root_that_is_none() -> None:
    with refused("root rank 9: the group has ranks 0 to 2"):
        dist.broadcast(torch.ones(1), 9)
    dist.all_reduce(torch.ones(1))  # the group goes on


@pytest.mark.parametrize("mistake", [what_torch_cannot_compute, a_root_that_is_none])
def test_mistakes_have_sentences(mistake: Callable[[], None]) -> None:
    launch(mistake, 3, backend="ring")


# --- messages ---------------------------------------------------------------------------------------------------


def messages_as_gloo_has_them() -> tuple[Any, ...]:
    """Into a larger tensor, and into one of another dtype; and a Work that says who sent."""
    x = torch.arange(4.0) + 1
    if dist.get_rank() == 0:
        dist.send(x, 1, tag=1)
        dist.send(x, 1, tag=2)
        dist.send(x, 1)
        return ()
    larger, bits = torch.zeros(6), torch.zeros(4, dtype=torch.int32)
    dist.recv(larger, 0, tag=1)
    dist.recv(bits, 0, tag=2)
    y = torch.zeros(4)
    work = dist.irecv(y, 0)
    work.wait()
    return larger.tolist(), bits.tolist(), y.tolist(), work.source_rank()


@pytest.mark.parametrize("how", WATCHED)
def test_messages_on_watched_gloo_are_gloos(how: str) -> None:
    on_gloo = launch(messages_as_gloo_has_them, 2, backend="gloo")
    assert on_gloo[1][0] == [1.0, 2.0, 3.0, 4.0, 0.0, 0.0]
    watched = launch(messages_as_gloo_has_them, 2, backend="gloo", timeout=20, **WATCHED[how])
    assert list(watched) == list(on_gloo)


def who_sent() -> int | None:
    if dist.get_rank():
        work = dist.irecv(y := torch.zeros(2), 0)
        work.wait()
        assert y.tolist() == [1.0, 1.0]
        return work.source_rank()
    return dist.send(torch.ones(2), 1)


def test_a_message_of_ours_says_who_sent_it() -> None:
    assert list(launch(who_sent, 2, backend="ring")) == [None, 0]


# --- a group that fails in its first collective -----------------------------------------------------------------


def fails_at_once(rounds: int, folder: str) -> list[str]:
    """Forms a group whose first collective is refused, again and again; what form_group and the call raised."""
    import os

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(f"{folder}/store", size)
    raised = []
    for i in range(rounds):
        try:
            backend.form_group(
                "ring", rank=rank, world_size=size, store=dist.PrefixStore(str(i), store)
            )
            dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND)
        except (ValueError, RuntimeError) as error:
            raised.append(str(error))
        store.set(f"round {i} rank {rank}", "")
        store.wait([f"round {i} rank {r}" for r in range(size)])
        dist.destroy_process_group()
    return raised


def test_no_rank_loses_its_connections_before_it_has_them(tmp_path: Any) -> None:
    for raised in launch(fails_at_once, 4, 60, str(tmp_path), init=False, timeout=100):
        assert len(raised) == 60
        for text in raised:
            assert "BAND is for integers and bool" in text, text
