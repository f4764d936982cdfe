"""copy.deepcopy of a model that is cut: it trains as the one that it was made of, and neither changes the other."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from dtcourse import checkpoint, launch
from dtcourse.communication_scheduling.priority import PriorityDataParallel
from dtcourse.data_parallel import SyncBatchNorm
from dtcourse.data_parallel.per_parameter import PerParameterDataParallel
from dtcourse.expert_parallel import expert_parallel
from dtcourse.fault_tolerance import VirtualRanks
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.parameters.partial_gradients import summed_once
from dtcourse.parameters.whole import full_gradients, full_state_dict
from dtcourse.sequence_parallel import RingAttentionCore, UlyssesCore, parallelize_sequence
from dtcourse.sharding import ShardedDataParallel, ZeroRedundancyOptimizer
from dtcourse.tensor_parallel import SummaLinear, parallelize, transformer_plan
from dtcourse.verify import compare

GPT2 = TransformerConfig(31, 16, 2, 4, d_ff=32, max_length=8, dropout=0.1)
GROUPED = replace(GPT2, n_kv_heads=1, positions="rotary", norm="rms", mlp="swiglu", tied=False)
MIXTURE = replace(GPT2, experts=4)


def tensor(config=GPT2):
    model = Transformer(config)
    return parallelize(model, transformer_plan(model), init_device_mesh("cpu", (2,)))


def cores(kind):
    """Each block's attention over tokens that are cut: each rank's own are its batch here."""
    model = Transformer(replace(GPT2, dropout=0.0, max_length=16))  # both ranks' tokens
    for block in model.blocks:
        block.attention.core = kind(block.attention.core)
    return model


def synced():
    return nn.Sequential(nn.Embedding(31, 8), nn.Flatten(), SyncBatchNorm(64, group=subgroup()))


def subgroup():
    """Not the default group, which a module may call None."""
    return dist.new_group([0, 1])


MADE = {
    "tensor": tensor,
    "a key-value head that two ranks hold": lambda: tensor(GROUPED),
    "a mixture's matrices": lambda: tensor(MIXTURE),
    "Megatron's sequence": lambda: parallelize_sequence(tensor(), init_device_mesh("cpu", (2,))),
    "its products beside messages": lambda: parallelize_sequence(
        tensor(GROUPED), init_device_mesh("cpu", (2,)), overlap=True
    ),
    "experts": lambda: expert_parallel(Transformer(MIXTURE), init_device_mesh("cpu", (2,))),
    "a ring": lambda: cores(lambda core: RingAttentionCore(subgroup())),
    "Ulysses": lambda: cores(lambda core: UlyssesCore(core, subgroup())),
    "synchronised statistics": synced,
}  # fmt: skip


def trained(model, steps=2):
    """Gradients of its first step and its weights after `steps`, both whole."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    gradients = None
    for step in range(steps):
        tokens = torch.randint(31, (2, 8), generator=torch.Generator().manual_seed(step))
        torch.manual_seed(step)
        optimizer.zero_grad()
        with summed_once(model.parameters()) if step else torch.enable_grad():
            y = model(tokens)
            (y * torch.linspace(0, 1, y.shape[-1])).square().mean().backward()
        gradients = full_gradients(model) if gradients is None else gradients
        optimizer.step()
    return {n: g for n, g in gradients.items() if g is not None}, full_state_dict(model)


def copies(which):
    torch.manual_seed(0)
    model = MADE[which]()
    before = {n: p.clone() for n, p in model.named_parameters()}
    made = copy.deepcopy(model)
    of_copy = trained(made)
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name]), "the copy's training is its own"
        assert p.grad is None
    again = copy.deepcopy(copy.deepcopy(model))  # of a copy
    return of_copy, trained(again), trained(model)


def all_alike(which):
    first, *others = copies(which)
    for other in others:
        for one, right in zip(other, first, strict=True):
            compare(one, right, 1e-6, norm=2)
    return len(first[0])


@pytest.mark.parametrize("which", MADE)
def test_a_copy_trains_as_what_it_was_made_of(which):
    assert all(n > 1 for n in launch(all_alike, 2, which))


def on_a_grid():
    torch.manual_seed(0)
    layer = SummaLinear(nn.Linear(4, 4), init_device_mesh("cpu", (2, 2)))
    made, x = copy.deepcopy(layer), torch.ones(2, 2)
    with torch.no_grad():
        before = layer(x)
        made.weight.zero_()
        assert torch.equal(layer(x), before)
        return torch.equal(copy.deepcopy(layer)(x), before)


def test_a_layer_on_a_grid_is_copied():
    assert all(launch(on_a_grid, 4))


def saved(folder):
    """What a copy lost of its placement would be missing in a checkpoint."""
    torch.manual_seed(0)
    model = MADE["Megatron's sequence"]()
    made = copy.deepcopy(model)
    checkpoint.save(folder, made, torch.optim.SGD(made.parameters(), lr=0.1))
    plain = Transformer(GPT2)
    checkpoint.load(folder, plain, torch.optim.SGD(plain.parameters(), lr=0.1))
    compare(plain.state_dict(), full_state_dict(model), 0)


def test_a_copys_checkpoint_is_the_whole_model(tmp_path):
    launch(saved, 2, tmp_path / "saved")


def part():
    """A module of the model has its hooks too."""
    model = MADE["Megatron's sequence"]()
    norm = copy.deepcopy(model.norm)
    norm(torch.full((1, 4, 16), 1.0) * torch.arange(16.0) * (1 + dist.get_rank())).sum().backward()
    return norm.bias.grad.tolist()


def test_a_part_of_a_model_keeps_the_sum_of_its_gradients():
    assert list(launch(part, 2)) == [[8.0] * 16] * 2  # four tokens on each of two ranks


def frozen():
    model = MADE["Megatron's sequence"]().eval().requires_grad_(False)
    tokens = torch.arange(16).view(2, 8)
    return torch.equal(copy.deepcopy(model)(tokens), model(tokens))


def test_a_teacher_that_is_frozen_already_is_copied():
    assert all(launch(frozen, 2))


def zero_2(model):
    return ShardedDataParallel(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD))


WRAPPERS = {
    "ShardedDataParallel": zero_2,
    "VirtualRanks": lambda m: VirtualRanks(m, 2),
    "PriorityDataParallel": lambda m: PriorityDataParallel(m, torch.optim.SGD(m.parameters())),
    "PerParameterDataParallel": PerParameterDataParallel,
}


def wrappers():
    said = []
    for wrap in WRAPPERS.values():
        with pytest.raises(ValueError) as caught:
            copy.deepcopy(wrap(nn.Linear(2, 2)))
        said.append(str(caught.value))
    return said


def test_a_wrapper_whose_hooks_would_be_lost_says_so():
    for said in launch(wrappers, 2):
        for name, one in zip(WRAPPERS, said, strict=True):
            assert one.startswith(f"a {name} is not copied: ")
            assert "Copy its .module, and wrap that" in one
