"""What many exercises ask of one function: it is called for each case, and is told of the first that is wrong."""

import itertools
import re

import pytest

from dtcourse.course.judging import (
    CheckFailed,
    call_each,
    framework,
    require_diagnoses,
    require_diagnosis,
    require_word,
)
from dtcourse.course.judging.runs import InKernel

MANY = 40


def takes_the_last(numbers):
    """Writes to what it is given."""
    return numbers.pop()


def counts_its_calls(number, calls=[]):  # noqa: B006 - so that it knows its place among the calls
    calls.append(number)
    return number, len(calls)


def finds_nothing(_ranks):
    return "healthy", None


def one_of_many(*_ranks):
    return ["circle", [1, 2]]


def never_ends(_):
    while True:
        pass


def answer(function):
    return InKernel({function.__name__: function})


def test_each_call_has_copies_of_its_own():
    numbers = [1, 2, 3]
    assert call_each(answer(takes_the_last), [(numbers,), (numbers,), [numbers]]) == [3, 3, 3]
    assert numbers == [1, 2, 3]


def test_what_is_put_in_any_order_comes_back_in_its_own():
    given = [(number,) for number in range(MANY)]
    in_order = call_each(answer(counts_its_calls), given)
    assert in_order == [(number, number + 1) for number in range(MANY)]
    shuffled = call_each(answer(counts_its_calls), given, shuffled=True)
    assert [number for number, _ in shuffled] == list(range(MANY))
    places = [place for _, place in shuffled]
    assert sorted(places) == list(range(1, MANY + 1)) and places != sorted(places)


def test_an_answer_that_takes_too_long_is_stopped():
    with pytest.raises(CheckFailed, match="had not returned after 1 s"):
        call_each(answer(never_ends), [(0,)], timeout=1)


@pytest.mark.parametrize("shuffled", [False, True])
def test_the_sentence_is_about_the_first_case_that_is_wrong(shuffled):
    cases = [(([0] * ranks,), ("left", 1)) for ranks in range(2, 30)]
    with pytest.raises(CheckFailed) as found:
        require_diagnoses(
            answer(finds_nothing),
            [(([0],), ("healthy", None)), *cases],
            describe=lambda ranks: f"A run of {len(ranks)} ranks",
            hint="Who left?",
            healthy="All is right.",
            example=("left", 3),
            shuffled=shuffled,
        )
    assert str(found.value) == (
        "A run of 2 ranks, which is ('left', 1); you say ('healthy', None). Who left?"
    )


def test_a_right_diagnosis_passes_and_one_of_a_healthy_case_gets_its_own_hint():
    asked = {
        "describe": lambda p, _: f"{p} ranks",
        "hint": "Who waits?",
        "healthy": "All is right.",
        "example": ("circle", (0, 1)),
    }
    right = [((3, 0), ("circle", (1, 2))), ((4, 0), ("circle", (1, 2)))]
    require_diagnoses(answer(one_of_many), right, **asked)
    sentence = "4 ranks, which is ('healthy', None); you say ('circle', (1, 2)). All is right."
    with pytest.raises(CheckFailed, match=re.escape(sentence)):
        require_diagnoses(answer(one_of_many), [right[0], ((4, 0), ("healthy", None))], **asked)


@pytest.mark.parametrize("got", ["left", ("left",), ("left", 1, 2), None, {"left": 1}])
def test_a_diagnosis_is_two_things(got):
    with pytest.raises(CheckFailed, match=r"is two things, such as \('left', 3\); got "):
        require_diagnosis("A run", got, ("left", 1), "Who?", "All is right.", ("left", 3))


def test_a_word_is_one_of_those_there_are():
    words = ("healthy", "summed")
    require_word("A run", "summed", "summed", words, "How long is it?")
    with pytest.raises(CheckFailed, match="is one of 'healthy', 'summed'; got 'sum'"):
        require_word("A run", "sum", "summed", words, "How long is it?")
    sentence = "A run, which is 'summed'; you say 'healthy'. How long is it?"
    with pytest.raises(CheckFailed, match=re.escape(sentence)):
        require_word("A run", "healthy", "summed", words, "How long is it?")


@pytest.mark.parametrize("exercise", framework.exercises().values(), ids=lambda one: one.name)
def test_a_tick_is_worth_points_whatever_else_passed(exercise):
    """No report says "2 of 3 checks, 0 of 8 points": what is ticked and counted is paid."""
    for passed in itertools.product((False, True), repeat=len(exercise.checks)):
        report = framework.Report(exercise)
        for one, good in zip(exercise.checks, passed, strict=True):
            report.verdicts.append(framework.Verdict(one, good, "" if good else "No."))
            report.settle()
        report.settle(ended=True)
        ticked = [v.check for v in report.verdicts if "✓" in str(v)]
        assert report.points == sum(one.points for one in ticked)
        assert f"  {len(ticked)} of " in report.tail
        assert (report.points == exercise.points) == report.passed == all(passed)
