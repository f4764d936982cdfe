"""Every algorithm against torch.distributed on gloo, over drawn sizes, dtypes, operations, roots and strides.

Ranks start once for many cases: hypothesis draws a list of them here, and the ranks work through it.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dtcourse import launch
from tests.turns import taking_turns

RINGS = ["naive_ring", "ring"]
ALGORITHMS = {
    "broadcast": ["naive", "ring", "tree", "double_tree", "halving_doubling", "hierarchical"],
    "reduce": ["naive", "ring", "tree", "double_tree", "halving_doubling", "hierarchical"],
    "all_reduce": ["naive", *RINGS, "tree", "double_tree", "halving_doubling", "hierarchical"],
    "doubling_all_reduce": ["halving_doubling"],
    "scatter": ["naive", "tree"],
    "gather": ["naive", "tree"],
    "all_gather": ["naive", "ring", "tree", "halving_doubling", "hierarchical"],
    "all_gather_single": ["naive", "ring", "tree", "halving_doubling", "hierarchical"],
    "reduce_scatter": ["naive", "ring", "tree", "halving_doubling", "hierarchical"],
    "reduce_scatter_single": ["naive", "ring", "tree", "halving_doubling", "hierarchical"],
    "all_to_all": ["naive", "pairwise"],
    "all_to_all_single": ["naive", "pairwise"],
    "barrier": ["naive", "tree", "halving_doubling", "hierarchical"],
}
PAIRS = [(c, a) for c, algorithms in ALGORITHMS.items() for a in algorithms]
REDUCES = ("reduce", "all_reduce", "doubling_all_reduce", "reduce_scatter", "reduce_scatter_single")

FLOATS = ["float64", "float32", "float16", "bfloat16"]
INTEGERS = ["int64", "int32", "int16", "int8", "uint8"]
BY_DTYPE = {
    **{dtype: ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "PREMUL_SUM"] for dtype in FLOATS},
    **{
        dtype: ["SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]
        for dtype in [*INTEGERS, "bool"]
    },
    "complex64": ["SUM", "AVG", "PRODUCT"],
}


class Case(NamedTuple):
    collective: str
    algorithm: str
    shape: tuple[int, ...]
    dtype: str
    op: str
    root: int
    strided: bool
    asynchronous: bool
    small_chunks: bool
    seed: int


@st.composite
def cases(draw: st.DrawFn, ranks: int) -> Case:
    collective, algorithm = draw(st.sampled_from(PAIRS))
    dtype = draw(st.sampled_from(list(BY_DTYPE)))
    return Case(
        collective,
        algorithm,
        draw(
            st.sampled_from(
                [(), (0,), (1,), (3,), (7,), (64,), (5, 3), (2, 0, 3), (129,), (4, 4, 9)]
            )
        ),
        dtype,
        draw(st.sampled_from(BY_DTYPE[dtype])),
        draw(st.integers(0, ranks - 1)),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.integers(0, 2**16)),
    )


# --- in the ranks ----------------------------------------------------------------------------------------------


def work_through(cases: list[Case]) -> list[str]:
    """Runs the cases and says which went wrong on this rank."""
    import importlib

    modules = {
        name: importlib.import_module(f"dtcourse.collectives.{name}")
        for name in sorted({case.algorithm for case in cases})
    }
    wrong = []
    for case in cases:
        complaint = run_case(case, modules[case.algorithm])
        if complaint:
            wrong.append(f"rank {dist.get_rank()}, {case}: {complaint}")
    return wrong


def run_case(case: Case, module: Any) -> str:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    collective = getattr(module, case.collective)
    options: dict[str, Any] = {"async_op": case.asynchronous}
    if case.small_chunks and case.algorithm in ("ring", "double_tree"):
        options["chunk_bytes"] = 24
    if case.algorithm == "hierarchical":
        options["node_size"] = max(d for d in (1, 2, 3, 4) if ranks % d == 0)

    def values(on: int, more: int = 0, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        """What rank `on` contributes: small whole numbers, so that every order of adding is exact."""
        shape = case.shape if shape is None else shape
        random = torch.Generator().manual_seed(case.seed + 1000 * on + more)
        x = torch.randint(1, 3, shape, generator=random)
        return x.to(getattr(torch, case.dtype))

    def laid_out(x: torch.Tensor) -> torch.Tensor:
        """The same values with gaps between them where the case says so."""
        if not case.strided or x.dim() == 0:
            return x.clone()
        wide = torch.zeros(*x.shape, 2, dtype=x.dtype)
        wide[..., 0] = x
        return wide[..., 0]

    def empty(shape: tuple[int, ...] | None = None) -> torch.Tensor:
        shape = case.shape if shape is None else shape
        return laid_out(torch.zeros(shape, dtype=getattr(torch, case.dtype)))

    def finish(work: Any) -> str:
        if (work is not None) != case.asynchronous:
            return f"async_op={case.asynchronous} returned {work}"
        if work is not None:
            work.wait()
            if not work.is_completed():
                return "not completed after wait()"
        return ""

    op = getattr(dist.ReduceOp, case.op)
    if case.op == "PREMUL_SUM":
        op = dist._make_nccl_premul_sum(2.0)
    root, mine = case.root, values(rank)
    name = case.collective.removeprefix("doubling_")

    if name == "barrier":
        return finish(collective(**options))
    if name == "broadcast":
        want, got = mine.clone(), laid_out(mine)
        dist.broadcast(raw(want), root)
        return finish(collective(got, root, **options)) or compare(got, want)
    if name == "reduce":
        got = laid_out(mine)
        complaint = finish(collective(got, root, op, **options))
        total = reduced(values, case.op, ranks)
        return complaint or compare(got, total if rank == root else mine)
    if name == "all_reduce":
        got = laid_out(mine)
        return finish(collective(got, op, **options)) or compare(
            got, reduced(values, case.op, ranks)
        )
    if name == "scatter":
        parts = [laid_out(values(root, r)) for r in range(ranks)] if rank == root else None
        got, want = empty(), torch.zeros_like(mine)
        dist.scatter(raw(want), [raw(p) for p in parts] if parts else None, root)
        return finish(collective(got, parts, root, **options)) or compare(got, want)
    if name == "gather":
        got = [empty() for _ in range(ranks)] if rank == root else None
        want = [torch.zeros_like(mine) for _ in range(ranks)] if rank == root else None
        dist.gather(raw(mine), [raw(w) for w in want] if want else None, root)
        complaint = finish(collective(laid_out(mine), got, root, **options))
        return complaint or compare(got or [], want or [])
    if name == "all_gather":
        got, want = [empty() for _ in range(ranks)], [torch.zeros_like(mine) for _ in range(ranks)]
        dist.all_gather([raw(w) for w in want], raw(mine))
        return finish(collective(got, laid_out(mine), **options)) or compare(got, want)
    if name == "all_gather_single":
        shape = (ranks, *case.shape)
        got, want = empty(shape), torch.zeros(shape, dtype=mine.dtype)
        dist.all_gather_into_tensor(raw(want), raw(mine))  # its name before 2.13
        return finish(collective(got, laid_out(mine), **options)) or compare(got, want)
    if name == "reduce_scatter":
        inputs, got = [laid_out(values(rank, r)) for r in range(ranks)], empty()
        complaint = finish(collective(got, inputs, op, **options))
        everything = lambda on: torch.stack([values(on, r) for r in range(ranks)])  # noqa: E731
        want = reduced(everything, case.op, ranks)[rank]
        kept = compare(inputs, [values(rank, r) for r in range(ranks)])
        return complaint or compare(got, want) or kept
    if name == "reduce_scatter_single":
        whole = values(rank, shape=(ranks, *case.shape))
        given, got = laid_out(whole), empty()
        complaint = finish(collective(got, given, op, **options))
        want = reduced(lambda on: values(on, shape=(ranks, *case.shape)), case.op, ranks)[rank]
        return complaint or compare(got, want) or compare(given, whole)
    # all-to-all: rank i sends (i + j) % 3 rows to rank j
    width = case.shape[1:]
    sends = [(rank + r + case.seed) % 3 for r in range(ranks)]  # symmetric, so also what comes
    sends = [s + (r < rank) * (case.seed % 2) for r, s in enumerate(sends)]
    receives = [(rank + r + case.seed) % 3 + (rank < r) * (case.seed % 2) for r in range(ranks)]
    x = values(rank, shape=(sum(sends), *width))
    if name == "all_to_all_single":
        got, want = (
            empty((sum(receives), *width)),
            torch.zeros(sum(receives), *width, dtype=x.dtype),
        )
        exchange_rows(want, x, receives, sends)
        return finish(collective(got, laid_out(x), receives, sends, **options)) or compare(
            got, want
        )
    assert name == "all_to_all"
    got = [empty((n, *width)) for n in receives]
    want = torch.zeros(sum(receives), *width, dtype=x.dtype)
    exchange_rows(want, x, receives, sends)
    complaint = finish(collective(got, [laid_out(part) for part in x.split(sends)], **options))
    return complaint or compare(got, list(want.split(receives)))


def raw(x: torch.Tensor) -> torch.Tensor:
    """The bytes of x, since gloo knows fewer dtypes than send and receive; a copy where x has gaps."""
    x = x.contiguous().view(-1)
    if x.stride() != (1,):  # one element that was cut out of something larger
        x = x.clone(memory_format=torch.contiguous_format)
    return x.view(torch.uint8)


def exchange_rows(
    want: torch.Tensor, x: torch.Tensor, receives: list[int], sends: list[int]
) -> None:
    row = x.element_size() * math.prod(x.shape[1:])
    dist.all_to_all_single(raw(want), raw(x), [row * n for n in receives], [row * n for n in sends])


def reduced(values: Any, op: str, ranks: int) -> torch.Tensor:
    """The expected result, from the values of all ranks: torch.distributed's where gloo has the operation and dtype."""
    everyone = [values(on) for on in range(ranks)]
    x = everyone[dist.get_rank()].clone()
    if x.dtype in GLOO_REDUCES and op not in ("AVG", "PREMUL_SUM"):
        dist.all_reduce(x, getattr(dist.ReduceOp, op))
        return x
    if op == "PREMUL_SUM":
        everyone = [2 * e for e in everyone]
    combine = {
        "SUM": torch.add,
        "AVG": torch.add,
        "PREMUL_SUM": torch.add,
        "PRODUCT": torch.mul,
        "MIN": torch.minimum,
        "MAX": torch.maximum,
        "BAND": torch.bitwise_and,
        "BOR": torch.bitwise_or,
        "BXOR": torch.bitwise_xor,
    }[op]
    total = everyone[0]
    for other in everyone[1:]:
        total = combine(total, other)
    return total / ranks if op == "AVG" else total


