"""Ulysses: one process's numbers on the whole sequence, bytes as told, and which numbers of heads fit."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from dtcourse import launch
from dtcourse.collectives import traffic
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.sequence_parallel import UlyssesCore, positions, shard, ulysses_attention, unshard
from dtcourse.verify import compare, gradients_of
from tests.turns import taking_turns

LIMIT = {torch.double: 1e-10, torch.float32: 1e-5}
B, H, S, E, V = 2, 12, 24, 6, 5


def whole(kv_heads, dtype=torch.double):
    make = torch.Generator().manual_seed(0)
    shapes = (B, H, S, E), (B, kv_heads, S, E), (B, kv_heads, S, V), (B, H, S, V)
    return [torch.randn(s, generator=make, dtype=torch.double).to(dtype) for s in shapes]


def attended(function, tensors, **options):
    *inputs, grad = tensors
    q, k, v = (x.detach().clone().requires_grad_() for x in inputs)
    out = function(q, k, v, **options)
    out.backward(grad)
    return {"out": out.detach(), "q": q.grad, "k": k.grad, "v": v.grad}


def kv_heads_for(size):
    """More key-value heads than ranks, as many, fewer: what fits."""
    return {1: (12, 1), 2: (12, 2, 1), 3: (12, 3, 1), 4: (12, 4, 2, 1)}[size]


def everything():
    rank, size = dist.get_rank(), dist.get_world_size()
    sent = {}
    for kv in kv_heads_for(size):
        for dtype, causal in ((torch.double, True), (torch.double, False), (torch.float32, True)):
            options = {"causal": causal, "scale": 0.3}
            tensors = whole(kv, dtype)
            with traffic.counting() as counted:
                mine = attended(ulysses_attention, [shard(x, 2) for x in tensors], **options)
            found = {name: unshard(x, 2) for name, x in mine.items()}
            right = attended(
                F.scaled_dot_product_attention,
                [x.double() for x in tensors],
                is_causal=causal,
                scale=0.3,
                enable_gqa=True,
            )
            compare(found, right, LIMIT[dtype], f"{kv} key-value heads, {causal=}", norm=2)
            assert counted.operations == ["all_to_all"]
            sent[kv, dtype.itemsize] = [
                (counted.bytes_sent(phase=way), counted.messages_sent(phase=way))
                for way in ("forward", "backward")
            ]

    # A whole Transformer: the mean over ranks of the mean loss of their tokens.
    for kind in ("rotary", "learned"):
        config = TransformerConfig(
            31, 24, 2, 12, n_kv_heads=6, d_ff=32, max_length=S, positions=kind
        )
        text = torch.randint(31, (2, S + 1), generator=torch.Generator().manual_seed(0))
        plain, model = Transformer(config).double(), Transformer(config).double()
        plain.loss(text[:, :-1], text[:, 1:]).backward()
        for block in model.blocks:
            block.attention.core = UlyssesCore(block.attention.core)
        fits = not 6 % size or not size % 6
        if not fits:
            with pytest.raises(ValueError, match="6 key-value heads cannot be given out to 4"):
                model(shard(text[:, :-1]), positions(S, rank, size))
            continue
        logits = model(shard(text[:, :-1]), positions(S, rank, size))
        (F.cross_entropy(logits.flatten(0, 1), shard(text[:, 1:]).flatten()) / size).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        compare(gradients_of(model), gradients_of(plain), 1e-10, kind, norm=2)
        with pytest.raises(ValueError, match=f"a sequence of {2 * S} tokens"):
            longer = torch.zeros(1, 2 * S, dtype=torch.long)
            model(shard(longer), positions(2 * S, rank, size))
    return sent


@pytest.mark.parametrize("p", [1, 3, *taking_turns(2, 4, about="dtcourse/sequence_parallel/")])
def test_numbers_are_pytorchs_on_the_whole_sequence_and_bytes_the_formulas(p):
    for sent in launch(everything, p, backend="ring"):
        assert len(sent) == 2 * len(kv_heads_for(p))
        for (kv, itemsize), ways in sent.items():
            numbers = B * S // p * (H + max(kv, p)) * (E + V)
            for nbytes, messages in ways:
                assert nbytes == (p - 1) * numbers * itemsize // p
                assert messages == 4 * (p - 1)


def over_gloo():
    tensors = whole(4)
    mine = attended(ulysses_attention, [shard(x, 2) for x in tensors], causal=True)
    right = attended(F.scaled_dot_product_attention, tensors, is_causal=True, enable_gqa=True)
    return compare({n: unshard(x, 2) for n, x in mine.items()}, right, 1e-10, norm=2)


def test_it_runs_over_gloos_own_all_to_all():
    assert max(launch(over_gloo, 4)) < 1e-10


def heads_that_do_not_fit():
    said = []
    for heads, kv in ((3, 3), (6, 3), (12, 3)):
        q, k = torch.zeros(1, heads, 2, 4), torch.zeros(1, kv, 2, 4)
        with pytest.raises(ValueError, match="cannot be given out to 4 ranks") as caught:
            ulysses_attention(q, k, k)
        said.append(str(caught.value))
    return said


def test_heads_that_do_not_fit_are_answered_with_what_would():
    more_ranks, neither, grouped = launch(heads_that_do_not_fit, 4)[0]
    assert "3 query heads and 3 key-value heads" in more_ranks
    assert "1, 3 ranks would do" in more_ranks
    assert "1, 3, 6 ranks would do" in neither
    assert "1, 3, 6, 12 ranks would do" in grouped
