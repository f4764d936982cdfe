"""The one door: what ranks ask each other in order to decide, on real groups and on virtual ones."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from dtcourse import launch
from dtcourse.collectives import decisions
from dtcourse.collectives.backend import virtual
from dtcourse.collectives.decisions import Answers
from dtcourse.torch_private import without_values

ROOT = Path(__file__).resolve().parents[2] / "dtcourse"
ON_CPU = torch.device("cpu")
# What hybrid's step is made of. Checkpoints and an optimizer's consolidation are no part of a step.
TECHNIQUES = ("parameters", "sharding", "pipeline_parallel", "tensor_parallel", "sequence_parallel", "expert_parallel",
              "hybrid")  # fmt: skip
OBJECTS = {"all_gather_object", "broadcast_object_list", "scatter_object_list"}


def test_techniques_ask_by_the_one_door():
    found = [
        f"{path.relative_to(ROOT)}: {node.attr}"
        for technique in TECHNIQUES
        for path in sorted((ROOT / technique).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in OBJECTS
    ]
    assert not found, f"ask through collectives/decisions.py: {found}"


def lines(shape, pairs):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("a", "b", "c"))
    return [decisions.grid([mesh.get_group(name) for name in names]) for names in pairs]


@pytest.mark.parametrize("rank", range(8))
def test_lines_of_a_mesh_are_those_that_real_ranks_tell(rank):
    pairs = [("a",), ("a", "b"), ("b", "c"), ("a", "c"), ("c", "a"), ("a", "b", "c")]
    run = launch(lines, 8, (2, 2, 2), pairs)
    with virtual.group(rank, 8), without_values():
        assert lines((2, 2, 2), pairs) == run[rank]


def everyones():
    return decisions.said_by_all({"rank": dist.get_rank()})


def test_a_real_group_says_what_each_rank_says():
    assert launch(everyones, 2)[1] == [{"rank": 0}, {"rank": 1}]


def test_a_virtual_one_says_what_this_rank_says():
    with virtual.group(1, 4), without_values():
        assert everyones() == [{"rank": 1}] * 4


def rows(table):
    """What a dispatch asks, of 4 experts on the ranks of a group."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = torch.tensor(table[rank])
    found = []
    for _ in range(2):
        here = decisions.counts_here(mine, int(mine.sum()), [None])
        come = decisions.counts_from_all(here.view(ranks, -1), None, ON_CPU)
        found.append((here.tolist(), come.tolist()))
    return found


def test_replayed_counts_are_those_of_the_run_that_they_are_from():
    table = [[3, 1, 0, 2], [0, 0, 6, 0]]
    run = launch(rows, 2, table)
    for rank in range(2):
        answers = Answers(counts=lambda call, other: table[other])
        with virtual.group(rank, 2, answers), without_values():
            assert rows(table) == run[rank]


def test_counts_that_nobody_has_told_are_even():
    with virtual.group(1, 2), without_values():
        assert decisions.counts_here(torch.zeros(4), 10, [None]).tolist() == [3, 3, 2, 2]


@pytest.mark.parametrize("counts", [[1, 1, 1, 1], [6, 0], [7, -1, 0, 0]])
def test_counts_of_other_sums_are_refused(counts):
    answers = Answers(counts=lambda call, rank: counts)
    with virtual.group(0, 2, answers), without_values(), pytest.raises(ValueError, match="6 rows"):
        decisions.counts_here(torch.zeros(4), 6, [None])


def test_a_header_that_nobody_has_told_is_refused_and_not_waited_for():
    with virtual.group(0, 2), pytest.raises(ValueError, match="give Answers"):
        decisions.coming("the message", None)
    with virtual.group(0, 2, Answers(coming=lambda message: [message])):
        assert decisions.coming("it", None) == ["it"]
