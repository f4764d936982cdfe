"""What DistributedDataParallel and ZeRO-2's ShardedDataParallel must both get right:
sequences of calls that users make.

Each sequence is written once, for one rank. The truth is the mean over the ranks of what it leaves in .grad where each
rank's part runs alone, on a plain module.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.utils.checkpoint import checkpoint

from dtcourse import launch
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.sharding import ShardedDataParallel, ZeroRedundancyOptimizer
from dtcourse.verify import compare
from dtcourse.verify.gradients import gradients_of


class Plain(nn.Module):
    """The module as it is, with a wrapper's methods."""

    def __init__(self, module, **options):
        super().__init__()
        self.module = module

    def forward(self, *inputs):
        return self.module(*inputs)

    def no_sync(self):
        return nullcontext()


def sharded(module, static_graph=False, **options):
    """ZeRO-2 looks at what comes in each backward: where a static graph may lack gradients, it has to be told so."""
    options["find_unused_parameters"] = static_graph or options.get("find_unused_parameters", False)
    optimizer = ZeroRedundancyOptimizer(module.parameters(), torch.optim.SGD, lr=0.1)
    return ShardedDataParallel(module, optimizer, **options)


def with_own_gradients(module, **options):
    return DistributedDataParallel(module, gradient_as_bucket_view=False, **options)


WRAPPERS = {
    "ddp": DistributedDataParallel,
    "ddp, no views": with_own_gradients,
    "zero2": sharded,
    "torch": TorchDDP,
}


# --- models ---------------------------------------------------------------------------------------------------------


class Branches(nn.Module):
    """Two layers, of which forward uses the ones that it is told to, and one that is always used."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.both = (nn.Linear(3, 3, bias=False) for _ in range(3))
        self.double()

    def forward(self, x, use):
        x = torch.tanh(self.both(x))
        return sum(getattr(self, name)(x).square().sum() for name in use)


class Checkpointed(nn.Module):
    """A layer, checkpointed layers and, where `last` is false, another layer; `shared` layers are one."""

    def __init__(
        self, reentrant, last=True, shared=False, spare=False, returns=lambda x: x.square().sum()
    ):
        super().__init__()
        self.returns = returns
        torch.manual_seed(0)
        self.first, self.reentrant = nn.Linear(3, 3), reentrant
        second = nn.Linear(3, 3)
        self.inside = nn.ModuleList([second, second if shared else nn.Linear(3, 3)])
        self.last = nn.Identity() if last else nn.Linear(3, 3)
        self.spare = nn.Linear(3, 3) if spare else None
        self.double()

    def forward(self, x):
        x = self.first(x)
        for layer in self.inside:
            x = checkpoint(layer, torch.tanh(x), use_reentrant=self.reentrant)
        return self.returns(self.last(x))


def data(rank, number=0):
    generator = torch.Generator().manual_seed(100 * number + rank)
    return torch.randn(2, 3, generator=generator, dtype=torch.float64)


# --- sequences ------------------------------------------------------------------------------------------------------


def used_earlier(wrap, rank, plan, quiet=(), options=None):
    """Micro-batches; plan[number]: the layers that one uses, or those for rank 0 and those for the others."""
    model = wrap(Branches(), **({"find_unused_parameters": True} if options is None else options))
    for number, use in enumerate(plan):
        use = use if isinstance(use, str) else use[min(rank, 1)]
        with model.no_sync() if number in quiet else nullcontext():
            model(data(rank, number), use).backward()
    return model.module


def checkpointed(wrap, rank, options, **kind):
    model = wrap(Checkpointed(**kind), **options)
    for number in range(3):  # buckets are built again after the first
        model.module.zero_grad()
        model(data(rank, number)).backward()
    return model.module


def changed_in_place(wrap, rank):
    """A view that the user changes: its own hook is gone with its history."""
    model = wrap(Checkpointed(reentrant=True, returns=lambda x: x[:1]), **STATIC)
    for number in range(2):
        model.module.zero_grad()
        row = model(data(rank, number))
        row *= 2
        row.square().sum().backward()
    return model.module


def zeroed_in_place(wrap, rank):
    """zero_grad(set_to_none=False), then micro-batches in no_sync."""
    model = wrap(Branches())
    for number in range(3):
        model.module.zero_grad(set_to_none=False)
        with model.no_sync():
            model(data(rank, number), "ab").backward()
        model(data(rank, 10 + number), "ab").backward()
    return model.module


def thrown_away(wrap, rank):
    """Local gradients, and means, that zero_grad() throws away."""
    model = wrap(Branches(), find_unused_parameters=True)
    for to_none in (True, False):
        model(data(rank, 1), "a").backward()
        with model.no_sync():
            model(data(rank, 2), "ab").backward()
        model.module.zero_grad(set_to_none=to_none)
    model(data(rank, 3), "a").backward()
    return model.module


def means_and_local(wrap, rank):
    """Averaged, local, local, averaged, local, averaged."""
    model = wrap(Branches())
    for number, quiet in enumerate((False, True, True, False, True, False)):
        with model.no_sync() if quiet else nullcontext():
            model(data(rank, number), "ab").backward()
    return model.module


def two_forwards(wrap, rank):
    model = wrap(Branches(), find_unused_parameters=True)
    (model(data(rank, 0), "a") + model(data(rank, 1), "b")).backward()
    return model.module


def forward_for_nothing(wrap, rank):
    """Evaluation without no_grad(), on one rank only; its buckets are built again together all the same."""
    model = wrap(Branches(), **({} if wrap is sharded else {"bucket_cap_mb": 0.00001}))
    for number in range(3):
        model.module.zero_grad()
        loss = model(data(rank, number), "ab")
        if rank == 1:
            model(data(rank, 7), "ab")
        loss.backward()
        if rank == 0:
            model(data(rank, 8), "ab")
    return model.module


def evaluation_between(wrap, rank):
    model = wrap(Branches())
    for number in range(2):
        with model.no_sync():
            loss = model(data(rank, number), "ab")
        with torch.no_grad():
            model(data(rank, 7), "a")
        loss.backward()
        model.eval()
        with torch.no_grad():
            model(data(rank, 8), "b")
        model.train()
        model.module.state_dict()
    model(data(rank, 9), "ab").backward()
    return model.module


@dataclass(slots=True)
class Output:
    loss: torch.Tensor
    more: object


class Returns(Branches):
    """Returns both branches, in a dataclass, in an object that holds itself, or keeps them to itself."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x, use):
        one, two = super().forward(x, "a"), super().forward(x, use)
        if self.how == "nothing":
            self.kept = one
            return None
        if self.how == "dataclass":
            return Output(one, {"two": [two]})
        made = SimpleNamespace()
        made.me, made.loss, made.more = made, one, two
        return made


