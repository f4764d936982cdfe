"""A traced rank does what a real one does: messages and bytes by group, FLOPs, peak memory, on 4 and 8 ranks.

Both are counted by one function, so what is compared is the rank's way. What counts alike on both sides and may be
wrong on both is held against formulas elsewhere: hybrid/volume.py's bytes (test_thousand.py, test_bytes.py), models'
FLOPs, and the memory tracker's own tests.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from dtcourse import launch
from dtcourse.collectives.decisions import Answers
from dtcourse.hybrid import HybridConfig
from dtcourse.hybrid.virtual import rank_at, second_step, trace_stages
from dtcourse.pipeline_parallel import gpipe, zb_h1
from dtcourse.simulator.virtual_cluster import run_rank
from tests.hybrid.layouts import named
from tests.virtual.jobs import MICRO_BATCHES, job, two_each, with_counts

FOUR = [
    {"dp_replicate": 4}, {"dp_shard": 4}, {"pp": 4}, {"cp": 4}, {"tp": 4},
    {"pp": 2, "tp": 2}, {"dp_replicate": 2, "cp": 2}, {"dp_shard": 2, "tp": 2}, {"pp": 2, "dp_shard": 2},
]  # fmt: skip
EIGHT = [
    {"pp": 2, "dp_shard": 2, "tp": 2},
    {"dp_replicate": 2, "dp_shard": 2, "cp": 2},
    {"pp": 2, "cp": 2, "tp": 2},
    {"pp": 4, "dp_replicate": 2},
]


def rows(found):
    return sorted(found.record.rows), sorted(found.record.calls.items())


def check(config, name):
    arguments = job(name, config)
    real = launch(second_step, config.ranks, *arguments, record=True)
    for rank, there in enumerate(real):
        late, calls = run_rank(second_step, *arguments, rank=rank, ranks=config.ranks)
        assert rows(late) == rows(there), f"rank {rank}"
        assert (late.flops, late.recomputed) == (there.flops, there.recomputed), f"rank {rank}"
        assert calls, "a rank of several talks"
        if config.dp_shard == 1:
            assert late.peak_bytes == there.peak_bytes, f"rank {rank}"
            assert late.by_category == there.by_category, f"rank {rank}"
            continue
        # Whole gradients go when they are sent, if this rank looks by then: a real rank is between the two.
        early, _ = run_rank(second_step, *arguments, rank=rank, ranks=config.ranks, early=True)
        assert early.peak_bytes <= there.peak_bytes <= late.peak_bytes, f"rank {rank}"


@pytest.mark.parametrize("degrees", [pytest.param(v, id=named(v)) for v in FOUR])
@pytest.mark.parametrize("name", ["plain", "llama"])
def test_on_four_ranks(degrees, name):
    if name == "llama" and degrees.get("tp") == 4:
        pytest.skip("two heads of keys do not divide over four ranks")
    check(HybridConfig(**degrees, micro_batches=MICRO_BATCHES), name)


@pytest.mark.parametrize("degrees", [pytest.param(v, id=named(v)) for v in EIGHT])
def test_on_eight_ranks(degrees):
    check(HybridConfig(**degrees, micro_batches=MICRO_BATCHES), "plain")


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"pp": 2, "recompute": True}, id="recomputed"),
        pytest.param({"tp": 4, "sequence": True}, id="sequence"),
        pytest.param({"cp": 2, "context": "ulysses", "tp": 2}, id="ulysses"),
        pytest.param({"pp": 2, "dp_shard": 2, "reduce_once": True}, id="reduced once"),
        pytest.param({"pp": 2, "schedule": gpipe}, id="gpipe"),
        pytest.param({"pp": 2, "schedule": zb_h1}, id="zero bubble"),
    ],
)
def test_each_way(other):
    check(HybridConfig(**other, micro_batches=MICRO_BATCHES), "plain")


def test_several_stages_on_a_rank():
    check(HybridConfig(pp=2, schedule=two_each, micro_batches=MICRO_BATCHES), "plain")


def test_a_weight_that_two_stages_tie():
    check(HybridConfig(pp=2, tp=2, micro_batches=MICRO_BATCHES), "tied")


@pytest.mark.parametrize(
    "degrees", [{"dp_replicate": 2, "dp_shard": 2, "ep": 2}, {"dp_shard": 4, "ep": 4}]
)
def test_experts_by_replayed_counts(degrees):
    """A gate's choices have no values: what each rank sent in a real run is told, dispatch by dispatch."""
    config = HybridConfig(**degrees, micro_batches=MICRO_BATCHES)
    arguments = job("mixture", config)
    real = launch(with_counts, config.ranks, *arguments, record=True)
    for rank in range(config.ranks):
        there, _ = real[rank]
        # The ranks of an experts' group are neighbours, ep of them.
        first = rank - rank % config.ep
        seen = [real[first + r][1] for r in range(config.ep)]
        answers = Answers(counts=lambda call, r, seen=seen: seen[r][call])
        traced, _ = run_rank(
            second_step, *arguments, rank=rank, ranks=config.ranks, answers=answers
        )
        assert rows(traced) == rows(there), f"rank {rank}"
        assert traced.flops == there.flops, f"rank {rank}"


def test_one_rank_of_each_stage_stands_for_all():
    config = HybridConfig(pp=2, dp_replicate=2, tp=2, micro_batches=MICRO_BATCHES)
    stages = trace_stages(*job("plain", config))
    for rank in range(config.ranks):
        found, _ = run_rank(second_step, *job("plain", config), rank=rank, ranks=config.ranks)
        stage = stages[rank // 4]
        assert (found.flops, found.peak_bytes) == (stage.flops, stage.peak_bytes)
        assert found.traffic.bytes_sent() == stage.traffic.bytes_sent()
    assert [rank_at(config, pp=p) for p in (0, 1)] == [0, 4]


# --- mistakes that the comparison must see --------------------------------------------------------------------------


def test_a_step_that_sends_once_more_is_seen(monkeypatch):
    """The traced side alone averages twice: rows differ."""
    from dtcourse.hybrid import training

    config = HybridConfig(dp_replicate=4, micro_batches=MICRO_BATCHES)
    real = launch(second_step, 4, *job("plain", config), record=True)
    average = training.average

    def twice(*args):
        average(*args)
        average(*args)

    monkeypatch.setattr(training, "average", twice)
    traced, _ = run_rank(second_step, *job("plain", config), rank=0, ranks=4)
    assert rows(traced) != rows(real[0])


def test_a_stage_that_is_told_other_shapes_says_so():
    config = HybridConfig(pp=2, micro_batches=MICRO_BATCHES)
    build, config, samples, *rest = job("plain", config)
    from dtcourse.hybrid.virtual import Activations

    right = Activations.__call__

    def half(self, message):
        return [form._replace(shape=form.shape[:-1]) for form in right(self, message)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Activations, "__call__", half)
        with pytest.raises(ValueError, match="the next one was traced with"):
            run_rank(second_step, build, config, samples, *rest, rank=0, ranks=2)


def test_lines_that_do_not_add_up_are_refused():
    config = HybridConfig(
        dp_shard=2, cp=3, ep=2, tp=2, axes=("pp", "dp_replicate", "dp_shard", "tp", "cp")
    )
    with pytest.raises(ValueError, match="cannot be traced; put cp behind dp_shard"):
        trace_stages(*job("mixture", config))
    assert replace(config, axes=HybridConfig.axes).axes[-1] == "tp"
