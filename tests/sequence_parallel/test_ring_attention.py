"""Ring attention: one process's numbers on the whole sequence; bytes, operations and order of events as told."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from dtcourse import device, emulation, launch
from dtcourse.collectives import p2p, traffic
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.sequence_parallel import (
    RingAttentionCore,
    positions,
    ring_attention,
    shard,
    unshard,
)
from dtcourse.verify import compare, gradients_of
from tests.turns import taking_turns

LIMIT = {torch.double: 1e-10, torch.float32: 1e-5}


def whole(B=2, H=4, K=2, S=24, E=6, V=5, dtype=torch.double, seed=0):
    """q, k, v and a gradient of the output, of the whole sequence: the same on every rank."""
    make = torch.Generator().manual_seed(seed)
    shapes = (B, H, S, E), (B, K, S, E), (B, K, S, V), (B, H, S, V)
    return [torch.randn(s, generator=make, dtype=torch.double).to(dtype) for s in shapes]


def packed(B=2, S=24):
    """Documents that end inside chunks, one that spans several ranks, a row of one; padding at the end, and between."""
    ids = torch.zeros(B, S, dtype=torch.long)
    ids[0, 5:], ids[0, 7:], ids[0, 17:], ids[0, 20:] = 1, 2, -1, 3
    ids[1, S - 7 :] = -1
    return ids


def truth(q, k, v, grad, causal=False, documents=None, scale=None):
    """PyTorch's own attention on the whole sequence, with a mask written down, and its gradients."""
    S = q.shape[2]
    mask = torch.ones(S, S, dtype=torch.bool)
    mask = mask.tril() if causal else mask
    seen = mask.expand(q.shape[0], 1, S, S)
    if documents is not None:
        same = documents[:, :, None] == documents[:, None, :]
        seen = seen & (same & (documents >= 0)[:, :, None])[:, None]
    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=True)
    out = torch.where(seen.any(-1)[..., None], out, 0.0)
    out.backward(grad)
    return {"out": out.detach(), "q": q.grad, "k": k.grad, "v": v.grad}


def on_ring(tensors, order="contiguous", documents=None, **options):
    q, k, v, grad = (shard(x, 2, order=order) for x in tensors)
    for x in (q, k, v):
        x.requires_grad_()
    if documents is not None:
        documents = shard(documents, 1, order=order)
    out = ring_attention(q, k, v, order=order, documents=documents, **options)
    out.backward(grad)
    found = {"out": out.detach(), "q": q.grad, "k": k.grad, "v": v.grad}
    return {name: unshard(x, 2, order=order) for name, x in found.items()}


# --- the same numbers ---------------------------------------------------------------------------------------------


def against_pytorch():
    tried = 0
    for order, causal, mask in product(("contiguous", "zigzag"), (False, True), (None, packed())):
        for dtype, heads in ((torch.double, 2), (torch.double, 4), (torch.float32, 1)):
            tensors = whole(K=heads, dtype=dtype)
            right = truth(*(x.double() for x in tensors), causal, mask, scale=0.3)
            found = on_ring(
                tensors, order, mask, causal=causal, scale=0.3, block_q=3, block_k=2 + heads
            )
            compare(found, right, LIMIT[dtype], f"{order}, {causal=}, {mask is None=}", norm=2)
            tried += 1
    # The default scale, and sizes that tiles do not divide.
    tensors = whole(H=1, K=1)
    compare(on_ring(tensors, causal=True), truth(*tensors, causal=True), 1e-10, norm=2)
    # Half precision: the sums are held in single, so the result is rounded once.
    tensors = whole(dtype=torch.bfloat16)
    found = on_ring(tensors, "zigzag", causal=True)
    assert found["k"].dtype == torch.bfloat16
    compare(found, truth(*(x.double() for x in tensors), causal=True), 6e-3, norm=2)
    return tried


@pytest.mark.parametrize(
    "world_size", [1, 3, *taking_turns(2, 4, about="dtcourse/sequence_parallel/")]
)
def test_output_and_gradients_are_pytorchs_on_the_whole_sequence(world_size):
    assert [*launch(against_pytorch, world_size)] == [24] * world_size


def config(**more):
    return TransformerConfig(31, 24, 2, 6, n_kv_heads=3, d_ff=32, max_length=24, **more)


def text():
    tokens = torch.randint(31, (2, 25), generator=torch.Generator().manual_seed(0))
    return tokens[:, :-1], tokens[:, 1:]


