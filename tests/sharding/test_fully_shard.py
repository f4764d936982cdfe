"""Full sharding by hand, in both layouts: equal to one process and to PyTorch's, parameter by
parameter, however it is used."""

from __future__ import annotations

import copy
import time
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as TorchFullyShardedDataParallel
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from dtcourse import emulation, launch
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork
from dtcourse.large_batch import LAMB, LARS
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.profiling.memory import local
from dtcourse.sharding import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    full_gradients,
    full_state_dict,
    fully_shard,
)
from dtcourse.verify import CASES, NotEqual, compare, on_ranks, one_process
from tests.turns import taking_turns

# Each value of each parameter is tried every time, their other combinations by turns (tests/turns.py).
pytestmark = pytest.mark.each_once("dtcourse/sharding/")


def one_unit(shard, model, **options):
    return shard(model, **options)


def each_layer(shard, model, **options):
    """A unit a layer, as PyTorch's users do; the embedding of "tied" and its output layer stay with the root."""
    for layer in model.children():
        if not isinstance(layer, nn.Embedding) and getattr(layer, "bias", None) is not None:
            shard(layer, **options)
    return shard(model, **options)


WRAPPERS = {
    "one unit": one_unit,
    "a unit a layer": each_layer,
    "kept from forward to backward": lambda shard, m: each_layer(
        shard, m, reshard_after_forward=False
    ),
    "root kept": lambda shard, m: each_layer(shard, m, reshard_after_forward=None),
    "offloaded": lambda shard, m: each_layer(shard, m, offload_policy=CPUOffloadPolicy()),
}


def as_torch(model):
    """PyTorch's own on the same units; it takes each rank's values as they are, so rank 0's are sent round first."""
    as_on_rank_0(model)
    return each_layer(torch_fully_shard, model)


def as_on_rank_0(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)


def torch_gradients(model):
    return {
        n: None if p.grad is None else p.grad.full_tensor() for n, p in model.named_parameters()
    }


def as_torch_flat(model):
    """The same with PyTorch's other class, which puts modules around modules."""
    as_on_rank_0(model)
    for name, layer in model.named_children():
        if not isinstance(layer, nn.Embedding) and getattr(layer, "bias", None) is not None:
            setattr(model, name, torch_flat(layer))
    return torch_flat(model)


def torch_flat(module):
    return TorchFullyShardedDataParallel(
        module, use_orig_params=True, device_id=torch.device("cpu")
    )


def torch_flat_gradients(model):
    """A flat has one gradient: it is zero where a parameter has none."""
    with TorchFullyShardedDataParallel.summon_full_params(model, with_grads=True):
        return {
            n.replace("_fsdp_wrapped_module.", ""): p.grad.clone()
            if p.grad is not None and p.grad.any()
            else None
            for n, p in model.named_parameters()
        }


PYTORCHS = {
    fully_shard: (as_torch, torch_gradients),
    FullyShardedDataParallel: (as_torch_flat, torch_flat_gradients),
}


def train_all(shard, as_theirs, read_theirs, steps=2):
    """Every wrapper on every case, and PyTorch's, in one launch: a launch a combination would take a minute."""
    out = {}
    # Where units are kept and where shards live does not depend on the number of ranks: all of it on 2 is enough.
    names = WRAPPERS if dist.get_world_size() == 2 else ["one unit", "a unit a layer"]
    for case in CASES:
        for name, wrap in ((n, WRAPPERS[n]) for n in names):
            for micro_batches in (1, 2, 8) if name == "a unit a layer" else (1,):
                samples = 96 if micro_batches == 8 else 24
                out[case, name, samples, micro_batches] = on_ranks(
                    partial(wrap, shard),
                    CASES[case],
                    steps,
                    micro_batches,
                    samples,
                    read=full_gradients,
                ).gradients
        out[case, "PyTorch's", 24, 2] = on_ranks(
            as_theirs, CASES[case], steps, 2, read=read_theirs
        ).gradients
    return out