def one_of_two_results(wrap, rank, how):
    """The loss depends on one of the two; the other one's parameters get no gradient."""
    model = wrap(Returns(how), find_unused_parameters=True)
    model(data(rank), "b").loss.backward()
    return model.module


def nothing_returned(wrap, rank):
    model = wrap(Returns("nothing"))
    model(data(rank), "ab")
    (model.module.kept + model.module.b.weight.square().sum()).backward()
    return model.module


def gradient_penalty(wrap, rank, alone):
    """A loss of the gradient of an input; `alone`: of nothing else."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 1, bias=False))
    model = wrap(layers.double())
    for number in range(2):
        model.module.zero_grad()
        x = data(rank, number).requires_grad_()
        score = model(x).sum()
        (slope,) = torch.autograd.grad(score, x, create_graph=True)
        (slope.square().sum() + (0 if alone else score)).backward(retain_graph=True)
        torch.autograd.grad(score, x)  # and again, after it
    return model.module


def frozen_for_a_while(wrap, rank):
    """A discriminator, while the generator is trained."""
    model = wrap(Branches())
    for number in range(2):
        model.module.requires_grad_(False)
        x = data(rank, number).requires_grad_()
        model(x, "ab").backward()
        model.module.requires_grad_(True)
        model.module.zero_grad()
        model(data(rank, 10 + number), "ab").backward()
    return model.module


def wrapped_again(wrap, rank):
    module = Branches()
    for _ in range(2):
        model = wrap(module)
        for number in range(2):
            module.zero_grad()
            model(data(rank, number), "ab").backward()
        del model
    return wrap(module).module


def failed_forward(wrap, rank):
    model = wrap(Branches())
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(data(rank)[:, :2], "ab")
    with model.no_sync(), pytest.raises(RuntimeError):
        model(data(rank)[:, :2], "ab")
    model(data(rank, 1), "ab").backward()
    return model.module


class FailsOnce(torch.autograd.Function):
    fail = True

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        if FailsOnce.fail:
            raise MemoryError("half-way")
        return gradient


class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()

    def forward(self, x):
        return self.second(FailsOnce.apply(self.first(x))).square().sum()


def failed_backward(wrap, rank):
    """Half of the buckets are under way when it fails."""
    model = wrap(Failing(), bucket_cap_mb=0.00001)
    for quiet in (False, True):
        FailsOnce.fail = True
        with model.no_sync() if quiet else nullcontext(), pytest.raises(MemoryError):
            model(data(rank)).backward()
        FailsOnce.fail = False
        model.module.zero_grad()
        model(data(rank, 1)).backward()
    return model.module


FIND, STATIC = {"find_unused_parameters": True}, {"static_graph": True}

SEQUENCES = {
    "used earlier alone": lambda wrap, rank: used_earlier(wrap, rank, ["ab", "b"], quiet=[0]),
    "used earlier, again on one rank": lambda wrap, rank: used_earlier(wrap, rank, ["ab", ("a", "b")], quiet=[0]),
    "averaged earlier, unused since": lambda wrap, rank: used_earlier(wrap, rank, ["ab", "b", "b"]),
    "averaged earlier, again on one rank": lambda wrap, rank: used_earlier(wrap, rank, ["ab", ("b", "a"), "b"]),
    "used on one rank, in no_sync": lambda wrap, rank: used_earlier(wrap, rank, [("a", "b"), "b"], quiet=[0]),
    "averaged, then used in no_sync": lambda wrap, rank: used_earlier(wrap, rank, ["ab", ("a", "b"), "b"], quiet=[1]),
    "never used by one rank": lambda wrap, rank: used_earlier(wrap, rank, [("a", "b"), ("a", "b")]),
    "static, with micro-batches": lambda wrap, rank: used_earlier(
        wrap, rank, ["ab", "a", "a"], quiet=[0], options=STATIC
    ),
    "zeroed in place": zeroed_in_place,
    "thrown away": thrown_away,
    "means and local gradients": means_and_local,
    "two forwards, one backward": two_forwards,
    "a forward for nothing": forward_for_nothing,
    "evaluation between": evaluation_between,
    "a dataclass": lambda wrap, rank: one_of_two_results(wrap, rank, "dataclass"),
    "an object that holds itself": lambda wrap, rank: one_of_two_results(wrap, rank, "object"),
    "nothing returned": nothing_returned,
    "gradient penalty": lambda wrap, rank: gradient_penalty(wrap, rank, alone=False),
    "gradient penalty alone": lambda wrap, rank: gradient_penalty(wrap, rank, alone=True),
    "frozen for a while": frozen_for_a_while,
    "wrapped again": wrapped_again,
    "failed forward": failed_forward,
    "failed backward": failed_backward,
    "reentrant": lambda wrap, rank: checkpointed(wrap, rank, {}, reentrant=True),
    "reentrant, in the middle": lambda wrap, rank: checkpointed(wrap, rank, {}, reentrant=True, last=False),
    "reentrant, static": lambda wrap, rank: checkpointed(wrap, rank, STATIC, reentrant=True),
    "reentrant, changed in place": changed_in_place,
    "reentrant, found": lambda wrap, rank: checkpointed(wrap, rank, FIND, reentrant=True, last=False, spare=True),
    "not reentrant": lambda wrap, rank: checkpointed(wrap, rank, {}, reentrant=False, shared=True),
    "not reentrant, found": lambda wrap, rank: checkpointed(wrap, rank, FIND, reentrant=False, spare=True),
    "static, spare": lambda wrap, rank: checkpointed(wrap, rank, STATIC, reentrant=False, spare=True, last=False),
}  # fmt: skip
ONLY_DDP = {
    "reentrant, shared": lambda wrap, rank: checkpointed(
        wrap, rank, STATIC, reentrant=True, shared=True, spare=True
    )
}

# What PyTorch's own DDP refuses, or gets wrong.
NOT_IN_PYTORCH = {
    "two forwards, one backward",  # "marked as ready twice"
    "an object that holds itself",  # it does not look into objects
    "a dataclass",  # found, but not told which of its tensors the loss depends on: never averaged
    "reentrant, found",
    "thrown away",  # an internal error after zero_grad() in the middle
    "failed backward",
    "static, with micro-batches",
}


def every(name, sequences):
    """What each sequence leaves on this rank, in one launch; an error where it raises one."""
    left = {}
    for sequence in sequences:
        try:
            left[sequence] = gradients_of(
                (SEQUENCES | ONLY_DDP)[sequence](WRAPPERS[name], dist.get_rank())
            )
        except (RuntimeError, ValueError) as error:
            left[sequence] = f"{type(error).__name__}: {error}"
    return left


def mean_of_ranks(sequence, size):
    alone = [gradients_of((SEQUENCES | ONLY_DDP)[sequence](Plain, rank)) for rank in range(size)]
    means = {}
    for name in alone[0]:
        there = [g[name] for g in alone if g[name] is not None]
        means[name] = sum(there) / size if there else None
    return means


def put_together(each):
    """The owners' gradients; one on two ranks fails."""
    whole = {}
    for name in each[0]:
        there = [g[name] for g in each if g[name] is not None]
        assert len(there) <= 1, f"{name} has a gradient on {len(there)} ranks"
        whole[name] = there[0] if there else None
    return whole


