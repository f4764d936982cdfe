"""What a rank is given is its own, and drawn for each judging: whoever has a check's file has its seeds, too.

No answer runs here: each check's question is written down, and nobody answers.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
import torch

from dtcourse.course.judging import CheckFailed, Each, exercises, judge
from dtcourse.launch import serialization

ALL = exercises()
# Once every rank was given everyone's; in the first nine, what one could make again from the file's seeds.
NAMED = (
    *("mean_in_int8", "one_bit_mean", "mean_by_ranges", "low_rank_means", "push_sum"),
    *("mixture_once", "mean_beside_servers", "push_and_pull", "two_halves"),
    *("ddp_with_buckets", "gather_again", "mesh_step", "share_cache", "fused_swiglu"),
    *("forward_in_rows", "flat_to_rows", "port_training", "meet"),
    *("round_in_one", "one_up", "private_gradient", "two_means"),
)


def _gives_each(name: str) -> bool:
    module = sys.modules[ALL[name].checks[0].function.__module__]
    return "Each(" in Path(module.__file__).read_text(encoding="utf-8")


def _cut(w_in, w_out, rank, size):
    return w_in.chunk(size)[rank], w_out.chunk(size, 1)[rank]


# What an answer cuts of what it is given, where a check looks at that before it gives ranks their own; else all of it.
CUTS = {"fused_swiglu": _cut}
ASKS = {"code_gradients"}  # whose ranks are given what they have asked for, in a run before


class Asked:
    """An answer that writes down what each check gives to ranks first, and returns nothing."""

    def __init__(self, name: str) -> None:
        self.runs: list[tuple[int, tuple]] = []
        self.name = name

    def run(self, step, world_size, *args, **options):
        if self.name in ASKS and not any(isinstance(a, Each) for a in args):
            return [[rank] for rank in range(world_size)]
        self.runs.append((world_size, args))
        raise CheckFailed("nobody answers")

    def call(self, step, *args, **options):
        return step(*[CUTS.get(self.name, lambda *given: given)] * 2, *args)


def _asked(name: str) -> list[tuple[int, bytes]]:
    """Of each check: the number of ranks, and what they are given alone. The seeds before are the same each time."""
    torch.manual_seed(0)
    random.seed(0)
    answer = Asked(name)
    judge(ALL[name], answer)
    found = []
    for world_size, args in answer.runs:
        stream, buffers = serialization.serialize([a.values for a in args if isinstance(a, Each)])
        found.append((world_size, stream + b"".join(map(bytes, buffers))))
    return found


@pytest.mark.parametrize("name", [name for name in ALL if _gives_each(name)])
def test_what_a_rank_alone_is_given_is_drawn_for_each_judging(name):
    first, second = _asked(name), _asked(name)
    assert len(first) == len(second) > 0
    several = [(a, b) for (size, a), (_, b) in zip(first, second, strict=True) if size > 1]
    assert any(a != b for a, b in several), "who has the file makes all of it again"


@pytest.mark.parametrize("name", NAMED)
def test_an_input_is_the_rank_s_alone(name):
    assert _gives_each(name)
    nothing, _ = serialization.serialize([])
    given = [own for size, own in _asked(name) if size > 1]
    assert sum(own != nothing for own in given) >= len(given) - 1  # one check may give nothing


def test_a_notebook_s_random_numbers_go_on_as_if_nothing_had_been_judged():
    torch.manual_seed(3)
    random.seed(3)
    right = torch.rand(2).tolist(), random.random()
    torch.manual_seed(3)
    random.seed(3)
    judge(ALL["push_sum"], Asked("push_sum"))
    assert (torch.rand(2).tolist(), random.random()) == right
