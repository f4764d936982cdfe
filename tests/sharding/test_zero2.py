"""ZeRO-2: gradients equal to one process, on their owner alone, sent while backward runs, in as many bytes as DDP."""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer as TorchZero
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from dtcourse import emulation, events, launch
from dtcourse.collectives import ring, traffic
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.emulation import EmulatedNetwork
from dtcourse.large_batch.clipping import clip_grad_norm
from dtcourse.parameters.clipping import grad_norm
from dtcourse.parameters.whole import full_gradients
from dtcourse.profiling.memory import held
from dtcourse.profiling.memory_tracker import MemoryTracker
from dtcourse.sharding import ShardedDataParallel, ZeroRedundancyOptimizer
from dtcourse.verify import CASES, NotEqual, compare, on_ranks, one_process
from dtcourse.verify.harness import LEARNING_RATE
from tests.turns import taking_turns

SAMPLES = 96  # 4 ranks times 8 micro-batches of 3


def sgd(model, **options):
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=LEARNING_RATE)
    return ShardedDataParallel(model, optimizer, **options)


class Accumulating(ShardedDataParallel):
    """Without no_sync: every micro-batch is reduced at once, as memory demands."""

    no_sync = property(doc="hidden from the harness")


def accumulating(model, **options):
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=LEARNING_RATE)
    return Accumulating(model, optimizer, **options)


WRAPPERS = {
    "no_sync": sgd,
    "tiny buckets": lambda m: sgd(m, bucket_cap_mb=0.0001),
    "accumulating": accumulating,
}


def train_all(combinations):
    return {
        (case, way, micro_batches): on_ranks(
            WRAPPERS[way], CASES[case], micro_batches=micro_batches, samples=SAMPLES,
            optimizer=lambda wrapped: wrapped.optimizer,
        )
        for case, way, micro_batches in combinations
    }  # fmt: skip


def one_owner_each(run, key, step):
    """The ranks' gradients put together; a gradient on two ranks, or on none, fails."""
    whole = {}
    for name in run[0][key].gradients[step]:
        have = [r for r in range(len(run)) if run[r][key].gradients[step][name] is not None]
        assert len(have) <= 1, f"{name} has gradients on ranks {have}"
        whole[name] = run[have[0]][key].gradients[step][name] if have else None
    return whole


@pytest.mark.parametrize("world_size", [1, 3, *taking_turns(2, 4, about="dtcourse/sharding/")])
def test_gradients_equal_one_process_on_the_whole_batch(world_size):
    combinations = [
        ("mlp", "tiny buckets", 1),
        ("tied", "tiny buckets", 1),
        ("frozen", "no_sync", 2),
        ("mlp", "no_sync", 8),
        ("tied", "accumulating", 2),
        ("mlp", "accumulating", 8),
    ]
    run = launch(train_all, world_size, combinations)
    for key in combinations:
        truth = one_process(CASES[key[0]], samples=SAMPLES)
        for step, expected in enumerate(truth.gradients):
            compare(one_owner_each(run, key, step), expected, what=f"{key}, step {step}: gradient")
        for rank in range(world_size):
            compare(run[rank][key].parameters, truth.parameters, what=f"{key}: parameter")


def test_unused_parameters_are_found_and_not_updated():
    def step():
        return on_ranks(
            lambda m: sgd(m, find_unused_parameters=True), CASES["unused"],
            optimizer=lambda wrapped: wrapped.optimizer,
        )  # fmt: skip

    run = [{"": steps} for steps in launch(step, 2)]
    truth = one_process(CASES["unused"])
    for step, expected in enumerate(truth.gradients):
        assert expected["forgotten.weight"] is None
        compare(one_owner_each(run, "", step), expected)


