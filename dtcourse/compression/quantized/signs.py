"""One bit a number: its sign, and one scale for all, their mean magnitude.

    y = mean(|x|) * sign(x)

which is the nearest to x of all vectors of that form. The bias is large, so it wants error feedback (Karimireddy et al.
1901.09847); it is what 1-bit Adam sends after its warm-up (Tang et al. 2102.02888). Bytes of n numbers: 4 + ceil(n /
8).
"""

from __future__ import annotations

import torch
from torch import Tensor

from dtcourse.compression.bits import pack_signs, unpack_bits
from dtcourse.compression.compressor import REDUCE_SCATTER, Compressor, Payload


class ScaledSign(Compressor):
    """A number's sign, 0 counted as above zero, and the mean magnitude. NaN and infinity make all of it NaN."""

    scheme = REDUCE_SCATTER

    def layout(self, n: int) -> tuple[tuple[int, torch.dtype], ...]:
        return (1, torch.float32), (-(-n // 8), torch.uint8)

    def compress(self, x: Tensor) -> Payload:
        scale = torch.linalg.vector_norm(x, ord=1, dim=0, keepdim=True) / max(1, len(x))
        scale = torch.where(scale.isfinite(), scale, torch.nan)
        return Payload((scale, pack_signs(x)), len(x))

    def contraction(self, n: int) -> float:
        # |C(x) - x|^2 = |x|^2 - (sum |x_i|)^2 / n, and no sum of magnitudes is below the 2-norm.
        return 1 / max(1, n)

    def decompress(self, payload: Payload) -> Tensor:
        scale, packed = payload.wire
        return unpack_bits(packed, payload.n, unset=scale, is_set=-scale)
