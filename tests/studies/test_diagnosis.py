"""The study of what diagnose names: what it plants lies where it says, and committed runs are right in nine of ten.

The rest of a case is drawn by its seed: of what changes the program itself, one run of each kind is made here again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace

import pytest
from torch.utils.flop_counter import FlopCounterMode

from dtcourse.profiling.diagnosis.evidence import Evidence
from dtcourse.profiling.diagnosis.without import end_without
from tests.turns import taking_turns


@pytest.fixture(scope="module")
def script(study):
    return study("diagnosis")


def test_a_fault_lies_where_the_case_says_and_nowhere_else(script):
    settings = script.Settings(model="mlp")
    for seed in range(4):
        healthy = script.case(settings, "nothing", 1.0, seed)
        assert len(set(healthy.devices)) == 1
        assert healthy.network.cables == ()
        rank = script.case(settings, "slow rank", 2.0, seed)
        ((slow,),) = rank.ranks
        assert [d.flops for d in rank.devices].index(min(d.flops for d in rank.devices)) == slow
        link = script.case(settings, "slow link", 2.0, seed)
        assert {pair for pair, _ in link.network.cables} == {link.ranks[0], link.ranks[0][::-1]}
        assert link.network.link(*link.ranks[0]).bandwidth == link.network.bandwidth / 2
        both = script.case(settings, "two", 2.0, seed)
        assert both.ranks[0][0] not in both.ranks[1]
        for planted in ("log", "data"):
            stands = script.case(settings, planted, 2.0, seed)
            assert [rank for rank, long in enumerate(stands.standing) if long] == [
                stands.ranks[0][0]
            ]
            assert not any(healthy.standing)
        stages = script.case(settings, "stages", 1.3, seed)
        assert sorted(stages.layers) == [10, 10, 10, 13]
        assert stages.layers[stages.ranks[0][0]] == 13


def test_committed_runs_name_the_planted_cause_first_in_nine_of_ten(script):
    runs = json.loads(script.RESULTS.read_text())["runs"]
    by_case = defaultdict(list)
    for name, run in runs.items():
        planted, factor, _ = name.split(" | ")
        by_case[planted, factor].append(run["right"])
    assert by_case.keys() >= {(p, str(f)) for p, each in script.PLANTED.items() for f in each}
    for case, right in by_case.items():
        assert len(right) >= 10
        least = 0.95 if case[0] == "nothing" else 0.9
        assert sum(right) >= least * len(right), f"{case}: {sum(right)} of {len(right)}"


@pytest.mark.parametrize("seed", [0, 2])
def test_a_checkpoint_repeats_what_the_study_says(script, seed):
    """In FLOPs of a whole step, of a convolutional network and of a Transformer."""
    settings = script.Settings()

    def flops(planted: str, factor: float) -> int:
        case = script.case(settings, planted, factor, seed)
        module, x, loss = script.made(settings, case.model, seed)
        with FlopCounterMode(display=False) as counter:
            loss(script.as_planted(case, module)(x)).backward()
        return counter.get_total_flops()

    healthy = flops("slow rank", 1.3)
    assert 1.2 < flops("recomputing", 1.3) / healthy < 1.35
    assert 1.5 < flops("recomputing", 1.6) / healthy < 1.7


def test_numbers_that_all_ranks_read_cost_the_latency_that_the_study_says(script):
    settings = script.Settings()
    for seed in (0, 1, 2):
        case = script.case(settings, "synchronisation", 2.0, seed)
        work = script.costs(settings, case.parallel, case.model, seed)[0] / settings.flops
        numbers = settings.micro_batches
        if case.parallel == "data":
            numbers = len(script.watched(script.made(settings, case.model, seed)[0]))
            assert numbers == (3 if case.model == "convnet" else 6 * settings.layers + 1)
        else:
            work *= settings.micro_batches
        # A ring of four passes a number round in six messages.
        assert 6 * numbers * case.network.latency == pytest.approx(work)


@pytest.fixture
def findable(script, monkeypatch):
    """Ranks find the study's functions."""
    monkeypatch.syspath_prepend(str(script.RESULTS.parents[1]))


# Of a data-parallel run and of a pipeline, the smallest factor.
LIVE = [
    ("recomputing", 4), ("synchronisation", 3),
    *taking_turns(("recomputing", 3), ("synchronisation", 4), about="dtcourse/profiling/diagnosis/", several=True),
]  # fmt: skip


@pytest.mark.parametrize(("planted", "seed"), LIVE)
def test_a_planted_program_is_named_again_as_it_is_in_the_committed_runs(
    script, findable, planted, seed
):
    settings = script.Settings()
    found = script.measure(settings, planted, 1.3, seed)
    committed = json.loads(script.RESULTS.read_text())["runs"][f"{planted} | 1.3 | {seed}"]
    assert found["right"]
    assert found["window"] == pytest.approx(committed["window"], rel=1e-6)
    assert found["causes"] == committed["causes"]


def test_what_a_pipeline_loses_to_synchronisations_is_told_from_the_recording(script, findable):
    """Played through as it was, it ends when it ended; without them, no sooner than the same pipeline without them."""
    settings = script.Settings(layers=1, width=8)
    case = script.case(settings, "synchronisation", 1.3, 1)
    recorded, without = script.run(case, settings), script.run(replace(case, planted=""), settings)
    evidence = Evidence.of(recorded.timeline, dict(enumerate(recorded.accounts)))
    assert end_without(evidence, ()) == pytest.approx(evidence.end, rel=1e-9)
    found = script.diagnose(recorded)
    saved = found.seconds - script.diagnose(without).seconds
    assert saved > 0.4 * found.seconds
    assert 0.6 * saved < found.causes[0].seconds < saved
