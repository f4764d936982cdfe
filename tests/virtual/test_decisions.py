"""The one door: what ranks ask each other in order to decide, on real groups."""

from __future__ import annotations

import ast
from pathlib import Path

import torch.distributed as dist

from dtcourse import launch
from dtcourse.collectives import decisions

ROOT = Path(__file__).resolve().parents[2] / "dtcourse"
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


def everyones():
    return decisions.said_by_all({"rank": dist.get_rank()})


def test_a_real_group_says_what_each_rank_says():
    assert launch(everyones, 2)[1] == [{"rank": 0}, {"rank": 1}]
