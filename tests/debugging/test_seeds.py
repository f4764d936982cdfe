"""Seeds shared and per rank: which never meet, and the usual sums, which do."""

from __future__ import annotations

import random

import pytest
import torch

from dtcourse import launch
from dtcourse.debugging import meeting, rank_seeds, shared_streams, streams_in_words
from dtcourse.debugging.seeds import _permuted
from dtcourse.parameters.seeds import seed_of


def test_a_sum_meets_itself_and_these_do_not():
    pairs = meeting(lambda seed, rank: seed + rank, range(4), 4)
    assert ((0, 1), (1, 0)) in pairs and len(pairs) == 16 - 7
    assert meeting(lambda seed, rank: rank_seeds(seed, rank).own, range(64), 64) == []
    shared = [rank_seeds(seed, 0).shared % 2**32 for seed in range(64)]
    own = [rank_seeds(seed, rank).own % 2**32 for seed in range(64) for rank in range(64)]
    assert len({*shared, *own}) == 64 * 65


def test_two_ranks_of_a_run_never_meet_in_32_bits():
    """They are a permutation, where a hash meets itself in the end."""
    numbers = [_permuted(3, "", number) for number in range(50_000)]
    hashed = [seed_of(3, (number,)) % 2**24 for number in range(50_000)]
    assert len(set(numbers)) == len(numbers) and max(numbers) < 2**32
    assert len(set(hashed)) < len(hashed), "of 24 bits, where it shows"


def test_they_depend_on_seed_rank_and_name_alone():
    assert rank_seeds(1, 2) == rank_seeds(1, 2)
    assert rank_seeds(1, 2).shared == rank_seeds(1, 5).shared
    different = {
        rank_seeds(1, 2).own,
        rank_seeds(1, 3).own,
        rank_seeds(2, 2).own,
        rank_seeds(1, 2, "data").own,
    }
    assert len(different) == 4
    with pytest.raises(ValueError, match=r"rank is 0 or more, and below .* got -1"):
        rank_seeds(0, -1)


def draws():
    seeds = rank_seeds(7)
    found = [streams_in_words(shared_streams())]
    seeds.use(shared=True)
    found.append(shared_streams())
    start = torch.rand(3), random.random(), seeds.generators()[0].initial_seed()
    seeds.use()
    found.append(shared_streams())
    return found, start, (torch.rand(3), random.random(), seeds.generators()[1].initial_seed())


def test_in_ranks():
    run = launch(draws, 3)
    for found, start, _ in run:
        assert found[1:] == [[[0, 1, 2]], []]
        assert torch.equal(start[0], run[0][1][0]) and start[1:] == run[0][1][1:]
    assert len({(*own[0].tolist(), *own[1:]) for _, _, own in run}) == 3
    assert streams_in_words([[0, 1], [2, 3]]) == (
        "ranks 0 and 1 draw the same random numbers; ranks 2 and 3 draw the same random numbers"
    )
    assert streams_in_words([]) == "each rank draws random numbers of its own"