@pytest.mark.parametrize("world_size", [1, 2, 3, *taking_turns(4, about="dtcourse/sharding/")])
def test_gradients_equal_one_process_and_pytorchs(shard, world_size):
    run = launch(train_all, world_size, shard, *PYTORCHS[shard])
    truth = {(c, n): one_process(CASES[c], 2, n).gradients for c in CASES for n in (24, 96)}
    for (case, name, samples, micro_batches), steps in run[0].items():
        for step, (got, expected) in enumerate(zip(steps, truth[case, samples], strict=True)):
            what = f"{case}, {name}, {micro_batches} micro-batches, step {step}: gradient"
            compare(got, expected, what=what)
            last = run[world_size - 1][case, name, samples, micro_batches][step]
            compare(last, got, tolerance=0.0, what=f"on the last rank, {what}")


def test_the_harness_sees_a_scale_error(shard):
    def summed(model):
        for p in model.parameters():
            p.grad.mul_(dist.get_world_size())

    def step():
        return on_ranks(
            partial(each_layer, shard), CASES["mlp"], 1, after_backward=summed, read=full_gradients
        )

    with pytest.raises(NotEqual, match="2 times too large"):
        compare(launch(step, 2)[0].gradients[0], one_process(CASES["mlp"], 1).gradients[0])


# --- the same model, trained in one process and on ranks, in one launch ------------------------------------------


def trained(model, optimizer_of, steps=3, clip=None, amount=8, rank=0, size=1):
    """Full-precision training on random vectors; returns losses and norms."""
    optimizer = optimizer_of(model)
    seen = []
    for step in range(steps):
        x, y = CASES["mlp"].batch(amount, step)
        x, y = x.chunk(size)[rank], y.chunk(size)[rank]
        optimizer.zero_grad()
        CASES["mlp"].loss(model(x), y).backward()
        if clip is not None:
            clipper = getattr(model, "clip_grad_norm_", None)
            norm = (
                clipper(*clip)
                if clipper
                else torch.nn.utils.clip_grad_norm_(model.parameters(), *clip)
            )
            seen.append(float(norm.full_tensor() if isinstance(norm, DTensor) else norm))
        optimizer.step()
    return seen


def two_groups(kind, **options):
    def make(model):
        weights = [p for n, p in model.named_parameters() if n.endswith("weight")]
        biases = [p for n, p in model.named_parameters() if n.endswith("bias")]
        return kind([{"params": weights, "weight_decay": 0.1}, {"params": biases}], **options)

    return make


OPTIMIZERS = {
    "SGD, momentum": two_groups(torch.optim.SGD, lr=0.1, momentum=0.9),
    "AdamW": two_groups(torch.optim.AdamW, lr=0.01),
    "AdamW, foreach": two_groups(torch.optim.AdamW, lr=0.01, foreach=True),
    "AdamW, fused": two_groups(torch.optim.AdamW, lr=0.01, fused=True),
    "Adagrad": two_groups(torch.optim.Adagrad, lr=0.1),
}


CLIPS = ((0.05,), None, (0.05, float("inf")), (1e9, 1.0))


def test_any_elementwise_optimizer_and_clipping_as_in_one_process(shard):
    def step():
        out = {}
        for name, optimizer_of in OPTIMIZERS.items():
            for clip in CLIPS if name == "AdamW" else CLIPS[:1]:
                model = each_layer(shard, CASES["mlp"].build(0))
                rank, size = dist.get_rank(), dist.get_world_size()
                norms = trained(model, optimizer_of, clip=clip, rank=rank, size=size, amount=12)
                out[name, clip] = norms, full_state_dict(model)
        return out

    for (name, clip), (norms, state) in launch(step, 3)[1].items():
        model = CASES["mlp"].build(0)
        expected = trained(model, OPTIMIZERS[name], clip=clip, amount=12)
        assert norms == pytest.approx(expected, rel=1e-4), (name, clip)
        compare(state, model.state_dict(), tolerance=1e-4, what=f"{name}, clipped {clip}: value")


