"""What techniques ask of values, memory and other ranks is answered where a rank is traced: each in a small step."""

from __future__ import annotations

import warnings
import weakref

import pytest
import torch
from torch import nn

from dtcourse import streams, torch_private
from dtcourse.collectives.backend import virtual
from dtcourse.collectives.decisions import Answers
from dtcourse.collectives.wire.work import CollectiveWork, Worker
from dtcourse.pipeline_parallel.engine import Pipeline
from dtcourse.pipeline_parallel.headers import Form
from dtcourse.pipeline_parallel.schedules import one_f_one_b
from dtcourse.sharding import fully_shard
from dtcourse.torch_private import is_fake, without_values


def test_a_value_that_is_not_there_is_not_looked_at():
    with without_values():
        assert not streams.may_look(torch.zeros(2))
        assert streams.may_look(torch.arange(2))


def test_a_fake_tensor_has_no_address_and_is_asked_for_none():
    x = torch.zeros(2)
    assert torch_private.address_of(x) == x.data_ptr()
    with without_values(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch_private.address_of(torch.zeros(2)) == 0


@pytest.mark.parametrize("early", [True, False])
def test_a_sharded_step_is_traced(early):
    """Parameters are gathered, freed and gathered again, gradients are sent; nobody's notes are waited for."""
    with virtual.group(1, 64, early=early) as calls, without_values(), warnings.catch_warnings():
        warnings.simplefilter("error")
        model = nn.Sequential(nn.Linear(6, 64), nn.Linear(64, 6))
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        for _ in range(2):
            model(torch.zeros(4, 6)).sum().backward()
        for parameter in model.parameters():
            assert is_fake(type(parameter.to_local())) and parameter.grad.shape == parameter.shape
    assert {call.ranks for call in calls} == {tuple(range(64))}
    assert {call.operation for call in calls} >= {"all_gather", "reduce_scatter"}


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_stage_gets_what_it_is_told_and_nobody_refuses(rank):
    answers = Answers(coming=lambda message: [Form(torch.Size((2, 6)), torch.float32, True)])
    with virtual.group(rank, 3, answers), without_values():
        pipeline = Pipeline([nn.Linear(6, 6)], one_f_one_b(3, 2), nn.functional.mse_loss)
        given = torch.zeros(4, 6)
        pipeline.step(given if rank == 0 else None, given if rank == 2 else None)


def test_what_a_collective_was_given_is_free_when_it_is_over():
    """Else a tensor lives until its worker's thread goes on: memory at a peak would be chance."""
    worker, there = Worker("test"), []

    def submit():
        class Given:
            pass

        given = Given()
        work = CollectiveWork("all_reduce", [torch.zeros(1)])
        seen = weakref.ref(given)
        work.get_future().then(lambda _: there.append(seen()))
        worker.submit(work, lambda given=given: None)
        return work

    submit().wait()
    worker.stop()
    assert there == [None]
