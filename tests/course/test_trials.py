"""A decision that is judged by running it: what an answer may measure, what it sees, and who else sees it."""

from __future__ import annotations

import os
from contextlib import nullcontext
from functools import cache

import pytest
import torch

from dtcourse import launch
from dtcourse.course.checks.lesson_08_large_batch import choose_batch
from dtcourse.course.checks.lesson_08b_large_batch_remedies import choose_growth
from dtcourse.course.checks.lesson_13b_messages_and_ports import choose_sending
from dtcourse.course.checks.lesson_16b_fsdp_in_practice import choose_host
from dtcourse.course.checks.lesson_19b_overlapped_tensor_parallel import choose_overlap
from dtcourse.course.judging import framework, own_ranks, trial_ranks, trials
from dtcourse.course.judging.framework import CheckFailed
from dtcourse.course.judging.requirements import Refused, Unjudged
from dtcourse.course.judging.runs import InKernel
from dtcourse.course.judging.simulated import Simulated
from dtcourse.emulation import EmulatedDevice
from dtcourse.launch import standby
from tests import kept_ranks

pytestmark = pytest.mark.slow
CHOICES = [(1, True), (2, True), (2, False)]


def job(choice, scale):
    """Takes as long on the emulated clock as the choice says, on rank 1 twice as long."""
    import torch.distributed as dist

    from dtcourse import emulation

    start = trials.begin_together()
    emulation.sleep(choice[0] * scale * (1 + dist.get_rank()))
    return (emulation.now() - start,)


@cache
def case():
    return trials.Case(job, 2, CHOICES, (0.5,), ("told",), 2, {"devices": EmulatedDevice()})


def tried(answer):
    return case().tried(InKernel({"choose": answer}))


def test_each_number_is_the_largest_of_all_ranks_and_the_same_as_in_the_search():
    found = tried(lambda measure, told: [2, measure(2, False) is None or told == "told"])
    assert found.choice == (2, True)
    assert found.measured == pytest.approx((2.0,))
    assert [choice for choice, _ in found.seen] == [(2, False)]
    assert case().search() == {
        (1, True): pytest.approx((1.0,)),
        (2, True): pytest.approx((2.0,)),
        (2, False): pytest.approx((2.0,)),
    }


def test_a_probe_runs_on_ranks_that_know_no_answer_and_is_no_trial_of_its_own():
    answer = InKernel({"choose": lambda measure, told: CHOICES[0]})
    found = case().tried(answer, job, CHOICES)
    assert dict(zip(CHOICES, found.probed, strict=True)) == case().search()
    assert not found.seen and not tried(lambda measure, told: CHOICES[0]).probed


def test_a_case_has_a_rank_on_which_no_answer_is_called():
    with pytest.raises(ValueError, match="another rank tells what was run: got ranks=1"):
        trials.Case(job, 1, CHOICES, (0.5,), (), 2, {})


def test_so_many_choices_may_be_measured_and_one_of_them_again():
    def answer(measure, told):
        measure(1, True), measure(2, True), measure(1, True)
        measure(2, False)

    with pytest.raises(CheckFailed, match="2 choices have been measured, and no more may be"):
        tried(answer)


def test_what_is_no_choice_is_not_run():
    with pytest.raises(CheckFailed, match="no possible choice"):
        tried(lambda measure, told: measure(1, 1))
    for wrong in (None, (3, True), (1, 1), (1, True, 0), (torch.tensor([1, 2]), True)):
        found = tried(lambda measure, told, wrong=wrong: wrong)
        assert found.measured is None
        with pytest.raises(CheckFailed, match="Here: "):
            trials.require_possible("Here", found, CHOICES[0], "Take another.")


class Pretends:
    """Equal to whatever it is compared with."""

    __hash__ = None

    def __eq__(self, other):
        return True


def test_what_only_says_that_it_is_equal_is_no_choice():
    choices = [(4, (True, False)), ("ring", (False, False))]
    for wrong in (
        *((4, (1, 0)), (4, [True, False]), (4, (True, Pretends())), ("ring", Pretends())),
        *(Pretends(), [4, (True, False)], (Pretends(), Pretends())),
    ):
        assert trial_ranks.place(choices, wrong) is None
    assert trial_ranks.place(choices, ("ring", (False, False))) == 1
    measure, seen = trial_ranks.measuring(choices, 2, lambda at: (float(at),))
    assert measure("ring", (False, False)) == (1.0,) and seen == {1: (1.0,)}


HIDE = {
    "08": lambda: choose_batch.case(choose_batch.CHEAP, {(1, 0.25): 9.0}),
    "08b": lambda: choose_growth.case(choose_growth.CHEAP, {(0, 0): 9.0}),
}