class Twice(nn.Module):
    """One layer applied twice, a result in a dict, a second input."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.out = nn.Linear(6, 6), nn.Linear(6, 3)
        self.norm = nn.BatchNorm1d(6)
        self.norm.running_mean.fill_(dist.get_rank() if dist.is_initialized() else 0)

    def forward(self, x, scale=None):
        x = self.norm(torch.tanh(self.layer(torch.tanh(self.layer(x)))))
        return {"logits": [self.out(x if scale is None else x * scale)]}


def used_oddly(model):
    """Gradients of: two forwards and one backward; forwards and backwards crossed; evaluation in between."""
    x, _ = CASES["mlp"].batch(8, 0)
    first, second = model(x)["logits"][0], model(2 * x, scale=torch.tensor(0.5))["logits"][0]
    (first * second).sum().backward()
    first, second = model(x)["logits"][0], model(3 * x)["logits"][0]
    with torch.no_grad():
        evaluated = model(x)["logits"][0]
    first.square().sum().backward()
    second.square().sum().backward()
    return evaluated


def test_used_in_odd_orders(shard):
    def step(keep):
        model = each_layer(shard, Twice(), reshard_after_forward=not keep)
        evaluated = used_oddly(model)
        return full_gradients(model), evaluated, model.norm.running_mean.clone()

    plain = Twice()
    evaluated = used_oddly(plain)
    expected = {n: p.grad for n, p in plain.named_parameters()}
    for keep in (False, True):
        gradients, result, mean = launch(step, 2, keep)[1]
        compare(gradients, expected)
        assert torch.allclose(result, evaluated, atol=1e-5)
        assert torch.allclose(mean, plain.norm.running_mean), "the first rank's buffers count"


def test_values_are_fresh_after_a_step_although_kept(shard):
    """A forward without a backward must not leave parameters behind that the next step's forward would take."""

    def step():
        model = each_layer(shard, CASES["mlp"].build(0), reshard_after_forward=False)
        updated = list(model.parameters())
        x, _ = CASES["mlp"].batch(4, 0)
        model(x)  # gathered, and kept for a backward that does not come
        with torch.no_grad():
            for p in updated:
                p.zero_()
        return model(x).abs().max().item()

    assert launch(step, 2)[0] == 0.0


@pytest.mark.parametrize("keep", [False, None])
def test_between_forward_and_backward_the_model_shows_its_shards_although_kept(shard, keep):
    """zero_grad() must reach the gradients that count, and an optimizer the parameters that it is to update."""

    def step():
        wrap = one_unit if keep is None else each_layer  # None keeps the outermost unit
        model = wrap(shard, CASES["mlp"].build(0), reshard_after_forward=keep)
        x, y = CASES["mlp"].batch(8, 0)
        before = list(model.parameters())
        CASES["mlp"].loss(model(5 * x), y).backward()
        loss = CASES["mlp"].loss(model(x), y)
        shown = all(a is b for a, b in zip(before, model.parameters(), strict=True))
        model.zero_grad()
        loss.backward()
        return shown, full_gradients(model)

    plain = CASES["mlp"].build(0)
    x, y = CASES["mlp"].batch(8, 0)
    CASES["mlp"].loss(plain(x), y).backward()
    shown, gradients = launch(step, 2)[1]
    compare(gradients, {n: p.grad for n, p in plain.named_parameters()})
    assert shown