def test_a_parameter_used_on_one_rank_only_over_several_steps():
    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.always, self.sometimes = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            x = self.always(x)
            return self.sometimes(x) if dist.get_rank() == 1 else x

    def step():
        model = sgd(Sometimes(), find_unused_parameters=True)
        found = []
        for _ in range(3):
            model.optimizer.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            found.append(model.module.sometimes.bias.grad)
        return found

    run = launch(step, 2)
    for gradients in zip(*run, strict=True):
        (mean,) = [g for g in gradients if g is not None]
        assert torch.equal(mean, torch.ones(3))  # 2 samples on one rank, none on the other


def test_adamw_equals_pytorchs_ddp_with_its_zero():
    def train(ours):
        torch.manual_seed(0)
        case, model = CASES["mlp"], CASES["mlp"].build(0)
        make = {"optimizer_class": torch.optim.AdamW, "lr": 0.01, "eps": 1e-4}
        if ours:
            optimizer = ZeroRedundancyOptimizer(model.parameters(), **make)
            wrapped = ShardedDataParallel(model, optimizer)
        else:
            wrapped = TorchDDP(model)
            optimizer = TorchZero(model.parameters(), **make)
        for i in range(4):
            x, y = case.batch(8, 10 * dist.get_rank() + i)
            optimizer.zero_grad()
            case.loss(wrapped(x), y).backward()
            if ours:  # each rank has a part of the gradients, and all ranks clip by one norm
                norm = clip_grad_norm(sharded=model.parameters(), max_norm=0.05)
            else:
                norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
        return {"norm": norm} | {n: p.detach().clone() for n, p in model.named_parameters()}

    def both():
        return train(True), train(False)

    for mine, theirs in launch(both, 3):
        compare(mine, theirs, tolerance=2e-5, what="parameter")


class Mixed(nn.Module):
    """Two dtypes, and a buffer that every forward changes."""

    def __init__(self):
        super().__init__()
        self.low = nn.Linear(4, 5, dtype=torch.bfloat16)
        self.norm, self.high = nn.BatchNorm1d(5), nn.Linear(5, 1)

    def forward(self, x):
        return self.high(self.norm(self.low(x.bfloat16()).float()))


def test_ranks_of_a_group_that_is_not_all_stay_alike():
    """Ranks of a group are not ranks of the world; dtypes travel apart; buffers are the first rank's."""

    def step():
        rank = dist.get_rank()
        group = dist.new_group([1, 2])
        if rank == 0:
            return None
        torch.manual_seed(rank)
        model = Mixed()
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, group, lr=0.01)
        wrapped = ShardedDataParallel(model, optimizer, bucket_cap_mb=0.00001)
        for _ in range(3):
            optimizer.zero_grad()
            wrapped(torch.randn(6, 4)).square().mean().backward()
            before = model.norm.running_mean.clone()
            optimizer.step()
        wrapped(torch.zeros(2, 4))  # gives out the buffers once more, then changes them alike
        owners = sorted(set(optimizer.owner.values()))
        return (
            owners,
            [p.detach().clone() for p in model.parameters()],
            before,
            model.norm.num_batches_tracked.item(),
        )

    _, first, second = launch(step, 3)
    assert first[0] == second[0] == [0, 1]
    assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))
    assert not torch.equal(first[2], second[2]), "each rank's own batch"
    assert first[3] == second[3] == 4


def test_more_ranks_than_parameters():
    def step():
        torch.manual_seed(0)
        model = sgd(nn.Linear(3, 1, bias=False))
        model(torch.full((1, 3), dist.get_rank() + 1.0)).sum().backward()
        return model.module.weight.grad

    gradients = list(launch(step, 3))
    assert torch.equal(gradients[0], torch.full((1, 3), 2.0))
    assert gradients[1:] == [None, None]


def test_the_harness_sees_a_sum_where_the_mean_belongs():
    """Broken on purpose: a world size that is wrong in the scale alone."""

    def wrap(model):
        wrapped = sgd(model)
        wrapped.reducer.divide_by = 1
        return wrapped

    def step():
        return on_ranks(wrap, CASES["mlp"], steps=1, optimizer=lambda w: w.optimizer)

    run = [{"": steps} for steps in launch(step, 2)]
    with pytest.raises(NotEqual, match="2 times too large"):
        compare(one_owner_each(run, "", 0), one_process(CASES["mlp"]).gradients[0])


