"""1-bit Adam: Adam in its warm-up, the paper's algorithm written apart afterwards, bytes, what it saves,
and mistakes."""

from __future__ import annotations

import copy
import math
import re

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import launch
from dtcourse.collectives import traffic
from dtcourse.compression import Identity, OneBitAdam, TopK
from dtcourse.data_parallel import DistributedDataParallel
from tests.turns import taking_turns

WARMUP, STEPS = 4, 9
OPTIONS = {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}
COMPRESSORS = {
    "sign": lambda: None,
    "unchanged": lambda: Identity(takes=torch.double),
    "top k, all of it": lambda: TopK(1.0, takes=torch.double),
}


class Model(nn.Module):
    """With a layer that gets no gradient."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.unused = nn.Linear(5, 7), nn.Linear(7, 3), nn.Linear(2, 2)
        self.double()

    def forward(self, x):
        return self.second(self.first(x).tanh())


def batch(step, p):
    make = torch.Generator().manual_seed(step)
    return torch.randn(12, 5, generator=make, dtype=torch.double).chunk(p)


def gradients(model, inputs):
    model.zero_grad()
    model(inputs).square().mean().backward()


def weights_of(model):
    return [w.detach().clone() for w in model.parameters()]


# --- the paper's algorithm, all ranks in one process ---------------------------------------------------------------


def sign(x):
    return x.abs().mean() * torch.where(x < 0, -1.0, 1.0).to(x)


def reference(p, compress, steps=STEPS, feedback=True):
    """Algorithm 1 of 2102.02888 with Adam's bias corrections. compress: of one vector; in float32, as it travels."""
    model, (b1, b2) = Model(), OPTIONS["betas"]
    weights = list(model.parameters())
    m, v = ([torch.zeros_like(w) for w in weights] for _ in range(2))
    size = [math.ceil(w.numel() / p) for w in weights]
    errors = [[torch.zeros(p * s) for s in size] for _ in range(p)]
    servers = [[torch.zeros(s) for s in size] for _ in range(p)]
    found = []
    for step in range(steps):
        each = []
        for inputs in batch(step, p):
            gradients(model, inputs)
            each.append(
                [
                    OPTIONS["weight_decay"] * w.detach() + (0 if w.grad is None else w.grad)
                    for w in weights
                ]
            )
        for i, w in enumerate(weights):
            if step < WARMUP:
                g = sum(of[i] for of in each) / p
                m[i] = b1 * m[i] + (1 - b1) * g
                v[i] = b2 * v[i] + (1 - b2) * g**2
            elif compress is None:
                m[i] = b1 * m[i] + (1 - b1) * sum(of[i] for of in each) / p
            else:
                sent = []
                for rank in range(p):
                    mine = torch.zeros(p * size[i])
                    mine[: w.numel()] = (b1 * m[i] + (1 - b1) * each[rank][i]).flatten().float()
                    mine = mine + errors[rank][i]
                    through = torch.cat([compress(part) for part in mine.split(size[i])])
                    errors[rank][i] = torch.zeros_like(mine)
                    errors[rank][i][: w.numel()] = (mine - through)[: w.numel()]
                    sent.append(through.view(p, -1))
                back = []
                for server in range(p):
                    total = sum(of[server] for of in sent) / p + servers[server][i]
                    back.append(compress(total))
                    servers[server][i] = total - back[-1]
                m[i] = torch.cat(back)[: w.numel()].view_as(w).double()
            m_hat = m[i] / (1 - b1 ** (step + 1))
            v_hat = v[i] / (1 - b2 ** min(step + 1, WARMUP))
            with torch.no_grad():
                w -= OPTIONS["lr"] * torch.where(
                    v[i] > 0, m_hat / (v_hat.sqrt() + OPTIONS["eps"]), 0
                )
        found.append(weights_of(model))
    return found


# --- ranks --------------------------------------------------------------------------------------------------------


def trained(compressor, warmup=WARMUP):
    rank, p = dist.get_rank(), dist.get_world_size()
    model = Model()
    optimizer = OneBitAdam(
        model.parameters(), **OPTIONS, warmup_steps=warmup, compressor=compressor
    )
    found, sent = [], []
    for step in range(STEPS):
        gradients(model, batch(step, p)[rank])
        with traffic.counting() as counted:
            optimizer.step()
        sent.append(counted.bytes_sent())
        found.append(weights_of(model))
    return found, sent, optimizer


