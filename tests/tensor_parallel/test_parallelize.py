"""An unchanged Transformer, cut by a plan: equal to one process and to PyTorch's, and really cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

from dtcourse import launch
from dtcourse.collectives import ring, traffic
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.profiling.memory import held
from dtcourse.tensor_parallel import (
    ColwiseParallel,
    HeadwiseParallel,
    RegionParallel,
    RowwiseParallel,
    SplitDropoutParallel,
    clip_grad_norm,
    cross_entropy,
    full_gradients,
    full_state_dict,
    load_full_state_dict,
    parallelize,
    transformer_plan,
)
from dtcourse.verify import NotEqual, compare
from dtcourse.verify.harness import Backward, train
from tests.turns import taking_turns

# 12 heads, 31 words: every number of ranks divides the one and, but for 1, none the other.
GPT2 = TransformerConfig(31, 24, 2, 12, d_ff=36, max_length=8)
LLAMA = TransformerConfig(
    31, 24, 2, 12, n_kv_heads=12, d_ff=36, max_length=8, tied=False, bias=False,
    positions="rotary", norm="rms", mlp="swiglu",
)  # fmt: skip


def grouped(kv_heads):
    return replace(LLAMA, n_kv_heads=kv_heads, bias=True)


def configs(size):
    """Fewer key-value heads than ranks, as many, more: what each number of ranks allows."""
    kv = {1: (1, 4), 2: (1, 2, 4), 3: (1, 3, 6), 4: (1, 2, 4)}[size]
    return {"gpt2": GPT2, "llama": LLAMA} | {f"grouped {n}": grouped(n) for n in kv}


def tokens(batch=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(31, (batch, 9), generator=generator)
    return text[:, :-1], text[:, 1:]


def plan_of(loss, micro_batches=1, steps=3):
    """What the harness trains: all of the batch on every rank."""

    def part(x, y):
        return lambda model: loss(model, x, y) / micro_batches

    return [
        [
            Backward([part(x, y)])
            for x, y in zip(*(t.chunk(micro_batches) for t in tokens(seed=step)), strict=True)
        ]
        for step in range(steps)
    ]


def whole_loss(model, x, y):
    return model.loss(x, y)


def cut_loss(model, x, y):
    return cross_entropy(model(x), y, num_classes=31)


def freeze(model):
    for name in (
        "blocks.0.attention.key.weight",
        "blocks.0.mlp.up.weight",
        "blocks.1.norm_1.weight",
    ):
        model.get_parameter(name).requires_grad_(False)
    model.token_embedding.weight.requires_grad_(False)
    model.blocks[1].mlp.down.bias.requires_grad_(False)
    return model


def mesh():
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tensor",))


def cut(config, gather_logits=True, prepare=lambda model: model, dtype=torch.double):
    """The parallel model; every rank builds another one, and rank 0's is the one that counts."""
    model = prepare(Transformer(config, seed=dist.get_rank()).to(dtype))
    return parallelize(model, transformer_plan(model, gather_logits=gather_logits), mesh())


def steps(model, loss, micro_batches=1):
    return train(
        model,
        model,
        plan_of(loss, micro_batches),
        read=full_gradients,
        read_parameters=full_state_dict,
    )


def train_all():
    size = dist.get_world_size()
    found = {}
    for name, config in configs(size).items():
        found[name, "gathered"] = steps(cut(config), whole_loss)
        found[name, "cut"] = steps(cut(config, gather_logits=False), cut_loss, micro_batches=2)
    found["gpt2", "frozen"] = steps(cut(GPT2, prepare=freeze), whole_loss)
    found["grouped 1", "single"] = steps(cut(grouped(1), False, dtype=torch.float32), cut_loss)
    dropped = cut(replace(GPT2, dropout=0.3))
    torch.manual_seed(7)
    found["gpt2", "dropout"] = steps(dropped, whole_loss)
    return found


def truth(config, kind):
    config = replace(config, dropout=0.3) if kind == "dropout" else config
    model = Transformer(config).to(torch.float32 if kind == "single" else torch.double)
    model = freeze(model) if kind == "frozen" else model
    torch.manual_seed(7)
    return train(model, model, plan_of(whole_loss))


