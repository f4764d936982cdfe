"""The harness sees what it is there to see: each of the usual mistakes of data parallelism, by its name."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import launch
from dtcourse.parameters.wrapper import Wrapper
from dtcourse.verify import CASES, NotEqual, compare, on_ranks, one_process
from dtcourse.verify.harness import LEARNING_RATE, SAMPLES, Backward, _plan, train


def test_one_process_is_plain_sgd_on_the_whole_batch():
    """Against torch's own arithmetic, written out."""
    case = CASES["mlp"]
    steps = one_process(case, steps=2)
    model = case.build(0)
    parameters = dict(model.named_parameters())
    for step in range(2):
        x, y = case.batch(SAMPLES, step)
        loss = case.loss(model(x), y)
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        assert steps.losses[step] == pytest.approx(loss.item())
        assert compare(steps.gradients[step], dict(zip(parameters, gradients, strict=True))) < 1e-6
        with torch.no_grad():
            for parameter, gradient in zip(parameters.values(), gradients, strict=True):
                parameter -= LEARNING_RATE * gradient
    assert (
        compare(steps.parameters, {n: p.detach() for n, p in parameters.items()}, what="parameter")
        < 1e-6
    )


class Averages(Wrapper):
    """Data parallelism without a reducer, with one mistake of the usual ones, or none."""

    def __init__(self, module: nn.Module, mistake: str) -> None:
        super().__init__()
        self.module, self.mistake = module, mistake
        self.require_backward_grad_sync = True
        if mistake != "no common start":
            for parameter in module.parameters():
                dist.broadcast(parameter.detach(), src=0)

    def forward(self, x):
        return self.module(x)

    def average(self) -> None:
        """After each backward, as `after_backward` of harness.train; inside no_sync it is not to."""
        last = self.require_backward_grad_sync
        if last == (self.mistake == "averages before the last micro-batch"):
            return
        for name, parameter in self.module.named_parameters():
            if parameter.grad is None or (self.mistake == "one is left out" and name == "2.weight"):
                continue
            dist.all_reduce(parameter.grad)
            if self.mistake != "sum for mean":
                parameter.grad /= dist.get_world_size()


def trained(mistake: str, micro_batches: int):
    model = CASES["mlp"].build(0 if dist.get_rank() == 0 else 1000 + dist.get_rank())
    wrapped = Averages(model, mistake)
    plan = _plan(CASES["mlp"], 2, SAMPLES, dist.get_rank(), dist.get_world_size(), micro_batches)
    return train(wrapped, model, plan, after_backward=Averages.average).gradients


MISTAKES = {
    "sum for mean": (1, "0.weight: .*2 times too large: look for a sum where the mean belongs"),
    "one is left out": (1, "2.weight: .*It points elsewhere"),
    "no common start": (1, "It points elsewhere"),
    "averages before the last micro-batch": (2, "It points elsewhere"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_usual_mistake_is_seen(mistake):
    micro_batches, message = MISTAKES[mistake]
    truth = one_process(CASES["mlp"], steps=2).gradients
    right = launch(trained, 2, "", micro_batches)[1]
    assert max(compare(mine, best) for mine, best in zip(right, truth, strict=True)) < 1e-5
    with pytest.raises(NotEqual, match=message):
        for rank in launch(trained, 2, mistake, micro_batches):
            for mine, best in zip(rank, truth, strict=True):
                compare(mine, best)


def starts():
    """Each rank's first parameter before wrapping, and a random number while it trains."""
    seen = {}

    def wrap(model):
        seen["weight"] = next(model.parameters()).detach().clone()
        seen["random"] = torch.rand(())
        return model

    on_ranks(wrap, CASES["mlp"], steps=1)
    return seen


def test_ranks_start_apart_so_that_a_technique_must_bring_them_together():
    first, *others = launch(starts, 3)
    assert torch.equal(first["weight"], next(CASES["mlp"].build(0).parameters()))
    for other in others:
        assert not torch.equal(first["weight"], other["weight"])
        assert first["random"] != other["random"]


def rows(micro_batches):
    """The samples that this rank's forwards see in one step, in their order."""
    seen = []

    def wrap(model):
        model.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
        return model

    on_ranks(wrap, CASES["mlp"], steps=1, micro_batches=micro_batches)
    return [x.tolist() for x in seen]


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_ranks_and_micro_batches_share_the_batch_out(micro_batches):
    run = launch(rows, 3, micro_batches)
    assert [len(forwards) for forwards in run] == [micro_batches] * 3
    assert [row for forwards in run for x in forwards for row in x] == CASES["mlp"].batch(
        SAMPLES, 0
    )[0].tolist()


def test_a_batch_that_cannot_be_divided_is_refused():
    def alone():
        return on_ranks(lambda model: model, CASES["mlp"], samples=10, micro_batches=4)

    with pytest.raises(
        Exception, match="10 samples cannot be divided into 1 rank times 4 micro-batches"
    ):
        launch(alone, 1)


class Counts(nn.Module):
    """Notes whether it is inside no_sync, in each forward."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.quiet, self.seen = module, 0, []

    def no_sync(self):
        wrapper = self

        class Quiet:
            def __enter__(self):
                wrapper.quiet += 1

            def __exit__(self, *_):
                wrapper.quiet -= 1

        return Quiet()

    def forward(self, x):
        self.seen.append(self.quiet)
        return self.module(x)


def test_backwards_without_sync_run_in_no_sync_and_add_up():
    """Three backwards, of which the last averages; a backward of two losses counts both."""
    case = CASES["mlp"]
    x, y = case.batch(8, 0)

    def loss(model, part):
        return case.loss(model(x[part : part + 2]), y[part : part + 2]) / 4

    plan = [
        [
            Backward([partial(loss, part=0)], sync=False),
            Backward([partial(loss, part=2), partial(loss, part=4)], sync=False),
            Backward([partial(loss, part=6)]),
        ]
    ]
    model = case.build(0)
    wrapped = Counts(model)
    called = []
    steps = train(
        wrapped,
        model,
        plan,
        after_backward=lambda w: called.append("backward"),
        before_step=lambda w: called.append("step"),
    )
    assert wrapped.seen == [1, 1, 1, 0]
    assert called == ["backward"] * 3 + ["step"]
    whole = case.build(0)
    case.loss(whole(x), y).backward()
    assert compare(steps.gradients[0], {n: p.grad for n, p in whole.named_parameters()}) < 1e-5
    assert steps.losses[0] == pytest.approx(case.loss(case.build(0)(x), y).item())


def quiet_forwards():
    wrapped = []

    def wrap(model):
        wrapped.append(Counts(model))
        return wrapped[0]

    on_ranks(wrap, CASES["mlp"], steps=2, micro_batches=4)
    return wrapped[0].seen


def test_the_last_micro_batch_of_a_step_averages():
    assert launch(quiet_forwards, 2)[1] == [1, 1, 1, 0] * 2