def test_gradients_of_the_inputs_alone(shard):
    """torch.autograd.grad, as for a saliency map; the parameters' gradients stay as they were."""

    def inputs_gradient(model):
        x = CASES["mlp"].batch(8, 0)[0].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).square().sum(), x)
        model(gradient).sum().backward()
        return gradient

    def step():
        model = each_layer(shard, CASES["mlp"].build(0))
        return inputs_gradient(model), full_gradients(model)

    plain = CASES["mlp"].build(0)
    expected = inputs_gradient(plain)
    found, gradients = launch(step, 2)[0]
    compare({"x": found}, {"x": expected})
    compare(gradients, {n: p.grad for n, p in plain.named_parameters()})


class Recomputed(nn.Module):
    """Blocks whose activations are computed again in backward; one checkpoint holds two units."""

    def __init__(self, reentrant, plain=False):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4))
        self.out = nn.Linear(6, 3)
        self.reentrant, self.plain = reentrant, plain

    def run(self, function, x):
        if self.plain:
            return function(x)
        return checkpoint(function, x, use_reentrant=self.reentrant)

    def forward(self, x):
        x = self.run(self.blocks[0], x.requires_grad_())
        x = self.run(self.blocks[1], x)
        x = self.run(lambda x: self.blocks[3](self.blocks[2](x)), x)
        return self.out(x)


@pytest.mark.parametrize("reentrant", [False, True])
def test_with_activation_checkpointing(shard, reentrant):
    def step():
        model = Recomputed(reentrant)
        for block in model.blocks:
            shard(block)
        shard(model)
        for i in range(2):
            model.zero_grad()
            x, y = CASES["mlp"].batch(8, i)
            CASES["mlp"].loss(model(x), y).backward()
        return full_gradients(model), [unit.state for unit in units_of(model)]

    plain = Recomputed(reentrant, plain=True)
    x, y = CASES["mlp"].batch(8, 1)
    CASES["mlp"].loss(plain(x), y).backward()
    gradients, states = launch(step, 2)[1]
    compare(gradients, {n: p.grad for n, p in plain.named_parameters()})
    assert set(states) == {"sharded"}


class Reentrant(nn.Module):
    """Reentrant checkpoints: of all blocks, of one in the middle, of the last. The root's own layers lie before them.

    Backward of a checkpoint is a backward of its own inside the outer one, whose end is not the outer one's.
    """

    def __init__(self, which, inside, plain=False):
        super().__init__()
        torch.manual_seed(0)
        self.which, self.plain = which, plain
        self.scale = nn.Parameter(torch.rand(6))
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.first.weight.requires_grad_(False)  # needed to reach scale, after all checkpoints
        self.blocks = nn.ModuleList(Checkpoints(inside and not plain) for _ in range(3))

    def forward(self, x):
        x = torch.tanh(self.second(torch.tanh(self.first(x * self.scale))))
        for i, block in enumerate(self.blocks):
            again = i in self.which and not self.plain
            x = checkpoint(block, x, use_reentrant=True) if again else block(x)
        return x


class Checkpoints(nn.Module):
    """A block that checkpoints within itself, where asked."""

    def __init__(self, inside):
        super().__init__()
        self.a, self.b, self.inside = nn.Linear(6, 6), nn.Linear(6, 6), inside

    def run(self, x):
        return x + self.b(torch.tanh(self.a(x)))

    def forward(self, x):
        return checkpoint(self.run, x, use_reentrant=True) if self.inside else self.run(x)


@pytest.mark.parametrize("root", [True, False])
def test_reentrant_checkpoints_first_in_the_middle_and_last(shard, root):
    places = {
        (which, inside): None
        for which in ((), (0,), (1,), (2,), (0, 1, 2))
        for inside in (False, True)
    }

    def train(model):
        for i in range(2):
            model.zero_grad()
            model(CASES["mlp"].batch(8, i)[0]).square().sum().backward()

    def step():
        found = {}
        for which, inside in places:
            model = Reentrant(which, inside)
            for block in model.blocks:
                shard(block)
            if root:
                shard(model)
            train(model)
            states = {unit.state for unit in units_of(model)}
            found[which, inside] = full_gradients(model), states
        return found

    plain = Reentrant((), False, plain=True)
    train(plain)
    for place, (gradients, states) in launch(step, 2)[1].items():
        expected = {n: p.grad for n, p in plain.named_parameters()}
        compare(gradients, expected, what=f"checkpoints {place}: gradient")
        assert states == {"sharded"}, place