@pytest.mark.parametrize(
    "world_size", [1, 3, *taking_turns(2, 4, about="dtcourse/tensor_parallel/")]
)
def test_gradients_and_parameters_equal_one_process(world_size):
    run = launch(train_all, world_size)
    for (name, kind), first in run[0].items():
        expected = truth(configs(world_size)[name], kind)
        tolerance = 1e-5 if kind == "single" else 1e-10
        for rank in range(world_size):
            got = run[rank][name, kind]
            for step, (mine, right) in enumerate(
                zip(got.gradients, expected.gradients, strict=True)
            ):
                what = f"{name}, {kind}, rank {rank}, step {step}: gradient"
                compare(mine, right, tolerance, what, norm=2)
            # The state has tied parameters by both names; the truth, by one.
            state = {n: got.parameters[n] for n in expected.parameters}
            compare(state, expected.parameters, tolerance, f"{name}, {kind}: parameter", norm=2)
            assert got.losses == pytest.approx(expected.losses, rel=tolerance)
            assert got.losses == first.losses, "the same loss on every rank, bit by bit"


# --- PyTorch's own ------------------------------------------------------------------------------------------------


def against_torch():
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel as TorchColwise
    from torch.distributed.tensor.parallel import RowwiseParallel as TorchRowwise
    from torch.distributed.tensor.parallel import parallelize_module

    plan = {
        "token_embedding": TorchRowwise(input_layouts=Replicate()),
        **{f"blocks.*.attention.{n}": TorchColwise() for n in ("query", "key", "value")},
        "blocks.*.attention.output": TorchRowwise(),
        "blocks.*.mlp.gate": TorchColwise(),
        "blocks.*.mlp.up": TorchColwise(),
        "blocks.*.mlp.down": TorchRowwise(),
        "output": TorchColwise(output_layouts=Replicate()),
    }

    def whole(t):
        return t.full_tensor() if hasattr(t, "full_tensor") else t.clone()

    found = {}
    for name, config in (("llama", LLAMA), ("gpt2", replace(GPT2, tied=False))):
        theirs = Transformer(config).double()
        wanted = {k: v for k, v in plan.items() if "gate" not in k or name == "llama"}
        parallelize_module(theirs, mesh(), wanted)
        ours = cut(config)
        results = []
        for model in (ours, theirs):
            model.loss(*tokens()).backward()
            results.append(
                full_gradients(ours)
                if model is ours
                else {n: whole(p.grad) for n, p in theirs.named_parameters()}
            )
        found[name] = compare(*results, tolerance=1e-10, norm=2)
    return found


@pytest.mark.parametrize("world_size", [3, *taking_turns(2, about="dtcourse/tensor_parallel/")])
def test_gradients_equal_pytorch_s_parallelize_module(world_size):
    for errors in launch(against_torch, world_size):
        assert errors.keys() == {"llama", "gpt2"}


# --- messages and memory ------------------------------------------------------------------------------------------


def count_messages(name):
    config = configs(dist.get_world_size())[name]
    model = cut(config, gather_logits=False, dtype=torch.float32)
    x, y = tokens()
    with traffic.counting() as counted:
        logits = model(x)
        forward = counted.calls(), counted.bytes_sent()
        cross_entropy(logits, y, num_classes=31)
        loss = counted.calls() - forward[0]
        before = counted.calls(), counted.bytes_sent()
        logits.sum().backward()
        backward = counted.calls() - before[0], counted.bytes_sent() - before[1]
    return forward, loss, backward, counted.operations


@pytest.mark.parametrize("name", ["gpt2", "llama", "grouped 3"])
def test_one_all_reduce_each_way_a_region(name):
    p, config = 3, configs(3)[name]
    for rank, (forward, loss, backward, operations) in enumerate(
        launch(count_messages, p, name, backend="ring")
    ):
        each = ring.all_reduce_volume(4 * 8 * config.d_model, p, rank).elements * 4
        regions = 2 * config.n_layers
        assert operations == ["all_reduce"]
        assert forward == (regions + 1, (regions + 1) * each), "and the embedding's sum"
        assert loss == 2
        assert backward == (regions + 1, (regions + 1) * each), "and the output layer's input"


