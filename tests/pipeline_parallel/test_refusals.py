"""A rank that cannot go on is heard of by those that do not see why;
and nothing is sent for that while all goes well."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from dtcourse.launch import launch
from dtcourse.pipeline_parallel import refusals, schedules, zero_bubble
from dtcourse.pipeline_parallel.actions import Schedule
from dtcourse.pipeline_parallel.engine import Pipeline
from dtcourse.pipeline_parallel.headers import Form
from dtcourse.pipeline_parallel.pipedream import PipeDream


def engine(schedule: Schedule, weigh=len):
    torch.manual_seed(dist.get_rank())
    stages = [nn.Linear(4, 4).double() for _ in schedule.stages_of(dist.get_rank())]
    if not schedule.flush:
        return PipeDream(stages, schedule, F.mse_loss, lambda p: torch.optim.SGD(p, lr=0.0)).run
    return Pipeline(stages, schedule, F.mse_loss, weigh=weigh).step


def some(samples: int) -> torch.Tensor:
    return torch.ones(samples, 4).double()


def refused(schedule: Schedule) -> list[str]:
    """Small batches before and after good ones, in training and evaluation; what this rank was told.
    Ranks between the ends are given no batch."""
    rank, ends = dist.get_rank(), {schedule.rank_of[0], schedule.rank_of[-1]}
    step, said, results = engine(schedule), [], []
    for act in (step, step.__self__.evaluate):
        for samples in (1, 8, 2, 8, 8, 3, 8):
            given = some(samples) if rank in ends else None
            try:
                results.append(act(given, given))
            except ValueError as error:
                said.append(str(error))
    assert len(results) == 8
    assert all(str(one) == str(results[0]) for one in results[:4])
    assert all(str(one) == str(results[4]) for one in results[4:])
    return said


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.one_f_one_b(4, 4),
        zero_bubble.zb_v(3, 4),
        schedules.interleaved_1f1b(3, 6, 2),
        schedules.pipedream(3, 4),
    ],
    ids=str,
)
def test_a_batch_that_is_too_small_is_refused_by_all_and_the_next_one_is_not(schedule):
    run = launch(refused, schedule.num_ranks, schedule, timeout=120)
    first, last = schedule.rank_of[0], schedule.rank_of[-1]
    m = schedule.micro_batches
    for rank, said in enumerate(run):
        assert len(said) == 6
        for samples, words in zip((1, 2, 3) * 2, said, strict=True):
            few = f"{samples} sample" + "s" * (samples > 1)
            assert f"has {few}, too few for {m} micro-batches" in words
            assert rank in (first, last) or words.startswith(f"Rank {rank} cannot go on")
            assert rank != first or words.startswith("x has")


def only_the_last_one() -> list[str]:
    """What the last rank finds out only after some good steps: it counts nothing;
    then its loss raises in mid-schedule."""
    said = []
    schedule, good = schedules.one_f_one_b(3, 4), some(8)
    step = engine(schedule, weigh=lambda target: float(target.sum()))
    for target in (good, 0 * good):
        try:
            step(good, target)
        except ValueError as error:
            said.append(str(error))

    class Fails(nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            if self.calls == 7 and dist.get_rank() == 1:
                raise KeyError("seventh")
            return super().forward(x)

    pipeline = Pipeline([Fails(4, 4).double()], schedule, F.mse_loss)
    pipeline.step(good, good)
    try:
        pipeline.step(good, good)
    except (ValueError, KeyError) as error:
        said.append(f"{type(error).__name__}: {error}")
    dist.barrier()  # a rank that left now would take its words with it
    return said


def test_what_one_rank_finds_out_on_the_way_is_heard_by_the_others():
    run = launch(only_the_last_one, 3, timeout=120)
    for rank, (nothing, seventh) in enumerate(run):
        assert "all of them nothing" in nothing
        assert rank == 2 or nothing.startswith(f"Rank {rank} cannot go on with this step")
        assert rank == 2 or "Rank 2: ValueError" in nothing
        assert "seventh" in seventh
        assert rank == 1 or (seventh.startswith("StepRefused") and "Rank 1: KeyError" in seventh)


def good_steps(steps: int) -> None:
    step = engine(schedules.one_f_one_b(3, 4))
    for _ in range(steps):
        step(some(8), some(8))


def test_steps_that_go_well_send_their_tensors_and_nothing_else():
    one, three = (launch(good_steps, 3, steps, record=True) for steps in (1, 3))
    border = 8 * 4 * 8
    for rank, borders in enumerate((1, 2, 1)):
        first, all_three = (run.traffic.bytes_sent(rank=rank) for run in (one, three))
        assert all_three - first == 2 * borders * border


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_no_tensor_of_a_step_is_taken_for_a_refusal(dtype):
    forms = [
        Form(torch.Size([2]), torch.int64, False),
        Form(torch.Size([3, 2]), dtype, True),
    ]
    tensors = refusals.marked(forms)
    assert [(one.shape, one.dtype) for one in tensors] == [form[:2] for form in forms]
    assert refusals.mark_of(tensors) and tensors[1].isnan().any()
    zero = torch.zeros(1, dtype=dtype)
    for value in (zero, zero + 1, zero / 0, -(zero / 0), zero - float("inf"), zero + float("nan")):
        assert not refusals.mark_of([tensors[0], value])


def test_a_message_of_integers_has_one_element_more_that_can_say_refused():
    forms = [
        Form(torch.Size([2]), torch.int64, False),
        Form(torch.Size([0, 3]), torch.float32, True),
    ]
    sound = refusals.with_room([torch.zeros(form.shape, dtype=form.dtype) for form in forms])
    assert [tuple(one.shape) for one in sound] == [(2,), (0, 3), (1,)]
    refused = refusals.marked(forms)
    assert [one.shape for one in refused] == [one.shape for one in sound]
    assert refusals.mark_of(refused) and not refusals.mark_of(sound)
    assert refusals.with_room([]) == refusals.marked([]) == []


def test_a_long_reason_is_cut():
    said = refusals.reason_of(ValueError("ü" * 2000), 0)
    assert said.startswith("Rank 0: ValueError: üü") and len(said) == 1000