@pytest.mark.parametrize("lesson", HIDE)
def test_what_tells_the_best_choice_is_in_no_process_that_runs_an_answers_lines(lesson):
    """Steps that were counted: of no use to rank 0's own part of the job."""
    case = HIDE[lesson]()
    (hidden,) = case.hidden
    assert case.for_ranks.values == [(*case.given, None), (*case.given, hidden)]


def by_word(choice):
    """A job whose choices are single words."""
    return (float(len(choice[0])),)


@pytest.mark.parametrize("said", ["three", ["three"], ("three",)])
def test_a_choice_of_one_word_may_be_given_as_that_word(said):
    words = [("one",), ("three",)]
    one = trials.Case(by_word, 2, words, (), (), 1, {"devices": EmulatedDevice()})
    found = one.tried(InKernel({"choose": lambda measure: measure("one") and said}))
    assert (found.choice, found.measured) == (("three",), (5.0,))
    assert found.seen == [(("one",), (3.0,))]
    found = one.tried(InKernel({"choose": lambda measure: "two"}))
    assert (found.choice, found.measured) == (("two",), None)


def test_an_answer_that_changes_the_job_is_refused():
    def answer(measure, told):
        import sys

        sys.modules[job.__module__].job = lambda choice, scale: (0.0,)
        return 1, True

    with pytest.raises(Refused, match="changes what measures it"):
        tried(answer)


def probe(choice, scale):
    return (float(choice[0]),)


def test_an_answer_that_changes_the_probe_changes_nothing():
    found = case().tried(InKernel({"choose": Forges()}), probe, CHOICES)
    assert found.probed == [(1.0,), (2.0,), (2.0,)]


def cells(measure):
    """{name: cell} of what lies behind it."""
    return dict(zip(measure.__code__.co_freevars, measure.__closure__, strict=True))


def test_what_a_choice_measures_is_measured_by_ranks_that_know_no_answer():
    def answer(measure, told):
        cells(measure)["run"].cell_contents = lambda at: (1e-9,)
        return 2, True

    found = tried(answer)
    assert found.measured == pytest.approx((2.0,)) and not found.seen


class Forges:
    """An answer that changes what ranks measure with wherever it arrives, as its text does where it is run first."""

    def __setstate__(self, state):
        import torch.distributed as dist

        plain = dist.all_reduce

        def all_reduce(tensor, *arguments, **options):
            plain(tensor, *arguments, **options)
            tensor.mul_(1e-9)

        dist.all_reduce = all_reduce

    def __getstate__(self):
        return {"changes": True}

    def __call__(self, measure, told):
        return 2, True


@pytest.mark.parametrize("around", [nullcontext, standby.keeping])
def test_an_answer_that_changes_all_ranks_changes_nothing_of_what_counts(around):
    with around():
        if around is standby.keeping:
            kept_ranks.come_from_template(60)
        found = case().tried(InKernel({"choose": Forges()}), job, CHOICES)
    assert found.measured == pytest.approx((2.0,))
    assert dict(zip(CHOICES, found.probed, strict=True)) == case().search()


class Speaks(Forges):
    """An answer that has rank 1 tell what was never run."""

    def __setstate__(self, state):
        def told(*given):
            import torch.distributed as dist

            dist.broadcast(torch.zeros(1, dtype=torch.int64), 0)
            return [(7, (0.0,))]

        trial_ranks.counted = told


def test_what_was_tried_is_looked_at():
    with pytest.raises(Refused, match="speaks for the rank that tells what was run"):
        case().tried(InKernel({"choose": Speaks()}))


@pytest.mark.parametrize(
    "told",
    [
        None,
        [(-1, (0.0,))],
        [(True, (0.0,))],
        [(3, (0.0,))],
        [(0, (10**400,))],
        [(0, (torch.tensor([1.0, 2.0]),))],
        [(0, (0.0,))] * 3,
    ],
)
def test_what_cannot_have_been_tried_is_refused(told):
    with pytest.raises(Refused, match="speaks for the rank that tells what was run"):
        trial_ranks.told_by(told, CHOICES, 2)


class Names:
    """An answer that names a choice, and has tried none."""

    def __init__(self, choice):
        self.choice = choice

    def run(self, step, world_size, *args, **options):
        return [self.choice, []]