@pytest.mark.parametrize(
    ("name", "size"), [("ddp", 2), ("ddp", 3), ("ddp, no views", 2), ("zero2", 2), ("zero2", 3)]
)
def test_sequences_of_calls_leave_the_mean_of_the_ranks(name, size):
    sequences = [*SEQUENCES, *(ONLY_DDP if "ddp" in name else {})]
    run = launch(every, size, name, sequences)
    for sequence in sequences:
        each, truth = [run[rank][sequence] for rank in range(size)], mean_of_ranks(sequence, size)
        failed = [left for left in each if isinstance(left, str)]
        assert not failed, f"{sequence}: {failed}"
        for got in [put_together(each)] if name == "zero2" else each:
            compare(got, truth, tolerance=1e-12, what=f"{sequence}: gradient")


def test_pytorchs_own_leaves_the_same_where_it_can():
    sequences = [s for s in SEQUENCES if s not in NOT_IN_PYTORCH]
    run = launch(every, 2, "torch", sequences)
    for sequence in sequences:
        assert not isinstance(run[1][sequence], str), f"{sequence}: {run[1][sequence]}"
        compare(
            run[1][sequence],
            mean_of_ranks(sequence, 2),
            tolerance=1e-12,
            what=f"{sequence}: gradient",
        )