def whole_transformers():
    """Each rank has its tokens, and their positions; the mean over ranks of its mean loss is the loss."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tried = 0
    for order, kind, dtype in (
        ("contiguous", "rotary", torch.double),
        ("zigzag", "rotary", torch.double),
        ("zigzag", "learned", torch.double),
        ("zigzag", "rotary", torch.float32),
    ):
        x, y = text()
        plain = Transformer(config(positions=kind)).double()
        loss = plain.loss(x, y)
        loss.backward()
        model = Transformer(config(positions=kind)).to(dtype)
        for block in model.blocks:
            block.attention.core = RingAttentionCore(order=order)
        places = positions(24, rank, size, order)
        logits = model(shard(x, order=order), places)
        mine = F.cross_entropy(logits.flatten(0, 1), shard(y, order=order).flatten()) / size
        mine.backward()
        total = mine.detach().double()
        for p in (*model.parameters(),):
            dist.all_reduce(p.grad)
        dist.all_reduce(total)
        compare(gradients_of(model), gradients_of(plain), LIMIT[dtype], f"{order} {kind}", norm=2)
        assert total.item() == pytest.approx(loss.item(), rel=LIMIT[dtype])
        # A part that would fit of a sequence that does not: rotary positions would turn by any angle, in silence.
        with pytest.raises(
            ValueError, match=r"^a sequence of 48 tokens.* longest is max_length=24$"
        ):
            longer = torch.zeros(1, 48, dtype=torch.long)
            model(shard(longer, order=order), positions(48, rank, size, order))
        tried += 1
    return tried


@pytest.mark.parametrize(
    "world_size", [1, 3, *taking_turns(2, 4, about="dtcourse/sequence_parallel/")]
)
def test_a_transformer_with_its_attention_replaced_has_one_processs_gradients(world_size):
    assert [*launch(whole_transformers, world_size)] == [4] * world_size


def wrong_offset():
    """Broken on purpose: each rank takes its block's own diagonal for the sequence's, as if it were alone."""
    q, k, v, _ = (shard(x, 2) for x in whole(K=4, V=6))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return unshard(out, 2)


def test_the_comparison_sees_a_causal_mask_with_the_wrong_offset():
    right = truth(*whole(K=4, V=6), causal=True)["out"]
    found = launch(wrong_offset, 2)[0]
    assert torch.allclose(found[:, :, :12], right[:, :, :12])
    assert not torch.allclose(found[:, :, 12:], right[:, :, 12:], atol=0.1)


# --- what is sent, computed, kept, and in which order -------------------------------------------------------------


def costs():
    """Bytes, messages and FLOPs of forward and backward, in each order, causal or not."""
    found = {}
    for order, causal in product(("contiguous", "zigzag"), (False, True)):
        q, k, v, grad = (shard(x, 2, order=order) for x in whole(V=6, dtype=torch.float32))
        for x in (q, k, v):
            x.requires_grad_()
        row = []
        with traffic.counting() as counted:
            with FlopCounterMode(display=False) as flops:
                out = ring_attention(q, k, v, causal=causal, order=order)
            row.append((counted.bytes_sent(), counted.messages_sent(), flops.get_total_flops()))
            with FlopCounterMode(display=False) as flops:
                out.backward(grad)
            row.append(
                (
                    counted.bytes_sent(phase="backward"),
                    counted.messages_sent(phase="backward"),
                    flops.get_total_flops(),
                )
            )
            assert counted.operations == ["ring_attention"]
        found[order, causal] = row
    return found


@pytest.mark.parametrize("p", [1, 3, *taking_turns(2, 4, about="dtcourse/sequence_parallel/")])
def test_bytes_and_operations_are_the_formulas(p):
    B, H, K, S, E = 2, 4, 2, 24, 6
    n = 4 * B * K * S // p * 2 * E
    for rank, found in enumerate(launch(costs, p)):
        for (order, causal), (forward, backward) in found.items():
            assert forward[:2] == ((p - 1) * n, 2 * (p - 1))
            assert backward[:2] == (2 * (p - 1) * n, 4 * (p - 1))
            if order == "contiguous":
                pairs = ((rank + 1) if causal else p) * (S // p) ** 2
            else:  # a rank has two chunks. Of its own four pairs it computes three, of each other rank's, two
                pairs = (3 + 2 * (p - 1) if causal else 4 * p) * (S // p // 2) ** 2
            # Fully masked blocks are left out; a block on the diagonal counts whole.
            assert forward[2] == 2 * 2 * B * H * pairs * E
            assert backward[2] == 5 * 2 * B * H * pairs * E


def documents_costs():
    q, k, v, _ = (shard(x, 2) for x in whole(B=1, H=1, K=1, V=6))
    ids = shard(torch.tensor([[0] * 8 + [1] * 12 + [-1] * 4]))
    with FlopCounterMode(display=False) as flops:
        ring_attention(q, k, v, documents=ids)
    return flops.get_total_flops()


def test_documents_that_do_not_meet_cost_nothing():
    # Ranks hold 6 tokens each: six of document 0; two of it and four of 1; six of 1; two of it and padding.
    pairs = [6 * 8, 2 * 8 + 4 * 12, 6 * 12, 2 * 12]
    assert [*launch(documents_costs, 4)] == [2 * 2 * 6 * n for n in pairs]


def blocks_alive():
    """How many received blocks are alive at once, and how many of them are keys and values."""
    import weakref

    alive, most = weakref.WeakSet(), [0]
    irecv = p2p.irecv

    def watched(tensor, *args, **kwargs):
        alive.add(tensor)
        most[0] = max(most[0], len(alive))
        return irecv(tensor, *args, **kwargs)

    p2p.irecv = watched
    q, k, v, grad = (shard(x, 2) for x in whole())
    for x in (q, k, v):
        x.requires_grad_()
    out = ring_attention(q, k, v)
    forward = most[0]
    assert not alive, "none is kept for backward"
    out.backward(grad)
    return forward, most[0], len(alive)


def test_at_most_two_blocks_of_keys_and_values_are_alive():
    for forward, backward, after in launch(blocks_alive, 4):
        assert forward == 2 * 2, "two blocks, K and V"
        assert backward == 2 * 2 + 2 * 2, (
            "and what is added up of their gradients: one that came, one that comes"
        )
        assert after <= 2, "what came home last may be the gradients themselves"


def attend():
    q, k, v, grad = (shard(x, 2) for x in whole())
    for x in (q, k, v):
        x.requires_grad_()
    ring_attention(q, k, v).backward(grad)


def test_the_next_block_is_on_its_way_before_this_one_is_computed():
    p = 4
    run = launch(attend, p, record=True)
    n = 8 * 2 * 2 * 6 * (6 + 5)
    assert all(run.traffic.bytes_sent(rank=r, phase="forward") == (p - 1) * n for r in range(p))
    assert all(
        run.traffic.bytes_sent(rank=r, phase="backward") == 2 * (p - 1) * n for r in range(p)
    )
    # Sends in the order in which they were posted. Backward: K, V; then, after each block, K, V of the next one before
    # it is computed and dK, dV of this one after it.
    blocks = {"attend": [0, 2, 4], "attend backward": [6, 8, 12]}
    gradients = [10, 14, 16]
    for rank in range(p):
        sent, received = ([*run.timeline.of(rank=rank, name=name)] for name in ("send", "recv"))
        assert len(sent) == len(received) == 18
        for name, places in blocks.items():
            computed = [*run.timeline.of(rank=rank, name=name)]
            assert [e.detail["block"] for e in computed] == [(rank - s) % p for s in range(p)]
            for step, first in enumerate(places):
                # K and V of the next block: posted before this one is computed, there before the next one is.
                for message in (*sent[first : first + 2], *received[first : first + 2]):
                    assert message.start <= computed[step].start
                for message in received[first : first + 2]:
                    assert message.end <= computed[step + 1].start
        for step, first in enumerate(gradients, start=1):
            for message in sent[first : first + 2]:
                assert computed[step].end <= message.start, "made first"
                if step + 1 < p:
                    assert message.start <= computed[step + 1].start, "and sent at once"


# --- time, on an emulated cluster ---------------------------------------------------------------------------------


def seconds(order, causal):
    q, k, v, grad = (shard(x, 2, order=order) for x in whole(V=6, dtype=torch.float32))
    for x in (q, k, v):
        x.requires_grad_()
    dist.barrier()
    start = emulation.now()
    out = ring_attention(q, k, v, causal=causal, order=order)
    middle = emulation.now()
    dist.barrier()
    again = emulation.now()
    out.backward(grad)
    return middle - start, emulation.now() - again


def test_a_transfer_is_hidden_where_the_block_takes_longer_to_compute():
    p, B, H, K, S, E, latency = 4, 2, 4, 2, 24, 6, 1e-6
    n, pairs = 4 * B * K * S // p * 2 * E, (S // p) ** 2
    flops = 1e9
    block = 2 * 2 * B * H * pairs * E / flops
    for bandwidth in (1e10, 1e8, 2e7):
        network = EmulatedNetwork(latency=latency, bandwidth=bandwidth)
        transfer = latency + n / bandwidth
        run = launch(
            seconds, p, "contiguous", False, devices=EmulatedDevice(flops), network=network
        )
        forward = (p - 1) * max(block, transfer) + block
        assert [f for f, _ in run] == [pytest.approx(forward, rel=1e-9)] * p
        if bandwidth == 1e10:
            assert transfer < block, "all of it is hidden"
            # The gradients' last transfer, home, has nothing left to hide behind.
            backward = p * 2.5 * block + transfer
            assert [b for _, b in run] == [pytest.approx(backward, rel=1e-9)] * p


def test_zigzag_shortens_a_causal_step_as_counted():
    p, B, H, S, E, flops = 4, 2, 4, 24, 6, 1e9
    fast = EmulatedNetwork(latency=0.0, bandwidth=1e15)
    block = 2 * 2 * B * H * (S // p) ** 2 * E / flops
    found = {
        order: max(f for f, _ in launch(seconds, p, order, True, devices=EmulatedDevice(flops), network=fast))
        for order in ("contiguous", "zigzag")
    }  # fmt: skip
    assert found["contiguous"] == pytest.approx(p * block, rel=1e-6), (
        "the last rank computes p blocks"
    )
    assert found["zigzag"] == pytest.approx((3 + 2 * (p - 1)) / 4 * block, rel=1e-6)


# --- mistakes -----------------------------------------------------------------------------------------------------


def mistakes():
    said = {}
    q, k, v, _ = whole()
    cases = {
        "split": lambda: shard(q, 2),
        "zigzag": lambda: shard(q[:, :, :15], 2, order="zigzag"),
        "order": lambda: shard(q, 2, order="striped"),
        "odd": lambda: ring_attention(q[:, :, :5], k[:, :, :5], v[:, :, :5], order="zigzag"),
        "heads": lambda: ring_attention(q[:, :3], k, v),
        "tokens": lambda: ring_attention(q[:, :, :5], k, v),
        "dims": lambda: ring_attention(q[0], k[0], v[0]),
        "dtype": lambda: ring_attention(q.float(), k, v),
        "documents": lambda: ring_attention(q, k, v, documents=torch.zeros(24)),
        "tile": lambda: ring_attention(q, k, v, block_q=0),
    }
    for name, case in cases.items():
        with pytest.raises(ValueError, match=r".") as caught:
            case()
        said[name] = str(caught.value)
    return said


def test_mistakes_are_answered_with_the_numbers():
    said = launch(mistakes, 5)[0]
    assert "24 tokens cannot be split over 5 ranks" in said["split"]
    assert "20 or 25 tokens would do" in said["split"]
    assert "needs 10 equal chunks; 10 or 20 tokens would do" in said["zigzag"]
    assert "striped" in said["order"]
    assert "2 equal chunks" in said["odd"]
    assert "(2, 3, 24, 6)" in said["heads"]
    assert "as many" in said["tokens"]
    assert "(4, 24, 6)" in said["dims"]
    assert "torch.float32, torch.float64" in said["dtype"]
    assert "(2, 24) here; got (24,)" in said["documents"]
    assert "block_q=0" in said["tile"]


# --- PyTorch's own, where it runs ---------------------------------------------------------------------------------


def against_context_parallel():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel

    here = device.current()
    mesh = init_device_mesh(here.type, (dist.get_world_size(),))
    tensors = [x.to(here) for x in whole(H=4, K=4, E=16, V=16, S=256, dtype=torch.bfloat16)]
    ours = on_ring(tensors, "zigzag", causal=True)
    q, k, v, grad = (x.clone() for x in tensors)
    with context_parallel(mesh, buffers=[q, k, v, grad], buffer_seq_dims=[2] * 4):
        for x in (q, k, v):
            x.requires_grad_()
        F.scaled_dot_product_attention(q, k, v, is_causal=True).backward(grad)
        theirs = {"q": q.grad, "k": k.grad, "v": v.grad}
        theirs = {name: unshard(x, 2, order="zigzag") for name, x in theirs.items()}
    return compare({name: ours[name] for name in theirs}, theirs, 2e-2, norm=2)


@pytest.mark.gpu
def test_gradients_equal_pytorchs_context_parallel():
    launch(against_context_parallel, max(1, torch.cuda.device_count()))