def live(config, gather_logits):
    model = cut(config, gather_logits, dtype=torch.float32)
    optimizer = torch.optim.Adam(model.parameters())
    (model.loss if gather_logits else lambda x, y: cut_loss(model, x, y))(*tokens()).backward()
    optimizer.step()
    numbers = sum(p.numel() for p in model.parameters())
    tensors = len(list(model.parameters()))
    return held(model, optimizer), 4 * numbers, tensors


@pytest.mark.parametrize("world_size", [1, 4, *taking_turns(2, about="dtcourse/tensor_parallel/")])
def test_live_bytes_are_the_formula(world_size):
    """Of each rank: 1 / p of what is cut, the vocabulary rounded up, and key-value heads at least one."""
    p = world_size
    for config in (GPT2, grouped(2)):
        D, F, V = config.d_model, config.ff, -(-config.vocab // p)
        kv = max(config.kv_heads // p, 1) * config.d_head
        wide = 1 if config.mlp == "gelu" else 2
        block = 2 * D * D // p + 2 * D * kv + (wide + 1) * D * F // p
        block += D // p + 2 * kv + wide * F // p + D + D  # biases: cut by columns, whole by rows
        norms = (2 * config.n_layers + 1) * D * (2 if config.norm == "layer" else 1)
        table = config.max_length * D if config.positions == "learned" else 0
        numbers = config.n_layers * block + norms + table + V * D * (1 if config.tied else 2)
        for found, counted, tensors in launch(live, p, config, True):
            assert counted == 4 * numbers
            assert found["parameters"] == found["gradients"] == 4 * numbers
            assert found["optimizer states"] == 8 * numbers + 4 * tensors
            assert found["buffers"] == 0


# --- together with others -----------------------------------------------------------------------------------------


def two_axes():
    """Data parallel over one axis, tensor parallel over the other, for 20 steps."""
    axes = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    config = replace(grouped(1), tied=True)
    model = Transformer(config, seed=dist.get_rank()).double()
    for tensor in model.parameters():  # DDP of the data axis is to bring the rows together
        assert tensor.is_leaf
    parallelize(model, transformer_plan(model, gather_logits=False), axes["tensor"])
    wrapped = DistributedDataParallel(model, process_group=axes["data"].get_group())
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-2)
    losses = []
    for step in range(20):
        x, y = (t.chunk(2)[axes["data"].get_local_rank()] for t in tokens(seed=step))
        optimizer.zero_grad()
        loss = cross_entropy(wrapped(x), y, axes["tensor"].get_group(), num_classes=31)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    whole = {
        n: p.detach().clone()
        for n, p in model.named_parameters()
        if "norm" in n or n.endswith(("output.bias", "down.bias"))
    }
    return losses, whole, full_state_dict(model)


def test_replicated_parameters_stay_equal_on_a_two_axis_mesh():
    run = launch(two_axes, 4)
    for losses, whole, state in run:
        assert len(whole) == 2 * 2 + 1 + 2 * 2
        assert all(torch.equal(whole[n], run[0][1][n]) for n in whole), "bit by bit"
        assert all(torch.equal(state[n], run[0][2][n]) for n in state)
        assert losses in (run[0][0], run[2][0]), "one a row of the batch"
    model = Transformer(replace(grouped(1), tied=True)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(20):
        optimizer.zero_grad()
        model.loss(*tokens(seed=step)).backward()
        optimizer.step()
    # Adam divides by gradients near zero, so rounding grows: 20 steps, not 1e-10.
    right = {n: p.detach() for n, p in model.named_parameters()}
    compare({n: run[0][2][n] for n in right}, right, 1e-6, "parameter", norm=2)


def other_ways():
    """Checkpoints, eval mode, states that are loaded, another group than all ranks, dropout inside a region."""
    x, y = tokens()
    expected = Transformer(LLAMA).double()
    expected.loss(x, y).backward()
    right = {n: p.grad for n, p in expected.named_parameters()}
    for use_reentrant in (True, False):
        model = cut(LLAMA)
        h = model.token_embedding(x).requires_grad_()
        for block in model.blocks:
            h = checkpoint(block, h, use_reentrant=use_reentrant)
        logits = model.output(model.norm(h))
        nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten()).backward()
        compare(full_gradients(model), right, 1e-10, norm=2)

    tied = Transformer(GPT2, seed=3).double().eval()
    torch.manual_seed(dist.get_rank())
    parallelize(tied, transformer_plan(tied), mesh(), src_data_rank=None)
    drawn = torch.rand(3)
    assert not any(module.training for module in tied.modules())
    assert tied.output.weight is tied.token_embedding.weight
    other = Transformer(GPT2, seed=4).double()
    load_full_state_dict(tied, other.state_dict())
    torch.testing.assert_close(tied(x), other(x), rtol=1e-10, atol=1e-12)
    other.load_state_dict(full_state_dict(tied))

    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.dropout, self.down = nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 4)

        def forward(self, x):
            self.inside = self.dropout(self.up(x).abs())
            return self.down(self.inside)

    plan = {"0": RegionParallel(("up",), "down"), "0.dropout": SplitDropoutParallel()}
    model = parallelize(nn.Sequential(Dropping()), plan, mesh())
    return drawn, model(torch.ones(1, 4)), model[0].inside != 0


