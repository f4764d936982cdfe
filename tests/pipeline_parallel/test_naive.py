"""1F1B written out on a page is the engine's: the same bits, the same events in the same order, the same bytes."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F

from dtcourse import launch
from dtcourse.collectives import traffic
from dtcourse.pipeline_parallel import naive
from dtcourse.pipeline_parallel.engine import Pipeline
from dtcourse.pipeline_parallel.schedules import one_f_one_b
from dtcourse.verify.gradients import gradients_of
from tests import nccl_order
from tests.pipeline_parallel.test_engine import batch, cut

CASES = [(1, 2), (2, 4), (2, 3), (3, 6), (4, 8), (4, 3), (4, 1)]  # ranks, micro-batches
SAMPLES, STEPS = 13, 2  # no number of micro-batches but 1 divides 13
LIKE = torch.empty(6, dtype=torch.double)


def of_the_engine(schedule, group):
    """By step, the loss and the bytes that this rank has sent; and the gradients of both steps."""
    (stage,), _ = cut(schedule, dist.get_rank())
    pipeline = Pipeline([stage], schedule, F.cross_entropy, group)
    return steps(stage, lambda: pipeline.step(*batch(SAMPLES)))


def of_the_page(schedule, group):
    """The same."""
    (stage,), _ = cut(schedule, dist.get_rank())
    numbers = schedule.micro_batches, LIKE, group
    return steps(
        stage, lambda: naive.one_f_one_b(stage, F.cross_entropy, *batch(SAMPLES), *numbers)
    )


def steps(stage, step):
    told = []
    for _ in range(STEPS):
        with traffic.counting() as counted:
            told.append((step(), counted.bytes_sent()))
    return told, gradients_of(stage)


def all_cases():
    found = {}
    for p, m in CASES:
        group = dist.new_group(range(p))
        if dist.get_rank() < p:
            schedule = one_f_one_b(p, m)
            found[p, m] = of_the_engine(schedule, group), of_the_page(schedule, group)
    return found


def test_it_is_the_engines_step():
    run = launch(all_cases, 4, record=True)
    for rank, found in enumerate(run):
        performed = [one for one in run.timeline.order(rank) if one[:1].isdigit()]
        for (p, m), (engines, pages) in found.items():
            actions = [repr(action) for action in one_f_one_b(p, m).ranks[rank]]
            for _ in range(2 * STEPS):  # the engine's, then the page's
                assert performed[: len(actions)] == actions, (p, m)
                del performed[: len(actions)]
            assert [loss for loss, _ in pages[0]] == [loss for loss, _ in engines[0]]
            assert (pages[0][0][0] is not None) == (rank == p - 1)
            assert (
                pages[0][1][1] == engines[0][1][1]
            )  # bytes; in the first step the engine's shapes travel, too
            assert pages[1].keys() == engines[1].keys()
            for name, gradient in engines[1].items():
                same = pages[1][name] is gradient or torch.equal(pages[1][name], gradient)
                assert same, (p, m, name)
        assert len(found) > rank // 2 and not performed


def one_step_of_the_page():
    return of_the_page(one_f_one_b(4, 8), None)


def test_it_ends_where_each_send_waits_for_its_receive():
    """Where messages start in the order in which they are posted, whatever they are (tests/nccl_order.py)."""
    assert nccl_order.launch(one_step_of_the_page, 4, "group")[3][0][0][0] is not None
