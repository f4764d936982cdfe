"""The planner's composition: every layout of four ranks is there, and what was committed comes out again."""

from __future__ import annotations

import statistics
from dataclasses import replace

import cloudpickle
import pytest

from dtcourse import launch


@pytest.fixture(scope="module")
def planned(study):
    return study("planned_steps")


@pytest.fixture(scope="module")
def results(planned):
    return planned.load(planned.RESULTS, planned.Settings())


def cases(study, results):
    """(settings, layout, sequences, its measured and its stored seconds, its stretches)."""
    for name, run in results["runs"].items():
        model, sequences = name.split(" | ")
        settings = replace(study.Settings(), experts=study.EXPERTS[model])
        for config in study.layouts(settings.experts > 0):
            config = study.with_micro_batches(settings, config, int(sequences))
            apart = run["stretches"][study.cutting(config)]
            yield settings, config, int(sequences), *run["steps"][study.name(config)], apart


def test_no_layout_is_left_out(planned, results):
    found = planned.layouts()
    plain = [
        config for config in found
        if not (config.sequence or config.reduce_once or config.context == "ulysses")
    ]  # fmt: skip
    assert len(plain) == 15 and len(found) == 30 and len(planned.layouts(True)) == 27
    assert {config.shape for config in found} == {config.shape for config in plain}
    assert {*results["runs"]} == {f"{model} | {n}" for model in planned.EXPERTS for n in (1, 2)}
    for name, run in results["runs"].items():
        wanted = planned.layouts(name.startswith("experts"))
        assert [*run["steps"]] == [planned.name(config) for config in wanted]


def test_predictions_are_the_committed_ones_and_within_their_bounds(planned, results):
    errors = {False: [], True: []}
    for settings, config, sequences, took, said, apart in cases(planned, results):
        again = planned.predicted(settings, config, sequences, apart).seconds
        assert again == pytest.approx(said, rel=1e-9), planned.name(config)
        errors[settings.experts > 0].append(abs(again / took - 1))
    assert statistics.median(errors[False]) < 0.03 and max(errors[False]) < 0.10
    # Tokens are drawn, and the fullest rank is waited for; the prediction has them evenly over the experts.
    assert statistics.median(errors[True]) < 0.05 and max(errors[True]) < 0.125


def test_a_layout_takes_as_long_again(planned, results):
    """On the virtual clock a step takes the same time on every machine."""
    settings, name = planned.Settings(), "pp 2 x dp_shard 2"
    layout = next(config for config in planned.layouts() if planned.name(config) == name)
    config = planned.with_micro_batches(settings, layout, 2)
    cloudpickle.register_pickle_by_value(planned)  # ranks find no such module
    ranks = launch(planned.measured_steps, planned.RANKS, settings, [config], **settings.cluster)
    took = max(end for ((_, end),) in ranks) - min(start for ((start, _),) in ranks)
    assert took == pytest.approx(results["runs"]["dense | 2"]["steps"][name][0], rel=1e-6)
