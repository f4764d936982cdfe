"""Mistakes in a call: a ValueError that names ranks and sizes, before anything hangs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.collectives import EmulatedNetwork, checks
from dtcourse.collectives.checks import Signature
from dtcourse.collectives.reduce_ops import reduction_of

ALGORITHMS = (
    "naive",
    "ring",
    "tree",
    "double_tree",
    "halving_doubling",
    "hierarchical",
    "pairwise",
)


def messages(call: Callable[[], Any], ranks: int = 3) -> list[str]:
    """What `call` raises on each rank; the same mistake on every rank, so nobody waits."""

    def step() -> str:
        try:
            call()
        except ValueError as error:
            return str(error)
        return "no error"

    return list(launch(step, ranks, backend="gloo", device="cpu"))


def test_wrong_arguments_that_one_rank_can_see() -> None:
    def calls() -> None:
        from dtcourse.collectives import hierarchical, naive, pairwise, ring, tree

        x = torch.zeros(4)
        for expected, call in {
            r"src=7 is not in the group, which has the global ranks \[0, 1, 2\]": lambda: (
                ring.broadcast(x, 7)
            ),
            r"group_dst=3: the group has ranks 0 to 2": lambda: tree.reduce(x, group_dst=3),
            r"not both": lambda: tree.broadcast(x, 0, group_src=0),
            r"tensor_list needs one tensor for each of the 3 ranks, got 2": lambda: ring.all_gather(
                [x, x], x
            ),
            r"tensor_list\[1\] has 5 elements .* the tensor has 4": lambda: ring.all_gather(
                [x, torch.zeros(5), x], x
            ),
            r"3 ranks of 4 elements make 12, but the large tensor has 13": lambda: (
                ring.all_gather_single(torch.zeros(13), x)
            ),
            r"3 ranks of 4 elements make 12, but the large tensor has 11": lambda: (
                ring.reduce_scatter_single(x, torch.zeros(11))
            ),
            r"got torch.int64 on cpu and torch.float32 on cpu": lambda: ring.all_gather_single(
                torch.zeros(12, dtype=torch.int64), x
            ),
            r"4 rows cannot be split evenly over 3 ranks": lambda: pairwise.all_to_all_single(
                x.clone(), x
            ),
            r"input_split_sizes=\[1, 2, 3\] must be 3 sizes that add up to "
            r"the tensor's 4 rows, got 3 that add up to 6": (
                lambda: pairwise.all_to_all_single(x.clone(), x, [2, 1, 1], [1, 2, 3])
            ),
            r"output_split_sizes=\[4\]": lambda: pairwise.all_to_all_single(
                x.clone(), x, [4], [2, 1, 1]
            ),
            r"got 2 to send and 3 to receive": lambda: pairwise.all_to_all([x, x, x], [x, x]),
            r"differ in more than dim 0": lambda: pairwise.all_to_all_single(
                torch.zeros(3, 2), torch.zeros(3, 3)
            ),
            r"on meta": lambda: ring.all_reduce(torch.zeros(4, device="meta")),
            r"dense tensor is needed": lambda: ring.all_reduce(torch.eye(3).to_sparse()),
            r"a tensor is needed, got list": lambda: naive.all_reduce([1.0]),
            r"node_size=2 does not divide the group's 3 ranks": lambda: hierarchical.all_reduce(
                x, node_size=2
            ),
            r"chunk_bytes=0": lambda: ring.all_reduce(x, chunk_bytes=0),
        }.items():
            with pytest.raises(ValueError, match=expected):
                call()
        assert x.tolist() == [0.0] * 4

    assert messages(calls) == ["no error"] * 3


@pytest.mark.parametrize(
    ("op", "dtype", "words"),
    [
        ("AVG", torch.int64, "use SUM and divide"),
        ("AVG", torch.bool, "use SUM and divide"),
        ("BXOR", torch.float32, "for integers and bool"),
        ("MAX", torch.complex64, "no order"),
    ],
)
def test_operations_that_a_dtype_does_not_have(op: str, dtype: torch.dtype, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        reduction_of(getattr(dist.ReduceOp, op), torch.zeros(3, dtype=dtype), 4)
    with pytest.raises(ValueError, match="is no ReduceOp"):
        reduction_of("sum", torch.zeros(3), 4)


def test_sizes_that_differ_between_ranks_are_named_on_every_rank() -> None:
    def call() -> None:
        from dtcourse.collectives import ring

        ring.all_reduce(torch.zeros(10 + (dist.get_rank() == 2)))

    for message in messages(call):
        assert "rank 0: all_reduce(op=SUM) of 10 x torch.float32" in message
        assert "rank 2: all_reduce(op=SUM) of 11 x torch.float32" in message


def call_all_with_sizes_that_differ(group: Any) -> dict[str, str]:
    """Every collective of every algorithm, with one element more on ranks 2 and 3: what each call raises here."""
    import importlib

    from dtcourse.collectives import p2p

    more = int(dist.get_rank() >= 2)
    ranks, is_root = p2p.size(group), p2p.rank(group) == 0

    def x(times: int = 1) -> torch.Tensor:
        return torch.zeros((3 + more) * times)

    lists = [x() for _ in range(ranks)]
    calls: dict[str, Callable[[Any], Any]] = {
        "broadcast": lambda f: f(x(), group=group),
        "reduce": lambda f: f(x(), group=group),
        "all_reduce": lambda f: f(x(), group=group),
        "doubling_all_reduce": lambda f: f(x(), group=group),
        "scatter": lambda f: f(x(), lists if is_root else None, group=group),
        "gather": lambda f: f(x(), lists if is_root else None, group=group),
        "all_gather": lambda f: f(lists, x(), group=group),
        "all_gather_single": lambda f: f(x(ranks), x(), group=group),
        "reduce_scatter": lambda f: f(x(), lists, group=group),
        "reduce_scatter_single": lambda f: f(x(), x(ranks), group=group),
        "all_to_all": lambda f: f([x() for _ in lists], lists, group=group),
        "all_to_all_single": lambda f: f(x(ranks), x(ranks), group=group),
    }
    raised = {}
    for name in ALGORITHMS:
        module = importlib.import_module(f"dtcourse.collectives.{name}")
        for collective, call in calls.items():
            if hasattr(module, collective):
                try:
                    call(getattr(module, collective))
                    raised[f"{name}.{collective}"] = "no error"
                except ValueError as error:
                    raised[f"{name}.{collective}"] = str(error)
    return raised


def in_groups_of_every_kind() -> dict[str, dict[str, str]]:
    """Of the four ranks, the even ones and the odd ones; so one of each two has the longer tensors."""
    from dtcourse.collectives.subgroup import Subgroup

    halves = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    half = Subgroup(None, [r for r in range(4) if r % 2 == dist.get_rank() % 2])
    groups = {
        "all ranks": None,
        "new_group": halves[dist.get_rank() % 2],
        "subgroup": half,
        "subgroup of a subgroup": Subgroup(half, [1, 0]),
    }
    return {name: call_all_with_sizes_that_differ(group) for name, group in groups.items()}


@pytest.mark.parametrize(
    "watched", [{}, {"record": True}, {"network": EmulatedNetwork(latency=1e-6)}], ids=str
)
def test_sizes_that_differ_on_gloo_however_it_is_watched(watched: dict[str, Any]) -> None:
    run = launch(in_groups_of_every_kind, 4, backend="gloo", timeout=60, **watched)
    for rank, by_group in enumerate(run):
        for group, raised in by_group.items():
            assert len(raised) == 47  # every pair of test_algorithms.py that moves data
            for call, text in raised.items():
                assert "not in the same collective" in text or "sends" in text, (call, group, text)
                longer = 2 if group == "all ranks" else 2 + rank % 2
                assert f"rank {longer}" in text, (call, group, text)


def test_dtypes_roots_and_collectives_that_differ() -> None:
    def dtypes() -> None:
        from dtcourse.collectives import tree

        tree.broadcast(torch.zeros(4, dtype=[torch.float32, torch.float64][dist.get_rank() % 2]), 0)

    def roots() -> None:
        from dtcourse.collectives import tree

        tree.reduce(torch.zeros(4), dist.get_rank())

    def collectives() -> None:
        from dtcourse.collectives import ring, tree

        (ring.all_reduce if dist.get_rank() else tree.broadcast)(torch.zeros(4))

    for call, words in [
        (dtypes, "rank 1: broadcast(root=0) of 4 x torch.float64"),
        (roots, "rank 2: reduce(op=SUM, root=2)"),
        (collectives, "rank 0: broadcast(root=0)"),
    ]:
        assert all(words in message for message in messages(call))


def test_split_sizes_that_do_not_fit_together() -> None:
    def call() -> None:
        from dtcourse.collectives import pairwise

        sends = [1, 1, 2] if dist.get_rank() == 0 else [1, 1, 1]
        x = torch.zeros(sum(sends), 5)
        pairwise.all_to_all_single(torch.zeros(3, 5), x, [1, 1, 1], sends)

    for message in messages(call):
        assert "rank 0 sends 10 elements to rank 2, which expects 5" in message


def test_a_comparison_costs_no_message_and_is_made_once() -> None:
    def step() -> list[int]:
        from dtcourse.collectives import ring, traffic

        notes = []
        with traffic.counting() as counted:
            for _ in range(3):
                ring.all_reduce(torch.zeros(4))
                notes.append(checks.notes_of(dist.group.WORLD).count)
        return [counted.messages_sent(), *notes]

    assert all(seen == [18, 1, 1, 1] for seen in launch(step, 4, backend="gloo", device="cpu"))


@pytest.mark.parametrize(("mode", "count"), [("always", 3), ("off", 0)])
def test_comparing_always_or_never(mode: str, count: int) -> None:
    def step() -> int:
        from dtcourse.collectives import ring

        for _ in range(3):
            ring.all_reduce(torch.zeros(4))
        return checks.notes_of(dist.group.WORLD).count

    run = launch(step, 2, backend="gloo", device="cpu", env={"DTCOURSE_CHECK": mode})
    assert list(run) == [count] * 2


def test_a_mode_that_is_none() -> None:
    def call() -> None:
        from dtcourse.collectives import ring

        ring.all_reduce(torch.zeros(4))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DTCOURSE_CHECK", "sometimes")
        assert all("'sometimes'" in m for m in messages(call, 2))


def test_signatures_that_fit_pass() -> None:
    checks.compare([Signature("barrier")] * 3)
    checks.compare(
        [Signature("all_to_all", ([1, 2], [1, 5])), Signature("all_to_all", ([5, 0], [2, 0]))]
    )


def test_an_asynchronous_mistake_is_raised_by_wait() -> None:
    def call() -> None:
        from dtcourse.collectives import ring

        work = ring.all_reduce(torch.zeros(3 + dist.get_rank()), async_op=True)
        work.wait()

    assert all("rank 1: all_reduce(op=SUM) of 4" in m for m in messages(call))