def adam_under_ddp():
    rank, p = dist.get_rank(), dist.get_world_size()
    model = Model()
    # Adam leaves out a parameter without a gradient; here it counts as zero, and decays.
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.Adam(model.parameters(), **OPTIONS)
    found = []
    for step in range(STEPS):
        gradients(wrapped, batch(step, p)[rank])
        for w in model.unused.parameters():
            w.grad = torch.zeros_like(w)
        optimizer.step()
        found.append(weights_of(model))
    return found


def all_cases():
    found = {name: trained(make())[:2] for name, make in COMPRESSORS.items()}
    found["always warm"] = trained(None, warmup=STEPS)[:2]
    return found, adam_under_ddp(), resumed()


def resumed():
    """Half of the steps, saved, loaded into a new model and optimizer, and the rest: the same as without."""
    rank, p = dist.get_rank(), dist.get_world_size()
    model = Model()
    optimizer = OneBitAdam(model.parameters(), **OPTIONS, warmup_steps=WARMUP)
    for step in range(STEPS):
        if step == WARMUP + 2:
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            model = Model()
            optimizer = OneBitAdam(model.parameters(), **OPTIONS, warmup_steps=WARMUP)
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        gradients(model, batch(step, p)[rank])
        optimizer.step()
    last = weights_of(model)
    held = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    memory = sum(t.numel() for t in held)
    if p > 1:
        for state in optimizer.state.values():
            state["left_out_of_part"] = torch.zeros(1000)
        with pytest.raises(
            ValueError, match="this rank has left out a part of 1000 numbers, and with"
        ):
            optimizer.step()
    optimizer.reset_error_feedback()
    assert not any("left_out" in s or "left_out_of_part" in s for s in optimizer.state.values())
    optimizer.step()
    return last, memory


def worst(got, right):
    return max(float((a - b).abs().max()) for a, b in zip(got, right, strict=True))


@pytest.mark.parametrize("p", [1, 3, *taking_turns(2, 4, about="dtcourse/compression/")])
def test_it_is_adam_first_and_then_the_papers_algorithm(p):
    run = launch(all_cases, p, backend="ring")
    signs, exact = reference(p, sign), reference(p, None)
    sizes = [w.numel() for w in Model().parameters()]
    for found, adam, (last, memory) in run:
        for step in range(STEPS):
            assert worst(found["always warm"][0][step], adam[step]) <= 1e-12
            if step < WARMUP:
                assert worst(found["sign"][0][step], adam[step]) <= 1e-12
            for name in ("unchanged", "top k, all of it"):
                assert worst(found[name][0][step], exact[step]) <= 1e-12, f"{name}, step {step}"
            assert worst(found["sign"][0][step], signs[step]) <= 1e-6, f"step {step}"
            assert worst(found["sign"][0][step], run[0][0]["sign"][0][step]) == 0
        assert worst(last, found["sign"][0][-1]) <= 1e-12, "saved and loaded"
        assert memory == sum(3 * n + math.ceil(n / p) for n in sizes)
        packed = sum(2 * (p - 1) * (4 + math.ceil(math.ceil(n / p) / 8)) for n in sizes)
        assert found["sign"][1][WARMUP:] == [packed] * (STEPS - WARMUP)
        warm = found["sign"][1][0]
        assert abs(warm - sum(2 * (p - 1) / p * 8 * n for n in sizes)) <= 2 * (p - 1) * 8 * len(
            sizes
        )
    assert worst(signs[-1], exact[-1]) > 1e-4, "compression does something"


def dead_numbers():
    """A weight that gets its first gradient after the warm-up is not thrown away by it."""
    rank, p = dist.get_rank(), dist.get_world_size()
    w = nn.Parameter(torch.ones(8))
    optimizer = OneBitAdam([w], lr=0.1, warmup_steps=1)
    for step in range(3):
        w.grad = torch.arange(8.0) - 3 + rank / p
        w.grad[:2] = 0.0 if step == 0 else 1e-3
        optimizer.step()
    w.grad = torch.full((8,), math.nan)
    kept = w.detach().clone()
    optimizer.step()
    return kept, w.detach().clone()


def test_numbers_without_variance_stay_and_nan_is_seen():
    for kept, broken in launch(dead_numbers, 2):
        assert kept[:2].tolist() == [1.0, 1.0]
        assert ((kept[2:] - 1).abs() < 2).all() and (kept[2:] != 1).all()
        assert not broken[2:].isfinite().any()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"warmup_steps": 0}, "there is no variance to divide by; got 0"),
        ({"warmup_steps": 1, "lr": -1.0}, "lr and weight_decay are 0 or more; got -1.0 and 0.0"),
        ({"warmup_steps": 1, "betas": (1.0, 0.9)}, "betas lie in [0, 1); got (1.0, 0.9)"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        OneBitAdam([nn.Parameter(torch.zeros(2))], **options)