class RecomputedInPart(nn.Module):
    """One unit, of which one layer always runs in a reentrant checkpoint,
    another under the checkpoint that is asked for."""

    def __init__(self, first, plain=False):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.first, self.plain = first, plain

    def forward(self, x):
        if self.plain:
            return torch.tanh(self.b(torch.tanh(self.a(x))))
        x = x.requires_grad_()
        x = (
            checkpoint(self.a, x, use_reentrant=True)
            if self.first == "reentrant"
            else (
                checkpoint(self.a, x, use_reentrant=False)
                if self.first == "not reentrant"
                else self.a(x)
            )
        )
        return torch.tanh(checkpoint(self.b, torch.tanh(x), use_reentrant=True))


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("first", ["reentrant", "not reentrant", "no checkpoint"])
def test_two_forwards_one_backward_and_reentrant_checkpoints(shard, first, apart):
    """A parameter's gradient comes once for each forward then, so having come says nothing of being the last."""

    def train(model):
        outputs = [model(CASES["mlp"].batch(8, i)[0]) for i in range(2)]
        if apart:
            (outputs[0].sum() + outputs[1].square().sum()).backward()
        else:  # backward comes to both forwards' ends before it goes on
            (outputs[0] * outputs[1]).sum().backward()

    def step():
        model = shard(RecomputedInPart(first))
        train(model)
        return full_gradients(model), [unit.state for unit in units_of(model)]

    plain = RecomputedInPart(first, plain=True)
    train(plain)
    for gradients, states in launch(step, 2):
        compare(gradients, {n: p.grad for n, p in plain.named_parameters()})
        assert states == ["sharded"]


def units_of(model):
    return [m._fsdp for m in model.modules() if hasattr(m, "_fsdp")]


def test_mixed_precision_is_pytorchs(shard):
    def step():
        seen = {}

        def look(module, args):
            seen.setdefault("weight", module.weight.dtype)
            seen.setdefault("input", args[0].dtype)

        inner = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, output_dtype=torch.float32)
        results = []
        for one in (shard, torch_fully_shard):
            model = CASES["mlp"].build(0)
            for layer in (model[0], model[2]):
                one(layer, mp_policy=inner)
            one(model, mp_policy=policy)
            if one is shard:
                model[4].register_forward_pre_hook(look)
            x, y = CASES["mlp"].batch(8, dist.get_rank())
            output = model(x)
            CASES["mlp"].loss(output, y).backward()
            read = full_gradients if one is shard else torch_gradients
            results.append((read(model), output.detach()))
            if one is shard:
                seen["kept"] = {p.dtype for p in model.parameters()}
                seen["gradient"] = {p.grad.dtype for p in model.parameters()}
        return results, seen

    (mine, theirs), seen = launch(step, 2)[0]
    compare(mine[0], theirs[0], tolerance=1e-6)
    assert torch.equal(mine[1], theirs[1]) and mine[1].dtype == torch.float32
    assert seen == {
        "weight": torch.bfloat16, "input": torch.bfloat16,
        "kept": {torch.float32}, "gradient": {torch.float32},
    }  # fmt: skip


