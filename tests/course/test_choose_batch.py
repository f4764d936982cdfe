"""Exercises 08-2 and 08b-4 are judged by trainings whose gradients are written by hand: autograd has to agree."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from dtcourse.course.checks.lesson_08_large_batch import choose_batch
from dtcourse.course.checks.lesson_08b_large_batch_remedies import choose_growth
from dtcourse.course.judging import short_training as training
from dtcourse.course.judging.threads import one_thread
from tests.turns import takes_turns


def test_the_gradients_are_autograds():
    draw = torch.Generator().manual_seed(1)
    weights = [
        w.double() + 0.1 * torch.randn(w.shape, generator=draw) for w in training._start(draw)
    ]
    x = torch.randn(training.SEEDS, 5, 64, generator=draw).double()
    labels = torch.randint(training.CLASSES, (training.SEEDS, 5), generator=draw)
    hot = torch.nn.functional.one_hot(labels, training.CLASSES).double()
    for w in weights:
        w.requires_grad_()
    logits = training._forward(weights, x)[1]
    # the mean over a seed's batch, and the sum over seeds, which do not know of each other
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    expected = torch.autograd.grad(loss * training.SEEDS, weights)
    with torch.no_grad():
        found = training._gradients(weights, x, hot)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_what_is_trained_together_or_from_a_common_start_is_trained_as_alone():
    """The judge's short cuts: all learning rates in one pass, and runs whose batches differ late only."""
    with one_thread():
        together = training.steps_to_loss(64, choose_batch.RATES)
        assert together == [training.steps_to_loss(64, [lr])[0] for lr in choose_batch.RATES]
        assert 1 < sum(map(math.isfinite, together)) < len(together)
        for choice in [(0, 40), (160, 240)]:
            assert choose_growth.steps()[choice] == choose_growth.steps_of(*choice)


def test_nothing_is_looked_at_too_late():
    least = min(*choose_batch.steps().values(), *choose_growth.steps().values())
    assert least > 2 * training.FIRST_LOOK


def best_of(exercise) -> list:
    """The best choice on each of its clusters, with the step's seconds from ranks of our own."""
    found = []
    for cluster in (exercise.CHEAP, exercise.COSTLY, exercise.COSTLIEST):
        case = exercise.case(cluster, exercise.steps())
        probe = replace(case, job=exercise.one_step, choices=exercise.PROBED)
        found.append(exercise.best(list(probe.search().values()))[1])
    return found


@takes_turns("dtcourse/course/checks/lesson_08_", "dtcourse/course/judging/short_training.py")
def test_each_cluster_wants_another_batch():
    """So no fixed choice passes, and none of the three lies at the edge of the list."""
    wanted = [choice[0] for choice in best_of(choose_batch)]
    assert wanted == sorted(set(wanted))
    assert choose_batch.ACCUMULATIONS[0] < wanted[0]
    assert wanted[-1] < choose_batch.ACCUMULATIONS[-1]


@takes_turns("dtcourse/course/checks/lesson_08b_", "dtcourse/course/judging/short_training.py")
def test_each_cluster_wants_another_growth():
    """The same of exercise 08b-4, where the batch grows during the run."""
    wanted = best_of(choose_growth)
    assert wanted == sorted(set(wanted), reverse=True)
    assert wanted[0] < (choose_growth.STEPS[-1],) * 2