# --- traffic, memory, order --------------------------------------------------------------------------------------


def count_a_step(way, micro_batches, syncs):
    case, rank, size = CASES["mlp"], dist.get_rank(), dist.get_world_size()
    model = case.build(0)
    if way == "ddp":
        wrapped = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
    else:
        wrapped = sgd(model, bucket_cap_mb=0.0002)
        optimizer = wrapped.optimizer

    def step(i):
        optimizer.zero_grad()
        x, y = (t.chunk(size)[rank].chunk(micro_batches) for t in case.batch(SAMPLES, i))
        for part in range(micro_batches):
            wrapped.require_backward_grad_sync = syncs or part == micro_batches - 1
            (case.loss(wrapped(x[part]), y[part]) / micro_batches).backward()
        optimizer.step()

    for i in range(2):
        step(i)  # after the first, the buckets are planned again
    with traffic.counting() as counted:
        step(2)
    own = 0 if way == "ddp" else sum(p.numel() for p in optimizer.owned())
    return {
        op: counted.bytes_sent(operation=op) for op in ("all_reduce", "reduce", "broadcast")
    }, own


@pytest.mark.parametrize("world_size", [3, *taking_turns(2, about="dtcourse/sharding/")])
def test_traffic_is_ddps_to_the_byte(world_size):
    n = sum(p.numel() for p in CASES["mlp"].build(0).parameters())
    sharded = launch(count_a_step, world_size, "zero", 1, True, backend="ring")
    own = [elements for _, elements in sharded]
    assert sum(own) == n
    for rank, (sent, _) in enumerate(sharded):
        assert sent == {
            "all_reduce": 0,
            "reduce": 4 * (n - own[rank]),
            "broadcast": 4 * (n - own[(rank + 1) % world_size]),
        }
    ddp = launch(count_a_step, world_size, "ddp", 1, True, backend="ring")
    total = sum(sum(sent.values()) for sent, _ in sharded)
    assert total == sum(sum(sent.values()) for sent, _ in ddp) == 4 * 2 * (world_size - 1) * n
    each = ring.all_reduce_volume(n, world_size, 0).elements
    assert ddp[0][0]["all_reduce"] == 4 * each


def test_what_micro_batches_cost():
    """Reduced at once: a reduction each. Inside no_sync: one for all."""
    n = sum(p.numel() for p in CASES["mlp"].build(0).parameters())
    for syncs, reductions in ((True, 4), (False, 1)):
        run = launch(count_a_step, 2, "zero", 4, syncs, backend="ring")
        assert sum(sent["reduce"] for sent, _ in run) == reductions * 4 * n
        assert sum(sent["broadcast"] for sent, _ in run) == 4 * n


class Deep(nn.Module):
    """16 layers, of 16 KiB where they are 64 wide; activations are small beside them."""

    def __init__(self, width=64):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(16))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


LAYER = 64 * 64 * 4


def memory_of(way):
    """Bytes held after two AdamW steps, by category, and the peak above parameters and states in a backward after them.

    The lowest of five: a thread of gloo's holds on to a bucket for a moment after it has said that it is done, and on a
    busy machine that moment is longer than a layer's backward.
    """
    model = Deep()
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    wrapped = model
    if way == "ddp":
        wrapped = DistributedDataParallel(model, bucket_cap_mb=LAYER / 2**20)
    if way == "zero2":
        wrapped = ShardedDataParallel(model, zero, bucket_cap_mb=LAYER / 2**20)
    peaks = []
    for step in range(7):
        zero.zero_grad()
        with MemoryTracker(model, zero) as tracker:
            wrapped(torch.ones(1, 64)).sum().backward()
        now = held(model, zero)
        if step < 2:
            zero.step()
            continue
        curve = tracker.history.curve()
        total = sum(curve.values()) - curve["parameters"] - curve["optimizer states"]
        peaks.append(int(total.max()))
    own = [sum(p.nbytes for p in zero.owned(r)) for r in range(zero.world_size)]
    tensors = len(zero.owned())
    return now, own[dist.get_rank()], tensors, min(peaks)