@pytest.mark.parametrize(
    ("exercise", "cases", "width"),
    [
        (choose_sending, choose_sending.BYTES | choose_sending.MESSAGES, 1),
        (choose_host, choose_host.ROOM | choose_host.LITTLE | choose_host.LINK, 2),
        (choose_overlap, choose_overlap.QUICK | choose_overlap.LONG, 1),
    ],
)
def test_a_choice_and_the_best_one_are_measured_by_one_launch(exercise, cases, width, monkeypatch):
    launches = []

    def launched(function, ranks, runs, given, **how):
        launches.append([choice for _, choice in runs])
        return [[(1.0,) * width for _ in runs]]

    monkeypatch.setattr(own_ranks, "launched", launched)
    for given, best in cases.items():
        choice = exercise.choice_of(best) if exercise is choose_host else best
        exercise._require(Names(choice), {given: best}, "Which?")
        assert launches.pop() == [choice, choice] and not launches


def test_to_practise_is_one_launch(monkeypatch, capsys):
    """The answer's own: what is chosen has been measured there, or is not asked for."""
    monkeypatch.setattr(trials, "PRACTICE", case(), raising=False)
    check = framework.Check("x", 1, trials.practise)  # of the module where PRACTICE is
    exercise = framework.Exercise("x", "00", "x", ("choose",), "1 choice", checks=[check])
    monkeypatch.setattr(framework, "exercises", lambda: {"x": exercise})
    monkeypatch.setattr(own_ranks, "launched", None)
    trials.practise("x", lambda measure, told: (2, measure(2, False)[0] > 0))
    assert capsys.readouterr().out == "(2, False) 2\nchosen: (2, True)\n"


def variables():
    return dict(os.environ)


def test_the_judges_ranks_have_named_variables_alone(monkeypatch):
    settings = {"DTCOURSE_CHECK": "all", "SOMEBODYS": "own"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    found = own_ranks.launched(variables, 1, init=False)[0]
    assert not settings.keys() & found.keys()
    assert found["PATH"] == os.environ["PATH"] and found["WORLD_SIZE"] == "1"
    whole = launch(variables, 1, init=False)[0]
    assert {name: whole[name] for name in settings} == settings, "a launch of anybody's has all"


ONE = framework.Exercise("one", lesson="00", title="One", takes=("choose",), target="1 choice")


@ONE.check("the one that is possible", points=3)
def check_one(answer):
    trials.require_possible("Here", case().tried(answer), CHOICES[0], "Take another.")


@ONE.check("and the same once more", points=2)
def check_one_again(answer):
    raise AssertionError("where the judge has failed, no further check is made")


def judged(answer):
    return framework.judge(ONE, InKernel({"choose": answer}))


def test_ranks_of_the_judges_own_that_fail_give_no_verdict(monkeypatch):
    monkeypatch.setattr(trial_ranks, "all_of", fails)
    with pytest.raises(
        Unjudged, match=r"no fault of the answer.*RankFailure.*no room.*Check it again"
    ):
        tried(lambda measure, told: (2, True))
    report = judged(lambda measure, told: (2, True))
    assert not report.verdicts and not report.passed
    assert (report.points, report.possible, ONE.points) == (0, 0, 5)
    assert "could not be judged" in str(report) and "✗" not in str(report)


def fails(runs, given):
    raise OSError("no room")


@pytest.mark.parametrize(
    "error", [Unjudged("It was the judge."), OSError("no room"), MemoryError()]
)
def test_what_an_answer_raises_costs_its_points(error):
    def answer(measure, told):
        raise error

    report = judged(answer)
    first = report.verdicts[0]
    assert not report.unjudged and not first.passed
    assert type(error).__name__ in first.sentence
    assert (report.points, report.possible) == (0, 5)


class CannotBeSent:
    """An answer that raises where it is pickled, in the process that judges it."""

    def __reduce__(self):
        raise Unjudged("It was the judge.")


def test_an_answer_that_cannot_be_sent_costs_its_points():
    report = judged(CannotBeSent())
    assert not report.unjudged and "cannot be sent" in report.verdicts[0].sentence


def doubled(choice, number):
    return (2.0 * choice[0], number)


def test_a_simulation_runs_beside_the_answer_and_tells_it_all_numbers():
    case = Simulated(doubled, CHOICES, (0.1,), ("told",), 2)
    found = case.tried(
        InKernel({"choose": lambda measure, told: (2, measure(2, False) == (4.0, 0.1) != told)})
    )
    assert found.choice == (2, True) and found.measured == (4.0, 0.1)
    assert found.seen == [((2, False), (4.0, 0.1))]


def breaks(choice):
    raise MemoryError("none left")


def test_a_simulation_that_fails_in_the_judge_gives_no_verdict():
    with pytest.raises(Unjudged, match=r"MemoryError \(none left\)"):
        Simulated(breaks, CHOICES, (), (), 2).search()


def test_so_many_choices_may_be_run_in_whichever_way():
    def answer(measure, told):
        run = cells(measure)["run"].cell_contents
        return CHOICES[min(range(3), key=run)]

    with pytest.raises(Refused, match="more than 2 choices run"):
        tried(answer)
