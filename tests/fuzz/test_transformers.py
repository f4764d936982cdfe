"""Random Transformers, cut inside their layers, against one process, parameter by parameter, in double.

Shapes are drawn so that most of them fit the ranks; those that do not have to be refused, on every rank and with a
sentence, and not computed. DTCOURSE_FUZZ and DTCOURSE_FUZZ_SEED as in test_techniques.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from dtcourse import launch
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.sequence_parallel import (
    RingAttentionCore,
    UlyssesCore,
    parallelize_sequence,
    positions,
    shard,
)
from dtcourse.tensor_parallel import cross_entropy, full_gradients, parallelize, transformer_plan
from dtcourse.verify import NotEqual, compare, gradients_of
from tests.fuzz.drawing import drawn
from tests.turns import taking_turns

SEED = int(os.environ.get("DTCOURSE_FUZZ_SEED") or 0)
EACH = int(6 * float(os.environ.get("DTCOURSE_FUZZ") or 1))  # models for each way
CUT_WEIGHTS = ("tensor", "tensor, logits cut", "sequence", "sequence, inputs kept")
CUT_TOKENS = ("ring", "ring, zigzag", "Ulysses")


@dataclass(frozen=True)
class Case:
    """A model, a batch, and the parameters that are frozen, by their number."""

    config: TransformerConfig
    batch: int
    length: int
    micro_batches: int
    frozen: frozenset[int]

    def build(self) -> Transformer:
        """The model, the same on every rank."""
        model = Transformer(self.config).double()
        for number, parameter in enumerate(model.parameters()):
            parameter.requires_grad_(number not in self.frozen)
        return model

    def text(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Tokens and targets of each micro-batch."""
        generator = torch.Generator().manual_seed(1)
        shape = self.micro_batches, self.batch, self.length + 1
        tokens = torch.randint(self.config.vocab, shape, generator=generator)
        return [(each[:, :-1], each[:, 1:]) for each in tokens]

    def fits(self, way: str, p: int) -> bool:
        """Whether p ranks can have equal parts."""
        heads, kv = self.config.n_heads, self.config.kv_heads
        equal_heads = not heads % p and (not kv % p or not p % kv)
        if way in CUT_WEIGHTS:
            tokens = not self.length % p or way.startswith("tensor")
            return equal_heads and not self.config.ff % p and tokens
        if way == "Ulysses":
            return equal_heads and not self.length % p
        return not self.length % (2 * p if "zigzag" in way else p)


@st.composite
def cases(draw, p):
    def size(most):
        """A multiple of p, or now and then any number."""
        times = draw(st.integers(1, most))
        return times * p if draw(st.integers(0, 9)) else times

    heads = size(2)
    rotary = draw(st.booleans())
    length = 2 * size(2)
    config = TransformerConfig(
        vocab=draw(st.integers(2, 13)),
        d_model=heads * draw(st.sampled_from([2, 4] if rotary else [1, 2, 3])),
        n_layers=draw(st.integers(1, 2)),
        n_heads=heads,
        n_kv_heads=draw(st.sampled_from([n for n in range(1, heads + 1) if not heads % n])),
        d_ff=size(3),
        max_length=length,
        tied=draw(st.booleans()),
        bias=draw(st.booleans()),
        positions="rotary" if rotary else "learned",
        norm=draw(st.sampled_from(["layer", "rms"])),
        mlp=draw(st.sampled_from(["gelu", "swiglu"])),
    )
    frozen = draw(st.one_of(st.just(frozenset()), st.frozensets(st.integers(0, 30), max_size=8)))
    return Case(config, draw(st.integers(1, 2)), length, draw(st.integers(1, 2)), frozen)


# --- on the ranks -----------------------------------------------------------------------------------------------


def trained(case: Case, way: str) -> dict[str, torch.Tensor | None]:
    """The gradients of all parameters, whole."""
    model = case.build()
    if way in CUT_WEIGHTS:
        return weights_cut(model, case, way)
    return tokens_cut(model, case, way)


def weights_cut(model: nn.Module, case: Case, way: str) -> dict[str, torch.Tensor | None]:
    whole = way != "tensor, logits cut"
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize(model, transformer_plan(model, gather_logits=whole), mesh)
    if way.startswith("sequence"):
        parallelize_sequence(model, mesh, gather_again=way == "sequence")
    for x, y in case.text():
        if whole:
            model.loss(x, y).backward()
        else:
            cross_entropy(model(x), y, num_classes=case.config.vocab).backward()
    return full_gradients(model)


def tokens_cut(model: nn.Module, case: Case, way: str) -> dict[str, torch.Tensor | None]:
    rank, p = dist.get_rank(), dist.get_world_size()
    order = "zigzag" if "zigzag" in way else "contiguous"
    for block in model.blocks:
        core = (
            UlyssesCore(block.attention.core)
            if way == "Ulysses"
            else RingAttentionCore(order=order)
        )
        block.attention.core = core
    places = positions(case.length, rank, p, order)
    for x, y in case.text():
        logits = model(shard(x, order=order), places)
        (F.cross_entropy(logits.flatten(0, 1), shard(y, order=order).flatten()) / p).backward()
    for parameter in model.parameters():
        if parameter.requires_grad:
            dist.all_reduce(parameter.grad)
    return gradients_of(model)


def complaints(examples: list[tuple[str, Case]]) -> list[str]:
    """What is wrong on this rank with each example; "" where it is right, "refused" where it is rightly refused."""
    said = []
    for way, case in examples:
        plain = case.build()
        for x, y in case.text():
            plain.loss(x, y).backward()
        fits = case.fits(way, dist.get_world_size())
        try:
            compare(trained(case, way), gradients_of(plain), 1e-10, norm=2)
            said.append("" if fits else "this does not fit, and was not refused")
        except NotEqual as error:
            said.append(str(error))
        except ValueError as error:
            said.append(f"this fits, and was refused: {error}" if fits else "refused")
    return said


@pytest.mark.slow
@pytest.mark.parametrize("p", [4, *taking_turns(2, 3, about="tests/fuzz/")])
def test_each_way_inside_the_layer_is_one_process(p):
    ways = CUT_WEIGHTS + CUT_TOKENS
    found = drawn(cases(p), EACH * len(ways), SEED)
    examples = [(ways[i % len(ways)], case) for i, case in enumerate(found)]
    by_rank = [*launch(complaints, p, examples, timeout=1000)]
    wrong = [
        f"{way}, {p} ranks, {case}\n    rank {rank}: {said}"
        for rank, all_said in enumerate(by_rank)
        for (way, case), said in zip(examples, all_said, strict=True)
        if said not in ("", "refused")
    ]
    assert not wrong, f"{len(wrong)} of {len(examples)}; the shortest:\n" + min(wrong, key=len)
    refused = by_rank[0].count("refused")
    print(f"{p} ranks: {len(examples)} tried, {refused} refused")
    assert 0 < refused < len(examples) / 2, "most should be computed, and some refused"
