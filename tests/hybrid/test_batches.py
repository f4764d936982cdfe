"""Batches that a plain model would refuse, or that ranks of one part of the data do not share: refused on all ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.hybrid import HybridConfig, parallelize
from dtcourse.models import Transformer
from tests.hybrid.layouts import GROUPED, TIED

LONGER = 2 * TIED.max_length


def samples(length, seed=0):
    make = torch.Generator().manual_seed(seed)
    return [torch.randint(TIED.vocab, (4, length), generator=make) for _ in range(2)]


def training(degrees, model):
    config = HybridConfig(**degrees, micro_batches=2)
    return parallelize(Transformer(model), config.mesh("cpu"), config)


def too_long(degrees, model):
    with pytest.raises(ValueError) as caught:
        training(degrees, model).step(*samples(LONGER))
    return str(caught.value)


@pytest.mark.parametrize("model", [TIED, GROUPED], ids=["learned positions", "rotary positions"])
@pytest.mark.parametrize("axis", ["tp", "cp", "pp"])
def test_a_sequence_above_max_length(axis, model):
    for said in launch(too_long, 2, {axis: 2}, model):
        assert said == f"a sequence of {LONGER} tokens; this model's longest is max_length=8"


def other_samples(degrees, whose, which):
    """One rank has another batch: what all ranks are told."""
    both = samples(8)
    if dist.get_rank() == whose:
        both[which] = samples(8, seed=1)[which]
    with pytest.raises(ValueError) as caught:
        training(degrees, TIED).step(*both)
    return str(caught.value)


@pytest.mark.parametrize(
    ("degrees", "whose", "which"),
    [
        ({"tp": 2, "dp_shard": 2}, 3, 0),
        ({"pp": 2, "cp": 2}, 1, 1),
    ],
)
def test_one_rank_with_other_samples_is_named_on_all_ranks(degrees, whose, which):
    for said in launch(other_samples, 4, degrees, whose, which):
        assert f"and {whose} are of one part of the data" in said
        assert f"have other {('tokens', 'targets')[which]} (of shapes [4, 8] and [4, 8])" in said
        assert "rank=training.data_rank" in said


def too_few():
    """On one rank alone: no other waits for it."""
    tokens, targets = samples(8)
    keep = 1 if dist.get_rank() == 0 else 4
    with pytest.raises(ValueError) as caught:
        training({"dp_shard": 2}, TIED).step(tokens[:keep], targets[:keep])
    return str(caught.value)


def test_a_batch_that_does_not_divide_on_one_rank_is_refused_on_all():
    first, second = launch(too_few, 2)
    assert "1 sample cannot make micro_batches(2)" in first
    assert second.startswith("rank 0 could not go on, so no rank does")


def of_other_shapes():
    tokens, targets = samples(8)
    said = []
    for batch in (
        (tokens, targets[:, 1:]),
        (tokens[0], targets[0]),
        (tokens, targets.flatten()),
        (tokens.tolist(), None),
        (tokens.float(), targets > 3),
    ):
        with pytest.raises(ValueError) as caught:
            training({"tp": 2}, TIED).step(*batch)
        said.append(str(caught.value))
    return said


def test_shapes_that_differ_or_are_of_one_dim_and_what_is_no_whole_number():
    for shifted, single, flat, lists, numbers in launch(of_other_shapes, 2):
        assert shifted.endswith("(samples, tokens of each); got (4, 8) and (4, 7)")
        assert single.endswith("got (8,) and (8,)")
        assert flat.endswith("got (4, 8) and (32,)")
        assert lists.endswith("whole numbers, torch.long; got list and NoneType")
        assert numbers.endswith("torch.long; got torch.float32 and torch.bool")


def of_their_own():
    """Ranks of other parts of the data have other samples: right."""
    made = training({"dp_shard": 2, "tp": 2}, TIED)
    made.step(*samples(8, seed=made.data_rank))
    return True


def test_other_parts_of_the_data_have_other_samples():
    assert all(launch(of_their_own, 4))