@pytest.mark.parametrize("world_size", [3, *taking_turns(2, about="dtcourse/sharding/")])
def test_live_bytes_are_the_formula_and_gradients_are_freed_on_the_way(world_size):
    n = 16 * LAYER
    for way in ("ddp", "zero2"):
        for now, own, tensors, peak in launch(memory_of, world_size, way):
            assert own == LAYER * tensors, "16 layers, uneven on 3 ranks"
            assert now["parameters"] == n
            assert now["gradients"] == (n if way == "ddp" else own)
            assert now["optimizer states"] == 2 * own + 4 * tensors  # 4 bytes: Adam's step count
            small = 20 * 64 * 4  # activations and their gradients
            one_gradient = LAYER
            assert peak >= now["gradients"]
            if way == "zero2":
                assert peak <= own + 3 * LAYER + one_gradient + small < n


def test_reductions_start_before_backward_ends():
    class Marked(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            with events.span("layer", "compute"):
                return gradient.clone()

    class Marking(Deep):
        def forward(self, x):
            for layer in self.layers:
                x = layer(Marked.apply(x))
            return x

    def step():
        model = sgd(Marking(), bucket_cap_mb=LAYER / 2**20)
        for _ in range(2):
            model(torch.ones(1, 64, requires_grad=True)).sum().backward()

    run = launch(step, 2, record=True)
    for rank in range(2):
        layers = [e for e in run.timeline.of(rank=rank) if e.name == "layer"][-16:]
        reductions = [
            e for e in run.timeline.of(rank=rank, kind="communication")
            if "reduce" in e.name and layers[0].start < e.start < layers[-1].end
        ]  # fmt: skip
        assert len(reductions) >= 13  # of 16; the last layers' own may come after the last mark
        freed = run.timeline.of(rank=rank, name="free gradients").events[-8:]
        assert freed[0].start < layers[-1].start, "freed on the way, not at the end"


def seconds_of_a_step():
    """Of backward, and of what follows it, where a port is all that counts."""
    model = Deep(width=256)
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    wrapped = ShardedDataParallel(model, zero, bucket_cap_mb=4 * 4 * 256**2 / 2**20)
    for _ in range(2):
        start = emulation.now()
        wrapped(torch.ones(1, 256)).sum().backward()
        between = emulation.now()
        zero.step()
    return between - start, emulation.now() - between


@pytest.mark.parametrize("world_size", [4, *taking_turns(2, about="dtcourse/sharding/")])
def test_each_pass_takes_as_long_as_its_bytes_at_one_port(world_size):
    """Not p - 1 times as long, which is what hops in turn take: a root's chain is cut into pieces."""
    bandwidth = 1e6
    network = EmulatedNetwork(bandwidth=bandwidth)
    run = launch(seconds_of_a_step, world_size, network=network, clock="virtual", backend="ring")
    once = 16 * 4 * 256**2 / bandwidth
    for passes in run:
        for seconds in passes:
            assert once * (world_size - 1) / world_size <= seconds <= 1.25 * once


# --- norms -------------------------------------------------------------------------------------------------------


def norm_of_micro_batches():
    """Two micro-batches, the first inside no_sync(): norm and whole gradients, the norm after the step, and after
    the next backward."""
    wrapped = sgd(CASES["mlp"].build(0))
    halves, found = [CASES["mlp"].batch(4, seed) for seed in (0, 1)], []
    for _ in range(2):
        wrapped.optimizer.zero_grad()
        x, y = halves[0]
        with wrapped.no_sync():
            (CASES["mlp"].loss(wrapped(x), y) / 2).backward()
        x, y = halves[1]
        (CASES["mlp"].loss(wrapped(x), y) / 2).backward()
        found += [grad_norm(wrapped).item(), full_gradients(wrapped)]
        wrapped.optimizer.step()
        found.append(grad_norm(wrapped).item())
    return found


def test_norms_after_no_sync_are_of_the_sum_and_stay_after_the_step():
    case, model, right = CASES["mlp"], CASES["mlp"].build(0), []
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for _ in range(2):
        optimizer.zero_grad()
        for seed in (0, 1):
            x, y = case.batch(4, seed)
            (case.loss(model(x), y) / 2).backward()
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()
        right += [norm, {n: p.grad.clone() for n, p in model.named_parameters()}, norm]
        optimizer.step()
    for found in launch(norm_of_micro_batches, 3):
        for mine, theirs in zip(found, right, strict=True):
            if isinstance(mine, dict):
                compare(mine, theirs)
            else:
                assert mine == pytest.approx(theirs, rel=1e-5)


# --- mistakes ----------------------------------------------------------------------------------------------------


def mistake(which):
    model = nn.Sequential(
        nn.Linear(3, 3), nn.Linear(3, 2 + (which == "models" and dist.get_rank()))
    )
    parameters = model[0].parameters() if which == "left out" else model.parameters()
    if which == "plain":
        ShardedDataParallel(model, torch.optim.Adam(parameters))
    wrapped = ShardedDataParallel(model, ZeroRedundancyOptimizer(parameters, torch.optim.Adam))
    if which == "replaced":
        model[1] = nn.Linear(3, 2)
        wrapped(torch.ones(1, 3))
    if which == "unused":
        model[0](torch.ones(1, 3)).sum().backward()
    if which == "not averaged":
        with wrapped.no_sync():
            wrapped(torch.ones(1, 3)).sum().backward()
        grad_norm(wrapped)
    if which == "sparse":
        model = nn.ModuleDict({"embed": nn.Embedding(5, 3, sparse=True)})
        wrapped = sgd(model)
        model["embed"](torch.tensor([1])).sum().backward()


def all_mistakes(mistake, kinds):
    """The error that each mistake raises on this rank, in one launch."""
    found = {}
    for which in kinds:
        try:
            mistake(which)
        except (ValueError, RuntimeError) as error:
            found[which] = str(error)
    return found


MISTAKES = {
    "plain": r"Adam keeps the states of all parameters on every rank: build the optimizer as Zero",
    "left out": r"1.weight is not among the optimizer's parameters",
    "replaced": r"1.weight is not among .* build the optimizer and the wrapper again",
    "models": r"rank 0 has parameter 2 of group 0 \[2, 3\] float32, rank 1 has .* \[3, 3\] float32",
    "unused": r"no gradient to 1.weight, 1.bias.*find_unused_parameters",
    "not averaged": r"gradients are this rank's own since no_sync\(\).*run the last backward of the step outside it",
    "sparse": r"embed.weight has a sparse gradient.*sparse=False",
}


def test_mistakes_are_explained_on_every_rank():
    for found in launch(all_mistakes, 2, mistake, list(MISTAKES)):
        for which, message in MISTAKES.items():
            assert re.search(message, found[which]), which


def test_a_backward_that_fails_half_way_leaves_nothing_behind():
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(context, x, broken):
            context.broken = broken
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            if context.broken:
                raise MemoryError("half-way")
            return gradient, None

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.broken = nn.Linear(3, 3), nn.Linear(3, 3), True

        def forward(self, x):
            return self.second(Fails.apply(self.first(x), self.broken))

    def step():
        torch.manual_seed(0)
        model = sgd(Model())
        with pytest.raises(MemoryError):
            model(torch.ones(1, 3)).sum().backward()
        model.module.broken = False
        model(torch.ones(1, 3)).sum().backward()
        return [None if p.grad is None else p.grad.clone() for p in model.parameters()]

    torch.manual_seed(0)
    plain = Model()
    plain.broken = False
    plain(torch.ones(1, 3)).sum().backward()
    run = launch(step, 2)
    for a, b, truth in zip(*run, plain.parameters(), strict=True):
        assert torch.allclose(a if a is not None else b, truth.grad)