def test_hybrid_sharding_over_two_axes(shard):
    def step(shape):
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
        steps = on_ranks(
            lambda m: each_layer(shard, m, mesh=mesh), CASES["mlp"], 2, 2, read=full_gradients
        )
        model = each_layer(shard, CASES["mlp"].build(0), mesh=mesh)
        norms = trained(model, lambda m: torch.optim.SGD(m.parameters(), 0.1), clip=(0.1,), amount=8,
                        rank=dist.get_rank(), size=dist.get_world_size())  # fmt: skip
        held = sum(local(p).numel() for p in model.parameters())
        return steps.gradients, norms, held, full_state_dict(model)

    truth = one_process(CASES["mlp"], 2).gradients
    plain = CASES["mlp"].build(0)
    norms = trained(plain, lambda m: torch.optim.SGD(m.parameters(), 0.1), clip=(0.1,))
    for shape in ((2, 2), (1, 2), (2, 1)):
        run = launch(step, shape[0] * shape[1], shape)
        for gradients, clipped, _, state in run:
            for got, expected in zip(gradients, truth, strict=True):
                compare(got, expected, what=f"mesh {shape}: gradient")
            assert clipped == pytest.approx(norms, rel=1e-4)
            compare(state, plain.state_dict(), tolerance=1e-4)
        whole = sum(p.numel() for p in plain.parameters())
        assert sum(r[2] for r in run) == whole * shape[0], "each part is held once a replica"


def test_offload_keeps_shards_gradients_and_states_on_the_host(shard):
    def step():
        model = each_layer(shard, CASES["mlp"].build(0), offload_policy=CPUOffloadPolicy())
        optimizer = torch.optim.AdamW(model.parameters())
        trained(model, lambda m: optimizer, 1)
        tensors = [t for s in optimizer.state.values() for t in s.values()]
        tensors += list(model.parameters()) + [p.grad for p in model.parameters()]
        return {t.device.type for t in tensors}

    assert launch(step, 2)[0] == {"cpu"}


def test_a_model_without_memory_is_filled_unit_by_unit(shard):
    def step():
        with torch.device("meta"):
            model = CASES["mlp"].build(0)
        torch.manual_seed(dist.get_rank())
        each_layer(shard, model)
        held = sum(local(p).numel() for p in model.parameters())
        x, y = CASES["mlp"].batch(4, 0)
        CASES["mlp"].loss(model(x), y).backward()
        return full_state_dict(model), held

    run = launch(step, 3)
    plain = CASES["mlp"].build(0)
    torch.manual_seed(0)
    for layer in (plain[0], plain[2], plain[4]):
        layer.reset_parameters()
    compare(run[2][0], plain.state_dict(), tolerance=0.0)
    assert sum(r[1] for r in run) == sum(p.numel() for p in plain.parameters())


def test_dtypes_and_frozen_parameters_mixed_in_one_unit(shard):
    shape = (1,) if shard is fully_shard else ()

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = nn.Linear(3, 5), nn.Linear(5, 2, dtype=torch.float64)
            self.scale = nn.Parameter(torch.tensor(2.0).view(shape))  # a scalar has no rows to cut
            self.nothing = nn.Parameter(torch.empty(0, 4))
            self.a.bias.requires_grad_(False)

        def forward(self, x):
            return self.b((self.a(x) * self.scale).double()) + self.nothing.sum()

    def step():
        model = shard(Mixed())
        model(torch.ones(2, 3)).sum().backward()
        return (
            full_gradients(model),
            len(model._fsdp.param_groups),
            model.training,
            isinstance(model, Mixed),
        )

    plain = Mixed()
    plain(torch.ones(2, 3)).sum().backward()
    gradients, groups, *_, same_class = launch(step, 3)[2]
    assert same_class
    # float32 and float64 are gathered apart; flats need one requires_grad each, too
    assert groups == (2 if shard is fully_shard else 3)
    expected = {n: p.grad for n, p in plain.named_parameters()}
    compare(gradients, expected)


