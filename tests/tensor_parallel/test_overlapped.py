"""Asynchronous tensor parallelism: one process's gradients, the bytes of one piece, and what hides."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from dtcourse import launch
from dtcourse.collectives import traffic
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork, now
from dtcourse.tensor_parallel import gather_linear, linear_sum, overlapped
from dtcourse.verify import compare
from tests.turns import taking_turns

TOKENS, BATCH, D, HIDDEN = 12, 2, 4, 24
NAMES = ("x", "gate", "up", "down", "bias")


def whole():
    """x, gate, up, down and up's bias, in double, on every rank alike."""
    generator = torch.Generator().manual_seed(0)
    shapes = (TOKENS, BATCH, D), (HIDDEN, D), (HIDDEN, D), (D, HIDDEN), (HIDDEN,)
    return [torch.randn(s, dtype=torch.double, generator=generator) for s in shapes]


def one_process(frozen):
    given = [t.requires_grad_(name not in frozen) for t, name in zip(whole(), NAMES, strict=True)]
    x, gate, up, down, bias = given
    y = (F.silu(x @ gate.T) * (x @ up.T + bias)) @ down.T
    (y**2).sum().backward()
    return {"y": y.detach()} | {n: t.grad for n, t in zip(NAMES, given, strict=True)}


def region(gather_again=True, frozen=()):
    """On a rank: a SwiGLU from own tokens to own tokens; its output and gradients, put together again."""
    rank, p = dist.get_rank(), dist.get_world_size()
    dims = (0, 0, 0, 1, 0)
    given = [t.chunk(p, dim)[rank].clone() for t, dim in zip(whole(), dims, strict=True)]
    for t, name in zip(given, NAMES, strict=True):
        t.requires_grad_(name not in frozen)
    x, gate, up, down, bias = given
    h, g = gather_linear(x, [up, gate], [bias, None], gather_again=gather_again)
    y = linear_sum(F.silu(g) * h, down)
    assert y.shape == x.shape
    (y**2).sum().backward()
    found = {}
    parts = {"y": (y.detach(), 0)}
    parts |= {n: (t.grad, d) for n, t, d in zip(NAMES, given, dims, strict=True)}
    for name, (part, dim) in parts.items():
        if part is None:
            found[name] = None
            continue
        parts_of_all = [torch.empty_like(part) for _ in range(p)]
        dist.all_gather(parts_of_all, part.contiguous())
        found[name] = torch.cat(parts_of_all, dim)
    return found


def variants():
    return [
        region(True),
        region(False),
        region(True, ("gate", "bias")),
        region(True, ("x", "down")),
    ]


@pytest.mark.parametrize(
    "p", [3, *taking_turns(1, 2, 4, about="dtcourse/tensor_parallel/overlapped.py")]
)
def test_output_and_gradients_are_one_processs(p):
    for again, kept, some, others in launch(variants, p):
        for found, frozen in ((again, ()), (kept, ()), (some, NAMES[1:5:3]), (others, NAMES[::3])):
            right = one_process(frozen)
            assert {n for n, t in found.items() if t is None} == set(frozen)
            got, expected = ({n: t for n, t in s.items() if t is not None} for s in (found, right))
            compare(got, expected, 1e-12, norm=2)


def early():
    """Broken on purpose: each sum begins one rank too early, so that it ends on the rank before."""
    right = overlapped.summed
    ranks = dist.get_world_size()
    overlapped.summed = lambda product, group=None: right(lambda k: product((k + 1) % ranks), group)
    return region()


def test_a_sum_that_ends_on_the_wrong_rank_is_seen():
    right, wrong = one_process(()), launch(early, 3)[0]
    assert not torch.allclose(wrong["y"], right["y"])
    assert torch.allclose(wrong["y"], right["y"].roll(-TOKENS // 3, 0)), "the next rank's tokens"


def counted():
    sent = []
    for gather_again in (True, False):
        with traffic.counting() as seen:
            region(gather_again)
        names = ("all_gather", "reduce_scatter")
        sent.append(
            [(seen.bytes_sent(operation=n), seen.messages_sent(operation=n)) for n in names]
        )
    return sent


def test_bytes_are_those_of_one_piece():
    p = 3
    unit = (p - 1) * 8 * TOKENS * BATCH * D // p
    own = (
        8 * (3 * HIDDEN * D + HIDDEN + 2 * TOKENS * BATCH * D) // p
    )  # the test gathers what it found
    for again, kept in launch(counted, p, backend="ring"):
        # Forward and dy, and x again; sums forward and of dx. In p - 1 messages each.
        assert again == [(3 * unit + (p - 1) * own, (3 + 6) * (p - 1)), (2 * unit, 2 * (p - 1))]
        assert kept == [(2 * unit + (p - 1) * own, (2 + 6) * (p - 1)), (2 * unit, 2 * (p - 1))]


def timed(wide):
    """On a rank: seconds of a gather's product, and of a product's sum, with 2 * 8 tokens of `wide` numbers."""
    p, seconds = dist.get_world_size(), []
    own, weight = torch.ones(16 // p, wide), torch.ones(8, wide)
    begin = now()
    gather_linear(own, [weight])
    seconds.append(now() - begin)
    begin = now()
    linear_sum(torch.ones(16, 8), weight.T)
    return [*seconds, now() - begin]


@pytest.mark.parametrize("bandwidth", [1e9, 1e5])
def test_what_a_rank_waits_for_is_what_a_message_takes_longer_than_a_product(bandwidth):
    p, wide, flops, latency = 4, 32, 1e7, 1e-5
    product, message = 2 * 16 // p * wide * 8 / flops, latency + 4 * 16 // p * wide / bandwidth
    cluster = {"devices": EmulatedDevice(flops), "network": EmulatedNetwork(latency, bandwidth)}
    run = launch(timed, p, wide, device="cpu", backend="ring", **cluster)
    for seconds in run:
        # The first product has nothing beside it, or the last message nothing that waits for it.
        assert seconds == pytest.approx([product + (p - 1) * max(product, message)] * 2)


def misfit():
    with pytest.raises(ValueError, match=r"7 tokens .* to 2 ranks equally: pad them to 8"):
        linear_sum(torch.ones(7, 2), torch.ones(3, 2))


def test_tokens_that_do_not_divide_are_named():
    launch(misfit, 2)