# --- what they refuse -----------------------------------------------------------------------------------------------


def mistake(wrap, which):
    model = wrap(Branches(), **(STATIC if which.startswith("static") else {}))
    x = data(dist.get_rank())
    if which == "an earlier forward":
        first = model(x, "ab")
        with model.no_sync():
            second = model(x, "ab")
        second.backward()
        first.backward()
    if which == "around the wrapper":
        model(x, "ab").backward()
        model.module(x, "ab").backward()
    if which == "static, and then another in no_sync":
        model(x, "a").backward()
        with model.no_sync():
            model(x, "b").backward()
        model(x, "a").backward()
    if which == "several losses":
        (model(x, "a") + 0 * model(x, "a")).backward()
    if which == "sparse":
        model = wrap(nn.Embedding(5, 3, sparse=True))
        model(torch.tensor([1])).sum().backward()
    if which == "create_graph":
        model(x, "ab").backward(create_graph=True)
    if which == "two wrappers":
        other = Branches()
        other.a = model.module.a
        other = wrap(other)
        (model(x, "ab") + other(x, "ab")).backward()
    if which == "shared reentrant":
        model = wrap(Checkpointed(reentrant=True, shared=True))
        model(x).backward()
    if which == "unfrozen":
        module = Branches()
        module.b.requires_grad_(False)
        model = wrap(module)
        module.b.requires_grad_(True)
        model(x, "ab")
    if which == "assigned":
        state = {name: value.clone() for name, value in model.module.state_dict().items()}
        model.module.load_state_dict(state, assign=True)
        model(x, "ab")


def all_mistakes(name, kinds):
    """The error that each mistake raises on this rank, in one launch."""
    found = {}
    for which in kinds:
        try:
            mistake(WRAPPERS[name], which)
        except (ValueError, RuntimeError) as error:
            found[which] = f"{type(error).__name__}: {error}"
    return found


MISTAKES = {
    "several losses": "RuntimeError: this backward gave no gradient to b.weight.*add them and call backward once",
    "sparse": "ValueError: weight has a sparse gradient.*sparse=False",
    "create_graph": r"ValueError: \S+ has a gradient with a graph of its own.*use torch.autograd.grad",
    "shared reentrant": r"RuntimeError: inside.0.\S+ got .*use_reentrant=False",
    "two wrappers": "ValueError: a.weight has another wrapper already",
    "unfrozen": "ValueError: b.weight: frozen when the module was wrapped",
}
MISTAKES_WITH_DDP = {
    "an earlier forward": "RuntimeError: backward ran again for a forward .* one that came before another",
    "around the wrapper": "RuntimeError: backward ran again .*, or around the wrapper",
    "static, and then another in no_sync": r"RuntimeError: b.weight got a gradient inside no_sync\(\)",
    "assigned": "ValueError: a.weight, b.weight, both.weight: .*loaded with assign=True.*wrap the module again",
}
MISTAKES_WITH_ZERO2 = {"assigned": "ValueError: a.weight is not among the optimizer's parameters"}


@pytest.mark.parametrize(
    ("name", "mistakes"),
    [("ddp", MISTAKES | MISTAKES_WITH_DDP), ("zero2", MISTAKES | MISTAKES_WITH_ZERO2)],
)
def test_mistakes_are_explained_on_every_rank(name, mistakes):
    for found in launch(all_mistakes, 2, name, list(mistakes)):
        for which, message in mistakes.items():
            assert re.search(message, found.get(which, "no error")), f"{which}: {found.get(which)}"
