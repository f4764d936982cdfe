"""Communication hooks as PyTorch's wrapper takes them: what is no hook is refused, the earlier the better."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from dtcourse import launch
from dtcourse.data_parallel import DistributedDataParallel

Averaged = torch.futures.Future[torch.Tensor]


def averaged(state, bucket):
    buffer = bucket.buffer() / dist.get_world_size()
    return dist.all_reduce(buffer, async_op=True).get_future().then(lambda f: f.value()[0])


def annotated(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return averaged(state, bucket)


class Callable:
    def __call__(self, state, bucket):
        return averaged(state, bucket)


def other_bucket(state: Any, bucket: int) -> Averaged:
    return averaged(state, bucket)


def other_result(state, bucket) -> torch.Tensor:
    return averaged(state, bucket)


def one_argument(bucket):
    return averaged(None, bucket)


def nothing(state, bucket):
    dist.all_reduce(bucket.buffer())


def the_tensor(state, bucket):
    dist.all_reduce(bucket.buffer())
    return bucket.buffer()


def a_number(state, bucket):
    return 1


def a_work(state, bucket):
    return dist.all_reduce(bucket.buffer(), async_op=True)


def a_future_of_a_number(state, bucket):
    dist.all_reduce(bucket.buffer())
    future = torch.futures.Future()
    future.set_result(1)
    return future


def a_future_of_another_size(state, bucket):
    dist.all_reduce(bucket.buffer())
    future = torch.futures.Future()
    future.set_result(bucket.buffer()[:2])
    return future


def said(wrapper, register, then=lambda model: None):
    model = wrapper(nn.Linear(2, 2))
    try:
        register(model)
        then(model)
        return None, "accepted"
    except Exception as error:
        return type(error), " ".join(str(error).split())


def twice(model):
    model.register_comm_hook(None, averaged)
    model.register_comm_hook(None, averaged)


def registered(hook):
    return lambda model: model.register_comm_hook(None, hook)


def backward(model):
    model(torch.ones(1, 2) * (1 + dist.get_rank())).sum().backward()


AT_ONCE = {  # what is registered, and what both say
    "a number": (registered(1), TypeError, "must be callable"),
    "None": (registered(None), TypeError, "must be callable"),
    "another bucket": (registered(other_bucket), ValueError, "bucket annotation should be dist.GradBucket"),
    "another result": (registered(other_result), ValueError, "return annotation should be torch.futures.Future"),
    "twice": (twice, RuntimeError, "register_comm_hook"),
}  # fmt: skip


def at_once():
    return {
        name: (said(DistributedDataParallel, register), said(TorchDDP, register))
        for name, (register, *_) in AT_ONCE.items()
    }


def test_a_hook_is_checked_when_it_is_registered_as_pytorch_does():
    for found in launch(at_once, 2):
        for name, (_, kind, words) in AT_ONCE.items():
            (ours, our_words), (theirs, their_words) = found[name]
            assert issubclass(ours, kind) and issubclass(theirs, kind), (name, found[name])
            assert words in our_words and words in their_words, (name, found[name])


IN_BACKWARD = {
    nothing: r"returned None \(a return is missing at its end\); it has to return a torch",
    the_tensor: "returned a Tensor",
    a_number: "returned an int",
    a_work: r"returned a Work.*\.get_future\(\)",
    a_future_of_a_number: "a Future of an int",
    a_future_of_another_size: r"a Future of a tensor of 2 elements, and the bucket has 6",
}


def in_backward(hook):
    return said(DistributedDataParallel, registered(hook), backward)


@pytest.mark.parametrize("hook", IN_BACKWARD, ids=lambda hook: hook.__name__)
def test_what_a_hook_returns_is_checked_on_every_rank(hook):
    for kind, words in launch(in_backward, 2, hook):
        assert kind is RuntimeError, words
        assert words.startswith(f"the communication hook {hook.__name__} "), words
        assert re.search(IN_BACKWARD[hook], words), words


def what_fits():
    found = []
    for hook in (
        averaged,
        annotated,
        Callable(),
        partial(averaged),
        default_hooks.allreduce_hook,
        default_hooks.fp16_compress_hook,
        default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook),
        lambda state, bucket: averaged(state, bucket),
    ):
        model = DistributedDataParallel(nn.Linear(2, 2))
        model.register_comm_hook(None, hook)
        backward(model)
        found.append(model.module.weight.grad[0].tolist())
    return found


def test_whatever_may_be_called_so_is_a_hook():
    assert [*launch(what_fits, 2)] == [[[1.5, 1.5]] * 8] * 2


def test_a_hook_without_the_two_arguments_is_told_of_them():
    def short():
        return said(DistributedDataParallel, registered(one_argument))

    for kind, words in launch(short, 1):
        assert kind is ValueError
        assert "hook(state, bucket)" in words and "one_argument(bucket)" in words