def test_checkpoints_states_modes_and_dropout_inside():
    (drawn, first, mask), (also_drawn, second, other_mask) = launch(other_ways, 2)
    assert torch.equal(drawn, also_drawn), "one random state for all"
    assert torch.equal(first, second)
    assert not torch.equal(mask, other_mask)


def clipped():
    """Untied and tied, with a key-value head on several ranks, a padded vocabulary, a frozen weight."""
    for config in (grouped(1), GPT2):
        for norm_type in (2.0, 1.0, float("inf")):
            model, plain = cut(config, prepare=freeze), freeze(Transformer(config).double())
            for each in (model, plain):
                each.loss(*tokens()).backward()
            norm = clip_grad_norm(model, 0.01, norm_type)
            right = nn.utils.clip_grad_norm_(plain.parameters(), 0.01, norm_type)
            torch.testing.assert_close(norm, right)
            assert right > 0.01
            expected = {n: p.grad for n, p in plain.named_parameters()}
            compare(full_gradients(model), expected, 1e-10, norm=2)


@pytest.mark.parametrize("world_size", [1, 4, *taking_turns(2, about="dtcourse/tensor_parallel/")])
def test_clipping_is_by_the_unsharded_model_s_norm(world_size):
    launch(clipped, world_size)


def summed_once_a_rank():
    """Broken on purpose: every rank's loss counted, so gradients of what is before a sum come out p times."""
    model = cut(LLAMA)
    (model.loss(*tokens()) * dist.get_world_size()).backward()
    return full_gradients(model)


def test_the_comparison_sees_a_loss_counted_by_every_rank():
    expected = Transformer(LLAMA).double()
    expected.loss(*tokens()).backward()
    right = {n: p.grad for n, p in expected.named_parameters()}
    with pytest.raises(NotEqual, match="2 times too large"):
        compare(launch(summed_once_a_rank, 2)[0], right, norm=2)


# --- mistakes -----------------------------------------------------------------------------------------------------


