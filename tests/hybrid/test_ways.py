"""What a layout may be besides its degrees: the ways of each technique, held to one process."""

from __future__ import annotations

from functools import partial

import pytest

from dtcourse.hybrid import HybridConfig
from dtcourse.pipeline_parallel import gpipe, interleaved_1f1b, zb_h1
from tests.hybrid.layouts import BY_TURNS, GROUPED, MICRO_BATCHES, MIXTURE, TIED, check


def twice(ranks, micro_batches):
    return interleaved_1f1b(ranks, micro_batches, 2)


WAYS = {
    "tokens cut over tp and dp_shard": partial(HybridConfig, dp_shard=2, tp=2, sequence=True),
    "tokens cut over tp and pp": partial(HybridConfig, pp=2, tp=2, sequence=True),
    "tokens cut over tp and cp": partial(HybridConfig, cp=2, tp=2, sequence=True),
    "Ulysses and tp": partial(HybridConfig, cp=2, tp=2, context="ulysses"),
    "Ulysses and dp_shard": partial(HybridConfig, cp=2, dp_shard=2, context="ulysses"),
    "Ulysses and pp": partial(HybridConfig, cp=2, pp=2, context="ulysses"),
    "recompute and dp_shard": partial(HybridConfig, pp=2, dp_shard=2, recompute=True),
    "recompute and cp": partial(HybridConfig, pp=2, cp=2, recompute=True),
    "recompute and tp": partial(HybridConfig, pp=2, tp=2, recompute=True),
    "a small first stage": partial(HybridConfig, pp=2, dp_shard=2, layers=(1, 3)),
    "a small last stage": partial(HybridConfig, pp=2, tp=2, layers=(3, 1)),
    "GPipe": partial(HybridConfig, pp=2, dp_replicate=2, schedule=gpipe),
    "two stages per rank": partial(HybridConfig, pp=2, dp_shard=2, schedule=twice),
    "two stages per rank and cp": partial(HybridConfig, pp=2, cp=2, schedule=twice),
    "zero bubble and tp": partial(HybridConfig, pp=2, tp=2, schedule=zb_h1),
    "zero bubble and cp": partial(HybridConfig, pp=2, cp=2, schedule=zb_h1),
    "reduced once, pp": partial(HybridConfig, pp=2, dp_shard=2, reduce_once=True),
    "reduced once, tp": partial(HybridConfig, dp_shard=2, tp=2, reduce_once=True),
    "reduced once, replicas": partial(HybridConfig, dp_replicate=2, dp_shard=2, reduce_once=True),
    "reduced once, two stages per rank": partial(
        HybridConfig, pp=2, dp_shard=2, schedule=twice, reduce_once=True
    ),
    "reduced once, recompute": partial(
        HybridConfig, pp=2, dp_shard=2, recompute=True, reduce_once=True
    ),
}


@pytest.mark.parametrize(
    ("way", "model"),
    [
        pytest.param(
            way,
            model,
            id=f"{way}-{('tied', 'grouped')[which]}",
            marks=() if (number + which) % 4 == 0 else BY_TURNS,
        )
        for number, way in enumerate(WAYS)
        for which, model in enumerate((TIED, GROUPED))
    ],
)
def test_every_way_is_one_process(way, model):
    check(WAYS[way](micro_batches=MICRO_BATCHES), model)


MIXED = {
    "two stages per rank": partial(HybridConfig, pp=2, dp_shard=2, ep=2, schedule=twice),
    "recompute": partial(HybridConfig, pp=2, dp_shard=2, ep=2, recompute=True),
    "Ulysses": partial(HybridConfig, cp=2, dp_shard=2, ep=4, context="ulysses"),
    "zero bubble": partial(HybridConfig, pp=2, cp=2, ep=2, schedule=zb_h1),
    "reduced once": partial(HybridConfig, pp=2, dp_shard=2, ep=2, reduce_once=True),
}


@BY_TURNS
@pytest.mark.parametrize("way", MIXED)
def test_so_is_every_way_of_a_mixture(way):
    check(MIXED[way](micro_batches=MICRO_BATCHES), MIXTURE)