GLOO_REDUCES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
)


def compare(got: Any, want: Any) -> str:
    got, want = (x if isinstance(x, list) else [x] for x in (got, want))
    if len(got) != len(want) or not all(map(torch.equal, got, want)):
        return f"got {got}, want {want}"
    return ""


# --- tests -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 3, 4, *taking_turns(2, 6, 8, about="dtcourse/collectives/")])
@settings(
    max_examples=3,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_drawn_cases_agree_with_gloo(ranks: int, data: st.DataObject) -> None:
    # The first example of hypothesis is all minimal; the others are what counts.
    drawn = data.draw(st.lists(cases(ranks), min_size=60, max_size=60))
    wrong = launch(work_through, ranks, drawn, timeout=240, backend="gloo", device="cpu")
    assert not [w for on_rank in wrong for w in on_rank]


@pytest.mark.parametrize("ranks", [5, *taking_turns(4, 7, about="dtcourse/collectives/")])
def test_every_algorithm_in_every_form(ranks: int) -> None:
    """What drawing may leave out: each collective and algorithm, blocking and not,
    an odd size on an odd number of ranks."""
    every = [
        Case(c, a, (129,), "float32", "SUM", ranks - 1, strided, not strided, strided, 5)
        for (c, a), strided in itertools.product(PAIRS, [False, True])
    ]
    wrong = launch(work_through, ranks, every, timeout=240, backend="gloo", device="cpu")
    assert not [w for on_rank in wrong for w in on_rank]


def test_the_comparison_notices_a_wrong_sum() -> None:
    """The harness itself: an algorithm that forgets one rank must not pass."""

    def step() -> list[str]:
        from types import SimpleNamespace

        from dtcourse.collectives import ring

        def forgetful(x: torch.Tensor, op: Any, async_op: bool) -> Any:
            if dist.get_rank() == 2:
                x.zero_()
            return ring.all_reduce(x, op, async_op=async_op)

        case = Case("all_reduce", "broken", (7,), "float32", "SUM", 0, False, False, False, 1)
        return [run_case(case, SimpleNamespace(all_reduce=forgetful))]

    wrong = launch(step, 4, backend="gloo", device="cpu")
    assert all(w[0].startswith("got") for w in wrong)


def test_sums_have_the_same_bits_on_all_ranks_and_in_every_run() -> None:
    def step() -> dict[str, list[bytes]]:
        from dtcourse.collectives import (
            double_tree,
            halving_doubling,
            hierarchical,
            naive,
            naive_ring,
            ring,
            tree,
        )

        random = torch.Generator().manual_seed(dist.get_rank())
        x = torch.randn(10_001, generator=random) * 10.0 ** torch.randint(
            -8, 8, (10_001,), generator=random
        )
        bits: dict[str, list[bytes]] = {}
        rings = (naive_ring, ring)
        for module in (*rings, naive, tree, double_tree, halving_doubling, hierarchical):
            more = {"node_size": 2} if module is hierarchical else {}
            for _ in range(2):
                y = x.clone()
                module.all_reduce(y, **more)
                bits.setdefault(module.__name__, []).append(y.numpy().tobytes())
        return bits

    first, second = (launch(step, 4, backend="gloo", device="cpu") for _ in range(2))
    for module in first[0]:
        assert (
            len({run[r][module][i] for run in (first, second) for r in range(4) for i in (0, 1)})
            == 1
        )
    # orders differ between algorithms, so this could fail
    assert len({first[0][m][0] for m in first[0]}) > 1


def test_the_ring_is_the_one_on_a_page_bit_for_bit() -> None:
    """Whatever the size, the operation, the dtype and the chunks; and it sends as much."""

    def step() -> list[tuple[Any, ...]]:
        from dtcourse.collectives import naive_ring, ring, traffic

        def ours(x: torch.Tensor, op: str, call: Any, **chunks: int) -> tuple[list[float], int]:
            y = x.clone()
            with traffic.counting() as counted:
                call(y, getattr(dist.ReduceOp, op), **chunks)
            return y.tolist(), counted.bytes_sent()

        different = []
        for n, op, dtype in itertools.product((0, 1, 2, 7, 65), ("SUM", "AVG", "MAX"), FLOATS):
            random = torch.Generator().manual_seed(dist.get_rank())
            x = torch.randn(n, generator=random).to(getattr(torch, dtype)) / 3
            page, *fast = (
                ours(x, op, call, **more)
                for call, more in (
                    (naive_ring.all_reduce, {}),
                    (ring.all_reduce, {}),
                    (ring.all_reduce, {"chunk_bytes": 24}),
                )
            )
            different += [(n, op, dtype, page, one) for one in fast if one != page]
        return different

    assert list(launch(step, 3, backend="gloo", device="cpu")) == [[]] * 3


def test_average_is_the_sum_divided_once() -> None:
    def step() -> list[float]:
        from dtcourse.collectives import (
            double_tree,
            halving_doubling,
            hierarchical,
            naive,
            ring,
            tree,
        )

        values = []
        for module in (naive, ring, tree, double_tree, halving_doubling, hierarchical):
            x = torch.full((5,), 1.0 + dist.get_rank(), dtype=torch.float64)
            module.all_reduce(
                x, dist.ReduceOp.AVG, **({"node_size": 3} if module is hierarchical else {})
            )
            values += x.tolist()
        return values

    for values in launch(step, 3, backend="gloo", device="cpu"):
        assert values == [2.0] * 30  # (1 + 2 + 3) / 3; thirds added up would miss it


def test_groups_and_global_roots() -> None:
    """A group of ranks 3 and 1: `src` is a global rank, `group_src` a rank of the group."""

    def step() -> list[Any]:
        from dtcourse.collectives import double_tree, halving_doubling, ring, tree

        group = dist.new_group([1, 3])
        seen: list[Any] = []
        if dist.get_rank() in (1, 3):
            for module in (ring, tree, double_tree, halving_doubling):
                x, y = (torch.tensor([float(dist.get_rank())]) for _ in range(2))
                module.broadcast(x, src=3, group=group)
                module.broadcast(y, group_src=0, group=group)
                z = torch.tensor([float(dist.get_rank())])
                module.all_reduce(z, group=group)
                seen.append((x.item(), y.item(), z.item()))
        else:
            with pytest.raises(ValueError, match="not in the group"):
                ring.all_reduce(torch.zeros(1), group=group)
        return seen

    run = launch(step, 4, backend="gloo", device="cpu")
    assert run[1] == run[3] == [(3.0, 1.0, 4.0)] * 4


def test_a_subgroup_needs_no_connections_of_its_own() -> None:
    def step() -> tuple[float, float, float]:
        from dtcourse.collectives import ring, tree
        from dtcourse.collectives.subgroup import Subgroup

        rank = dist.get_rank()
        half = Subgroup(None, [r for r in range(5) if r % 2 == rank % 2])
        x, y, z = (torch.tensor([float(rank)]) for _ in range(3))
        ring.all_reduce(x, group=half)
        tree.broadcast(y, src=2 + rank % 2, group=half)  # a global rank, as in torch
        ring.all_reduce(z, group=half, async_op=True).wait()
        return x.item(), y.item(), z.item()

    even, odd = (6.0, 2.0, 6.0), (4.0, 3.0, 4.0)
    assert list(launch(step, 5, backend="gloo", device="cpu")) == [even, odd, even, odd, even]


def test_two_levels_over_any_two_algorithms() -> None:
    def step() -> list[tuple[str, str]]:
        from dtcourse.collectives import (
            double_tree,
            halving_doubling,
            hierarchical,
            naive,
            ring,
            tree,
        )

        wrong = []
        for inside in (naive, ring, tree, halving_doubling):
            for between in (naive, ring, tree, double_tree, halving_doubling):
                for node_size in (1, 2, 3, 6):
                    x = torch.arange(11.0) * dist.get_rank()
                    hierarchical.all_reduce(x, node_size=node_size, inside=inside, between=between)
                    if not torch.equal(x, torch.arange(11.0) * 15):
                        wrong.append((inside.__name__, between.__name__, node_size))
        return wrong

    assert all(wrong == [] for wrong in launch(step, 6, backend="gloo", device="cpu"))


def test_asynchronous_collectives_progress_without_wait_and_in_order() -> None:
    def step() -> list[Any]:
        import time

        from dtcourse.collectives import ring, tree

        first, second = torch.ones(1000), torch.ones(1000)
        store = dist.group.WORLD.get_group_store()
        if dist.get_rank() == 1:
            store.wait(["go"])  # not before rank 0 has seen that it does not have to wait
        a = ring.all_reduce(first, async_op=True)
        b = tree.all_reduce(second, async_op=True)
        early = a.is_completed() or b.is_completed()
        if dist.get_rank() == 0:
            store.set("go", "")
        end = time.monotonic() + 120
        while not b.is_completed() and time.monotonic() < end:
            time.sleep(0.001)  # nobody calls wait(): the worker does it all
        ordered = a.is_completed()
        third = torch.ones(3)
        ring.all_reduce(third)  # blocking, after what is under way
        b.get_future().wait()
        return [early, ordered, first[0].item(), second[-1].item(), third[0].item(), b.is_success()]

    run = launch(step, 2, backend="gloo", device="cpu")
    assert run[0] == [False, True, 2.0, 2.0, 2.0, True]
    assert run[1][1:] == [True, 2.0, 2.0, 2.0, True]


def test_many_asynchronous_collectives_at_once() -> None:
    def step() -> list[float]:
        from dtcourse.collectives import ring

        tensors = [torch.full((100,), float(i)) for i in range(30)]
        work = [ring.all_reduce(t, async_op=True) for t in tensors]
        for w in reversed(work):
            w.wait()
        return [t[0].item() for t in tensors]

    for values in launch(step, 3, backend="gloo", device="cpu"):
        assert values == [3.0 * i for i in range(30)]
