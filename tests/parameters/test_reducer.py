"""The Reducer by itself, as a technique uses it: a hook for buckets, local gradients, one reduction at the end."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import launch
from dtcourse.parameters.buckets import assign
from dtcourse.parameters.reducer import Reducer


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3), nn.Linear(3, 1)).double()


def loss(model, part):
    torch.manual_seed(100 * dist.get_rank() + part)
    return model(torch.randn(4, 5).double()).square().mean()


def names(model):
    return {p: name for name, p in model.named_parameters()}


def mean_of_sums(model, parts):
    """The truth: each rank's sum over its parts, averaged over the ranks after backward."""
    for part in parts:
        loss(model, part).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    return [p.grad for p in model.parameters()]


def distance(model, truth):
    return max(
        (p.grad - g).abs().max().item() for p, g in zip(model.parameters(), truth, strict=True)
    )


def test_a_method_is_what_it_does_with_a_bucket():
    def step():
        model, sent = net(), []

        def hook(bucket):
            sent.append((bucket.index(), bucket.is_last(), len(bucket.parameters())))
            half = bucket.buffer() / dist.get_world_size()  # another tensor: not reduced in place
            return dist.all_reduce(half, async_op=True).get_future()

        reducer = Reducer(names(model), hook=hook, assign=partial(assign, bytes_each=1))
        output = loss(model, 0)
        reducer.prepare_for_backward(output)
        output.backward()
        return sent, distance(model, mean_of_sums(net(), [0]))

    for sent, error in launch(step, 2):
        assert [index for index, _, _ in sent] == list(range(6)), "each once, in one order"
        assert [last for _, last, _ in sent] == [False] * 5 + [True]
        assert error < 1e-15


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_pipelines_stage_reduces_once_after_its_last_micro_batch(world_size):
    """Both ways: with the last backward, which overlaps, and after it; each bucket travels once."""

    def step(at_the_end):
        model, sent = net(), []

        def hook(bucket):
            sent.append(bucket.index())
            bucket.buffer().div_(dist.get_world_size())
            return dist.all_reduce(bucket.buffer(), async_op=True).get_future()

        reducer = Reducer(names(model), hook=hook, assign=partial(assign, bytes_each=1))
        for _ in range(2):  # steps: the buckets are built again after the first
            for p in model.parameters():
                p.grad = None
            sent.clear()
            for part in range(4):
                output = loss(model, part)
                if part == 3 and not at_the_end:
                    reducer.prepare_for_backward(output)
                else:
                    reducer.keep_local(output)
                output.backward()
            before = list(sent)
            if at_the_end:
                reducer.reduce_local()
            reducer.rebuild()
        return (
            len(before),
            len(sent),
            [p.grad.clone() for p in model.parameters()],
            distance(model, mean_of_sums(net(), range(4))),
        )

    run = {way: launch(step, world_size, at_the_end=way) for way in (True, False)}
    for at_the_end, ranks in run.items():
        for before, sent, _, error in ranks:
            assert (before, sent) == ((0, 6) if at_the_end else (6, 6))
            assert error < 1e-15
    for a, b in zip(*(ranks for ranks in run.values()), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a[2], b[2], strict=True)), "bit for bit"


def test_no_more_is_under_way_than_was_said():
    class Sent:
        def __init__(self, bucket, under_way):
            self.bucket, self.under_way = bucket, under_way
            under_way.append(bucket.nbytes)

        def wait(self):
            self.under_way.remove(self.bucket.nbytes)
            return self.bucket.buffer()

    def step(limit):
        model, under_way, most = net(), [], []

        def hook(bucket):
            sent = Sent(bucket, under_way)
            most.append(sum(under_way))
            return sent

        reducer = Reducer(names(model), hook=hook, assign=partial(assign, bytes_each=1))
        reducer.bytes_under_way = limit
        output = loss(model, 0)
        reducer.prepare_for_backward(output)
        output.backward()
        return (
            max(most),
            under_way,
            max(b.nbytes for b in reducer.buckets),
            sum(b.nbytes for b in reducer.buckets),
        )

    for most, left, largest, together in launch(step, 1, limit=100):
        assert most <= 100 + largest < together
        assert left == []
    for most, left, _, together in launch(step, 1, limit=None):
        assert (most, left) == (together, [])


def test_a_backward_that_nobody_prepared_for_is_an_error():
    def step():
        model = net()
        reducer = Reducer(names(model))
        output = loss(model, 0)
        reducer.prepare_for_backward(output)
        output.backward()
        try:
            loss(model, 1).backward()
        except RuntimeError as error:
            return str(error)

    assert "backward ran again" in launch(step, 1)[0]


def test_a_reducer_goes_with_its_last_reference():
    """It is in no cycle: `del model` lets go of its hooks at once, and the next wrapper may begin."""

    def step():
        import gc
        import weakref

        model = net()
        gc.disable()
        reducer = Reducer(names(model))
        output = loss(model, 0)
        reducer.prepare_for_backward(output)
        output.backward()
        alive = weakref.ref(reducer)
        del reducer, output
        return alive() is None

    assert launch(step, 1)[0]