def test_a_frozen_first_layer_is_there_until_backward_has_passed_it(shard):
    """It has no gradient of its own; backward needs its values last, to reach what lies before it."""

    class Adapter(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.base, self.adapter = nn.Linear(4, 4), nn.Linear(4, 4)
            self.base.requires_grad_(False)

        def forward(self, x):
            return self.adapter(self.base(x))

    def build():
        return nn.Sequential(nn.Linear(3, 4), Adapter(), Adapter(), nn.Linear(4, 1))

    def step():
        model = build()
        for part in model:
            shard(part)
        shard(model)
        model(torch.ones(2, 3)).sum().backward()
        return full_gradients(model)

    def seeded():
        torch.manual_seed(5)
        return step()

    torch.manual_seed(5)
    plain = build()
    plain(torch.ones(2, 3)).sum().backward()
    compare(launch(seeded, 2)[1], {n: p.grad for n, p in plain.named_parameters()})


def test_a_transformer_with_a_tied_head_and_units_inside_units(shard):
    config = TransformerConfig(vocab=13, d_model=12, n_layers=2, n_heads=3, max_length=8)

    def build():
        torch.manual_seed(0)
        return Transformer(config)

    def step():
        model = build()
        for block in model.blocks:
            shard(block.mlp)
            shard(block)
        shard(model)
        for _ in range(2):
            model.zero_grad()
            model(tokens()).float().square().mean().backward()
        return full_gradients(model), full_state_dict(model)

    def tokens():
        return torch.arange(16).view(2, 8) % 13

    plain = build()
    plain(tokens()).square().mean().backward()
    gradients, state = launch(step, 2)[0]
    compare(gradients, {n: p.grad for n, p in plain.named_parameters()})
    copy.deepcopy(plain).load_state_dict(state)  # strict: the tied names are there too


WHOLE = {
    "LARS": lambda p: LARS(p, 0.1),
    "LAMB": lambda p: LAMB(p, 0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.01),
}


def step_scaled(model, optimizer):
    """Two steps under torch's GradScaler, the first of which overflows on the first rank's samples."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    for number in range(2):
        x, y = (t.chunk(size)[rank].clone() for t in CASES["mlp"].batch(8, number))
        if number == 0 and rank == 0:
            x[0] = float("inf")
        optimizer.zero_grad()
        scaler.scale(CASES["mlp"].loss(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
    return scaler.get_scale()


@pytest.mark.parametrize("name", WHOLE)
def test_what_looks_at_whole_parameters_sees_them_in_dtensors(name):
    def step():
        model = each_layer(fully_shard, CASES["mlp"].build(0))
        return step_scaled(model, WHOLE[name](model.parameters())), full_state_dict(model)

    plain = CASES["mlp"].build(0)
    scale = step_scaled(plain, WHOLE[name](plain.parameters()))
    for found, state in launch(step, 2):
        assert found == scale == 4.0, "halved once: all ranks hear of the overflow"
        compare(state, plain.state_dict(), tolerance=1e-4, what=f"{name}: value")


def test_on_an_emulated_cluster_a_step_takes_the_same_time_whatever_this_machine_does():
    def step(slow: bool) -> list[float]:
        model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)))
        for module in (*model, model):
            fully_shard(module)
        hooks = [time.sleep] if slow and dist.get_rank() == 1 else []
        for module in model:
            for sleep in hooks:
                module.register_full_backward_hook(lambda *_, sleep=sleep: sleep(0.02))
        ends = []
        for _ in range(2):
            model(torch.ones(16, 32)).sum().backward()
            ends.append(emulation.now())
        return ends

    cluster = {"devices": EmulatedDevice(flops=1e9), "network": EmulatedNetwork(bandwidth=1e8)}
    quick, slow = (
        launch(step, 2, wait, backend="ring", device="cpu", record=True, **cluster)
        for wait in (False, True)
    )
    assert list(quick) == list(slow)
    computed = [e for e in quick.timeline.of(rank=0) if e.kind == "compute"]
    assert len(computed) == 2 * 2 * 4  # steps, forward and backward, layers
    assert all(0 <= e.start < e.end <= quick[0][-1] for e in computed)  # on the emulated clock
