"""The study of what diagnose names: what it plants lies where it says, and committed runs are right in nine of ten."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest


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
    assert by_case.keys() >= {(p, str(f)) for p in script.PLANTED for f in script.FACTORS}
    for case, right in by_case.items():
        least = 0.95 if case[0] == "nothing" else 0.9
        assert sum(right) >= least * len(right), f"{case}: {sum(right)} of {len(right)}"