def mistakes():
    whole = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    line = init_device_mesh("cpu", (4,), mesh_dim_names=("tensor",))
    region, heads = RegionParallel(("up",), "down"), HeadwiseParallel()
    cases = {
        "two axes": (GPT2, {"output": ColwiseParallel()}, whole),
        "no names": (GPT2, {"output": ColwiseParallel()}, init_device_mesh("cpu", (2, 2))),
        "no module": (GPT2, {"blocks.*.attn": heads}, line),
        "deeper": (GPT2, {"blocks.*.mlp.gate": ColwiseParallel()}, line),
        "heads": (replace(GPT2, n_heads=6), {"blocks.*.attention": heads}, line),
        "more ranks than heads": (replace(GPT2, n_heads=2), {"blocks.*.attention": heads}, line),
        "kv heads": (grouped(3), {"blocks.*.attention": heads}, line),
        "dims": (replace(GPT2, d_ff=30), {"blocks.*.mlp": region}, line),
        "inputs": (replace(GPT2, d_ff=30), {"blocks.*.mlp.down": RowwiseParallel()}, line),
        "tied": (GPT2, {"output": ColwiseParallel(True)}, line),
        "tied otherwise": (GPT2, {"output": RowwiseParallel(), "token_embedding": RowwiseParallel()}, line),
        "twice": (GPT2, {"blocks.*.mlp": region, "blocks.0.mlp.up": ColwiseParallel()}, line),
        "two styles": (GPT2, {"blocks.*.mlp": region, "blocks.0.*": region}, line),
        "kind": (GPT2, {"norm": ColwiseParallel()}, line),
        "part": (GPT2, {"blocks.*.mlp": RegionParallel(("gate", "up"))}, line),
    }  # fmt: skip
    said = {}
    for name, (config, plan, axis) in cases.items():
        model = Transformer(config)
        before = [(n, type(m)) for n, m in model.named_modules()], model.state_dict()
        try:
            parallelize(model, plan, axis)
        except ValueError as error:
            said[name] = str(error)
        assert [(n, type(m)) for n, m in model.named_modules()] == before[0], "nothing is changed"
    unsaid, sparse = Transformer(GPT2), Transformer(replace(GPT2, tied=False))
    del unsaid.blocks[1].attention.d_head
    sparse.token_embedding.sparse = True
    for name, model in (("unsaid", unsaid), ("sparse", sparse)):
        try:
            parallelize(model, transformer_plan(model), line)
        except ValueError as error:
            said[name] = str(error)
        assert type(model.token_embedding) is nn.Embedding
    try:
        parallelize(
            Transformer(GPT2 if dist.get_rank() else LLAMA),
            transformer_plan(Transformer(GPT2)),
            line,
        )
    except ValueError as error:
        said["other models"] = str(error)
    return said


def test_mistakes_are_named_before_anything_is_changed():
    run = launch(mistakes, 4)
    said = run[0]
    takes = "tensor parallelism takes one axis of a mesh, and this one has 2"
    assert said["two axes"] == f"{takes}, data, tensor: pass mesh['tensor']"
    assert said["no names"].startswith(
        f'{takes} without names: pass mesh_dim_names=("data", "tensor")'
    )
    assert "'blocks.*.attn'" in said["no module"]
    assert "blocks.0.attention" in said["no module"]
    assert "blocks.0.mlp.up" in said["deeper"]
    assert "blocks.0.attention, 6, cannot be cut over 4 ranks; 1, 2, 3, 6 ranks would do" in said["heads"]  # fmt: skip
    assert "2, cannot be cut over 4 ranks; 1, 2 ranks" in said["more ranks than heads"]
    assert "3 key-value heads" in said["kv heads"]
    assert "4 ranks" in said["kv heads"]
    assert "1, 3, 6, 12 ranks would do" in said["kv heads"]
    assert "blocks.0.mlp.up, 30, cannot be cut over 4 ranks" in said["dims"]
    assert "inputs of blocks.0.mlp.down, 30" in said["inputs"]
    assert "are one parameter" in said["tied"]
    assert "not at all" in said["tied"]
    assert "along dim 1" in said["tied otherwise"]
    assert "cuts blocks.0.mlp.up.weight twice" in said["twice"]
    assert "blocks.0.mlp twice" in said["two styles"]
    assert "norm is a LayerNorm" in said["kind"]
    assert "no module 'gate'; it has up, down" in said["part"]
    assert "blocks.1.attention does not say" in said["unsaid"]
    assert "sparse=True" in said["sparse"]
    for rank in run:
        assert "built different models" in rank["other models"]
