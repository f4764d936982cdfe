"""What search() finds is what predicting all layouts finds."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest

from dtcourse.planner import Batch, Layout, Precision, Space, search
from dtcourse.planner.impossible import check
from dtcourse.planner.keepers import Candidate, Fastest, Frontier
from dtcourse.planner.setting import Setting
from dtcourse.planner.stage import Stages
from dtcourse.planner.step import predict_likely
from tests.planner.conftest import known
from tests.planner.searched import (
    CARD,
    CASES,
    DEVICES,
    EXPERTS,
    MODEL,
    SEQUENCES,
    SOFTWARE,
    SPACE,
    All,
    listed,
    settings,
)


def key(one):
    return one.layout, one.batch, one.software


@pytest.fixture(scope="module", params=CASES)
def predicted(request):
    """(case, every possible layout's prediction, and the bounds of those that fit)."""
    bounds, listing = listed(*CASES[request.param])
    found = {key(s): predict_likely(s, DEVICES) for s in settings(bounds, listing)}
    keeper = All()
    bounds.scan(listing, keeper)
    return request.param, found, {key(one): one for one in keeper.found}


def test_closed_forms_are_predicts_bytes_and_never_above_its_seconds(predicted):
    _, found, bounded = predicted
    assert set(bounded) == {each for each, one in found.items() if one.fits}
    assert 0 < len(bounded) < len(found)
    ratios = []
    for each, one in bounded.items():
        assert one.nbytes == found[each].peak_bytes
        assert one.seconds <= found[each].seconds * (1 + 1e-9), each
        ratios.append(one.seconds / found[each].seconds)
        if each[0].pp == 1:
            assert one.seconds == pytest.approx(found[each].seconds, rel=1e-12)
    assert min(ratios) > 0.5 and sum(ratios) / len(ratios) > 0.9


def test_the_best_of_all_is_the_best_that_is_found(predicted):
    case, found, bounded = predicted
    model, space, card = CASES[case]
    best = min(one.seconds for one in found.values() if one.fits)
    one = search(model, card, DEVICES, SEQUENCES, software=SOFTWARE, space=space)
    assert one.best.seconds == pytest.approx(best, rel=1e-12)
    assert [each.seconds for each in one.choices] == sorted(each.seconds for each in one.choices)
    assert one.slow + one.large + one.alone == one.listing.possible == len(found)
    assert all(each.prediction.fits for each in one.choices)
    # From a single prediction on, to the proof.
    few = search(
        model, card, DEVICES, SEQUENCES, software=SOFTWARE, space=space, predictions=1, prove=True
    )
    assert few.proven and few.best.seconds == pytest.approx(best, rel=1e-12)
    assert len(few.choices) < len(found) / 2
    tried = {each.key for each in few.choices}
    assert all(one.seconds >= best * (1 - 1e-9) for k, one in bounded.items() if k not in tried)


def test_no_layout_of_the_frontier_is_worse_in_both_and_the_leanest_is_there(predicted):
    case, found, _ = predicted
    model, space, card = CASES[case]
    one = search(model, card, DEVICES, SEQUENCES, software=SOFTWARE, space=space, predictions=1)
    fitting = [each for each in found.values() if each.fits]
    for front, proven in ((one.pareto(0.0), False), (one.pareto(0.0, prove=True), True)):
        assert len(front) > 2
        for faster, leaner in itertools.pairwise(front):
            assert faster.seconds <= leaner.seconds and faster.nbytes > leaner.nbytes
        assert front[0].seconds <= one.best.seconds
        assert front[-1].nbytes == min(each.peak_bytes for each in fitting)
        better = [
            each for each in fitting for member in front
            if each.seconds < member.seconds * (1 - 1e-9) and each.peak_bytes < member.nbytes
        ]  # fmt: skip
        assert not (proven and better)
    assert len(one.pareto(tolerance=0.2)) <= len(front)
    with pytest.raises(ValueError, match="tolerance is 0 or more; got -1"):
        one.pareto(-1)


def test_the_frontier_of_predictions_is_not_the_one_of_bounds():
    """Long pipelines take longer than closed forms tell, some more than others: the best was once left out."""
    space = Space(
        tp=(1, 2), cp=(1,), pp=(4,), schedules=("1f1b", "interleaved", "zb_h1", "zb_v", "dualpipe_v"), chunks=(2,),
        micro_batches=(1, 2), recompute=("none",),
    )  # fmt: skip
    model, card = replace(MODEL, layers=10), replace(CARD, memory=8e9)
    bounds, listing = listed(model, space, card, sequences=48)
    found = [predict_likely(s) for s in settings(bounds, listing)]
    exact, least = [], float("inf")
    for _, nbytes in sorted((one.seconds, one.peak_bytes) for one in found if one.fits):
        if nbytes < least:
            exact.append(least := nbytes)
    one = search(model, card, DEVICES, 48, software=SOFTWARE, space=space)
    assert one.pareto(0.0)[0].key == one.best.key
    front = one.pareto(0.0, prove=True)
    assert [each.nbytes for each in front] == exact
    by_bounds = Frontier(0.0)
    bounds.scan(listing, by_bounds)
    assert one.best.key not in {each.key for each in by_bounds.found}


@pytest.mark.parametrize("case", ["dense", "experts"])
def test_the_space_is_every_product_that_is_possible_each_once(case):
    """Counted another way: all degrees, and what has a second name taken out."""
    model, space, *_ = CASES[case]
    space = replace(space, cp=None)
    found = []
    for *degrees, ep in itertools.product(
        *[(1, 2, 4, 8)] * 5, (1, 2, 4) if model.experts else (1,)
    ):
        pp, replicate, shard, cp, tp = degrees
        if pp * replicate * shard * cp * tp != DEVICES:
            continue
        schedules = [(name, 2 if name == "interleaved" else 1) for name in space.schedules]
        for stage, again, cut, (name, chunks), micro, recompute in itertools.product(
            space.stages, (True, False), (False, True), schedules if pp > 1 else [("1f1b", 1)],
            space.micro_batches, space.recompute,
        ):  # fmt: skip
            second_name = (
                (stage == 0 and (shard if ep == 1 else replicate) > 1)
                or (stage > 0 and shard * cp == 1)
                or (stage < 3 and not again)
                or (cut and tp == 1)
            )
            if second_name:
                continue
            layout = {
                "dp_replicate": replicate, "dp_shard": shard, "pp": pp, "cp": cp, "tp": tp, "ep": ep, "stage": stage,
                "schedule": name, "chunks": chunks, "sequence_parallel": cut, "reshard_after_forward": again,
            }  # fmt: skip
            found.append((layout, Batch(SEQUENCES, micro), recompute))
    possible = set()
    for degrees, batch, recompute in found:
        try:
            layout = Layout(**degrees)
            check(model, layout, batch, DEVICES)
        except ValueError:
            continue
        possible.add((layout, batch, recompute))
    bounds, listing = listed(model, space)
    assert listing.layouts == len(found)
    assert listing.possible == len(possible)
    assert {
        (s.layout, s.batch, s.software.recompute) for s in settings(bounds, listing)
    } == possible
    assert f"{len(found):,} layouts, of which {len(possible):,} are possible" in str(listing)


@pytest.mark.parametrize(
    ("devices", "sequences", "about", "said"),
    [
        (6, 12, "widths", r"heads\(16\) is no multiple of tp\(3\)"),
        (8, 12, "sequences", r"sequences\(12\) is no multiple of dp_replicate\(8\)"),
        (16, 16, "layers", r"layers\(8\) are fewer than pp\("),
    ],
)
def test_what_is_refused_is_counted_with_the_equation(devices, sequences, about, said):
    _, listing = listed(MODEL, SPACE, CARD, devices, sequences)
    assert listing.refused[about] > 0 and re.search(said, str(listing))
    assert sum(listing.refused.values()) + sum(
        each.size for slices in listing.slices.values() for each in slices
    ) == listing.layouts  # fmt: skip


def test_keepers_keep_the_fastest_and_those_that_nothing_beats_in_both():
    def one(seconds, nbytes):
        return Candidate(seconds, nbytes, Layout(), Batch(1), SOFTWARE)

    fastest, front = Fastest(2), Frontier(0.0)
    for seconds, nbytes in ((5, 5), (3, 9), (4, 6), (6, 4), (4, 7), (3, 8)):
        fastest.offer(one(seconds, nbytes))
        front.offer(one(seconds, nbytes))
    assert [each.seconds for each in fastest.found] == [3, 3] and fastest.limit == 3
    assert [(each.seconds, each.nbytes) for each in front.found] == [(3, 8), (4, 6), (5, 5), (6, 4)]
    assert fastest.hopeless(3, 0) and not fastest.hopeless(2.9, 99)
    assert front.hopeless(5, 5) and not front.hopeless(4.5, 5.5)


@pytest.mark.parametrize(
    "precision", [Precision("bf16 autocast"), Precision(eight_bit=True, gather_8bit=True)]
)
def test_what_is_costed_once_is_what_each_layout_costs(precision):
    """One store for all layouts: none finds there what was costed for another that differs."""
    known_ = {}
    card = known("H100 SXM", launch=1e-6)
    for stage, tp, ep, shard, replicate in itertools.product(
        (0, 1, 2, 3), (1, 2), (1, 4), (4, 8), (1, 2)
    ):
        layout = Layout(stage=stage, tp=tp, ep=ep, dp_shard=shard, dp_replicate=replicate)
        for micro in (1, 4):
            s = Setting(EXPERTS, card, layout, Batch(64, micro), precision, SOFTWARE)
            once, alone = Stages(s, known_), Stages(s)
            assert once.blocks == alone.blocks, layout
            assert (once.embedding, once.head) == (alone.embedding, alone.head), layout
    assert len(known_) < 128
