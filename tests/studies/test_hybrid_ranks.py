"""The study of 16 and 32 ranks: its layouts, what it compares, and that its committed results are what it is about."""

from __future__ import annotations

import pytest
import torch

from dtcourse.hybrid.config import AXES


@pytest.fixture(scope="module")
def script(study):
    return study("hybrid_ranks")


def test_layouts_are_each_four_axes_and_all_five(script):
    found = script.layouts(script.Settings())
    assert [cut.ranks for cut in found] == [16] * 5 + [32] * 2
    assert len({cut.shape for cut in found}) == 6
    assert [cut.reduce_once for cut in found] == [False] * 6 + [True]
    assert len({script.name(cut) for cut in found}) == 7


def test_a_batch_has_uneven_documents_and_another_seed_other_tokens(script):
    settings = script.Settings()
    tokens, targets = script.batch(settings, 0, 1)
    counts = (targets != script.IGNORED).sum(1)
    assert len(counts.unique()) > 1
    assert counts.min() >= 2
    counted = targets[:, :-1] != script.IGNORED
    assert torch.equal(targets[:, :-1][counted], tokens[:, 1:][counted])
    assert not torch.equal(tokens, script.batch(settings, 1, 1)[0])


def test_what_is_apart_is_seen(script):
    right = {"a": torch.tensor([3.0, 4.0]), "b": torch.ones(1)}
    assert script.apart(right, right) == 0
    assert script.apart({**right, "a": torch.tensor([3.0, 4.5])}, right) == pytest.approx(0.1)
    with pytest.raises(ValueError, match="on one side only"):
        script.apart({"a": right["a"]}, right)
    assert script.off([None, 2.0], [1.0, 1.6]) == pytest.approx(0.25)


def test_one_process_takes_clipped_steps(script):
    settings = script.Settings()
    found = script.alone(settings, 0)
    assert len(found.losses) == len(found.gradients) == settings.steps
    assert min(found.norms) > settings.max_norm
    first = script.Transformer(settings.model, seed=0).double().state_dict()
    assert script.apart(found.state, first) > 1e-2
    assert all(gradient.dtype == torch.double for gradient in found.gradients[0].values())


def test_committed_results_are_complete_equal_to_one_process_and_to_the_formula(script):
    settings = script.Settings()
    results = script.load(script.RESULTS, settings)
    wanted = {
        script.key(script.name(cut), seed): cut
        for cut in script.layouts(settings)
        for seed in range(results["seeds"])
    }
    assert results["runs"].keys() == wanted.keys()
    with torch.device("meta"):
        model = script.Transformer(settings.model)
    for name, cut in wanted.items():
        run = results["runs"][name]
        assert run["ranks"] == cut.ranks
        assert max(run[what] for what in ("loss", "norm", "gradient", "value")) < 1e-10
        formula = script.volume(model, cut, settings.samples)
        assert {what: sent for what, (sent, _) in run["bytes"].items()} == {
            f"{axis}, {operation}": number for (axis, operation), number in formula.items()
        }
        spoken = {axis for what in run["bytes"] for axis in what.split(", ")[0].split(" x ")}
        assert spoken == {axis for axis in AXES if getattr(cut, axis) > 1}
    assert len(list(script.summary(results))) == sum(
        1 + len(run["bytes"]) for run in results["runs"].values()
    )


def test_the_study_goes_on_where_it_stopped(script, tmp_path, monkeypatch):
    out, settings = tmp_path / "found.json", script.Settings()
    monkeypatch.setattr(
        script,
        "measure",
        lambda settings, config, seed: {"seconds": 1.0, "bytes": {}, "seed": seed},
    )
    assert not script.study(out, settings, 2, budget=0)
    assert script.study(out, settings, 2)
    assert len(script.load(out, settings)["runs"]) == 14
