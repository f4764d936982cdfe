"""Integers, block by block: against the same written with whole blocks,
where blocks and pieces of the cache do not fit."""

from __future__ import annotations

import pytest
import torch

from dtcourse.compression import QSGD, IntegerQuantizer, TernGrad, TopK
from dtcourse.compression.quantized.integers import PIECE, pack, pieces, unpack

# Shorter than a piece and longer; several to a piece, with and without numbers over; one for all.
BLOCKS = [50, 4096, 65_536, PIECE - 1, PIECE, PIECE + 1, 1 << 40]
ALL_GATHERV = [0, 1, 4096, PIECE, 3 * PIECE + 77]


def vector(n: int) -> torch.Tensor:
    x = torch.randn(n, generator=torch.Generator().manual_seed(n))
    return x * torch.linspace(0.1, 10, n)  # blocks of different scales


def reference(x: torch.Tensor, block: int, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales, and the codes as floats."""
    scales = [b.abs().max() / most for b in x.split(block)] if len(x) else []
    codes = [(b / s).round() for b, s in zip(x.split(block), scales, strict=False)]
    return torch.tensor(scales), torch.cat([*codes, x[:0]])


@pytest.mark.parametrize("n", ALL_GATHERV)
@pytest.mark.parametrize("block", BLOCKS)
def test_scales_and_codes_are_those_of_whole_blocks(block, n):
    x = vector(n)
    quantizer = IntegerQuantizer(8, block=block)
    payload = quantizer.compress(x)
    scales, codes = reference(x, block, 127)
    torch.testing.assert_close(payload.wire[0], scales, rtol=0, atol=0)
    torch.testing.assert_close(payload.wire[1].view(torch.int8).float(), codes, rtol=0, atol=0)
    each = scales.repeat_interleave(min(block, max(n, 1)))[:n]
    torch.testing.assert_close(quantizer.decompress(payload), codes * each, rtol=0, atol=0)


@pytest.mark.parametrize("block", BLOCKS)
def test_chance_keeps_within_a_step_and_to_no_side(block):
    n = 3 * PIECE + 77
    x = vector(n)
    payload = IntegerQuantizer(8, block=block, stochastic=True).compress(x)
    scales, codes = payload.wire[0], payload.wire[1].view(torch.int8).double()
    off = codes - x.double() / scales.repeat_interleave(min(block, n))[:n]
    assert off.abs().max() <= 1 + 1e-4
    # The mean error of n numbers rounded by chance: of deviation at most 1/2 each, five times its own.
    assert off.mean().abs() <= 5 * 0.5 / n**0.5


@pytest.mark.parametrize("block", [50, 4096, PIECE + 1])
def test_what_is_not_finite_spoils_its_own_block_and_no_other(block):
    x = vector(3 * PIECE + 77)
    x[2 * block + 3] = torch.inf
    y = (q := IntegerQuantizer(8, block=block)).decompress(q.compress(x))
    bad = torch.zeros(len(x), dtype=torch.bool)
    bad[2 * block : 3 * block] = True
    assert torch.equal(y.isnan(), bad)


@pytest.mark.parametrize("n", ALL_GATHERV)
@pytest.mark.parametrize("block", BLOCKS)
def test_pieces_are_all_numbers_in_order_and_small_enough_for_the_cache(block, n):
    at = 0
    for numbers, blocks in pieces(torch.empty(n), block):
        assert numbers.start == at and 0 < numbers.stop - at <= PIECE
        assert numbers.start // block == blocks.start
        assert (numbers.stop - 1) // block == blocks.stop - 1
        assert (numbers.stop - at) % (blocks.stop - blocks.start) == 0
        at = numbers.stop
    assert at == n


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_every_byte_is_unpacked_to_codes_that_pack_to_it(bits):
    packed = torch.arange(256).repeat(PIECE // 128).to(torch.uint8)  # more than a piece
    codes = unpack(packed, bits, len(packed) * 8 // bits)
    assert codes.min() == -(2 ** (bits - 1)) and codes.max() == 2 ** (bits - 1) - 1
    assert torch.equal(pack(codes, bits), packed)
    # The first code is in the lowest bits.
    assert unpack(torch.tensor([1], dtype=torch.uint8), bits, 1).tolist() == [1]


@pytest.mark.parametrize(
    "make", [IntegerQuantizer, lambda: IntegerQuantizer(4), QSGD, TernGrad, TopK]
)
def test_decompressed_into_memory_that_is_there(make):
    method, x = make(), vector(70_001)
    payload = method.compress(x)
    room = torch.full((80_000,), 9.0)
    out = method.decompress_into(payload, room[:70_001])
    assert out.data_ptr() == room.data_ptr()
    assert torch.equal(out, method.decompress(payload))
    assert (room[70_001:] == 9).all()
