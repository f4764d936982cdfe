"""The mean of all ranks' vectors, compressed, by four schemes; and error feedback, which sends later what was left out.

What can be added is added on the way, by any all-reduce:

    ALL_REDUCE      all_reduce of the payloads                              as that all-reduce, of payload bytes

What cannot is decompressed where it is added. Either a rank adds a part of everyone's, and what it has added is
compressed once more for its way back (1-bit Adam, Tang et al. 2102.02888); or everyone's payloads come to everyone:

    REDUCE_SCATTER  all_to_all of parts, sum, compress again, all_gather    2 (p - 1) c(n / p) sent by each rank
    ALL_GATHER      all_gather of whole payloads                            (p - 1) c(n): it grows with p
    ALL_GATHERV     the same, of lengths, then of payloads that differ      (p - 1) (8 + the longest payload)

c(n) is compressor.nbytes(n), p the ranks, all_gather as a ring. fp32's ring sends 2 (p - 1)/p 4 n: eight bits gathered
by everyone cost as much at p = 8.

`average` does it at once. `begin` compresses and returns the function that does the rest, so that the rest can go on
beside backward (background.py).

Error feedback (Seide et al. 2014; Karimireddy et al. 1901.09847): what a compression has left out of a vector is kept,
and added to the next one. So nothing is lost, it is only late. REDUCE_SCATTER leaves out twice, and keeps both. A
vector with NaN or infinity in it comes out as such on every rank, so that the step can be skipped; what is kept stays
as it was before that step, on every rank.

Memory with error feedback: n numbers, and n / p more for REDUCE_SCATTER.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from dtcourse.compression.compressor import (
    ALL_GATHER,
    ALL_GATHERV,
    ALL_REDUCE,
    REDUCE_SCATTER,
    Compressor,
    Payload,
    Residuals,
    Rounds,
    from_bytes,
    require_contraction,
    to_bytes,
)
from dtcourse.compression.wire.exchange import all_gather, all_to_all
from dtcourse.parameters.replicas import Group


def average(
    x: Tensor,
    compressor: Compressor | Rounds,
    group: Group = None,
    residuals: Residuals | None = None,
) -> Tensor:
    """The mean over the group's ranks of x, (n,) of compressor.takes, as the compressor lets it through.
    The same on every rank.

    residuals: kept from call to call for error feedback, and changed; None: without

    Raises ValueError for what is no vector of that dtype, and for residuals with a compressor that is no contraction.
    """
    return begin(x, compressor, group, residuals)()


def begin(
    x: Tensor,
    compressor: Compressor | Rounds,
    group: Group = None,
    residuals: Residuals | None = None,
) -> Callable[[], Tensor]:
    """`average` in two: x is compressed now, and the function that it returns sends, waits and returns the mean.

    What travels as a sum has no second message, and is sent now.
    """
    if x.dim() != 1 or x.dtype != compressor.takes:
        takes = str(compressor.takes).removeprefix("torch.")
        raise ValueError(
            f"compression takes a vector of {takes}; got {tuple(x.shape)} of {x.dtype}"
        )
    if residuals is not None:
        in_parts = isinstance(compressor, Compressor) and compressor.scheme == REDUCE_SCATTER
        require_contraction(
            compressor, -(-len(x) // dist.get_world_size(group)) if in_parts else len(x)
        )
    if isinstance(compressor, Rounds):
        return compressor.begin(x, group, residuals)
    if compressor.scheme == ALL_REDUCE:
        return _added(x, compressor, group, residuals)
    if compressor.scheme == ALL_GATHER:
        return _gathered(x, compressor, group, residuals)
    if compressor.scheme == ALL_GATHERV:
        return _gathered_by_length(x, compressor, group, residuals)
    return _by_parts(x, compressor, group, residuals)


# --- the four schemes --------------------------------------------------------------------------------------------


def _added(
    x: Tensor, compressor: Compressor, group: Group, residuals: Residuals | None
) -> Callable[[], Tensor]:
    # Divided first: the sum of many ranks' float16 numbers may have no float16.
    p = dist.get_world_size(group)
    left: Tensor | None = None
    if residuals is None:
        payload = compressor.compress_share(x, p)
    else:
        payload, left = _compressed(x / p, compressor, residuals)
    # No message follows from another here, so all leave at once, in the order of the program.
    sent = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in payload.wire]

    def finish() -> Tensor:
        for work in sent:
            work.wait()
        return _keeping(compressor.decompress(payload), left, residuals)

    return finish


def _gathered(
    x: Tensor, compressor: Compressor, group: Group, residuals: Residuals | None
) -> Callable[[], Tensor]:
    payload, left = _compressed(x, compressor, residuals)
    message, n = to_bytes(payload), len(x)

    def finish() -> Tensor:
        messages = all_gather(message, group)
        mean = _mean([from_bytes(each, compressor, n) for each in messages], compressor)
        return _keeping(mean, left, residuals)

    return finish


def _gathered_by_length(
    x: Tensor, compressor: Compressor, group: Group, residuals: Residuals | None
) -> Callable[[], Tensor]:
    payload, left = _compressed(x, compressor, residuals)
    message, n = to_bytes(payload), len(x)

    def finish() -> Tensor:
        length = torch.tensor([len(message)], device=message.device)
        lengths = all_gather(length, group).flatten().tolist()
        # An all-gather takes as much from each: what is shorter is filled up.
        filled = torch.nn.functional.pad(message, (0, max(lengths) - len(message)))
        messages = zip(all_gather(filled, group), lengths, strict=True)
        payloads = [from_bytes(m[:nbytes], compressor, n) for m, nbytes in messages]
        return _keeping(_mean(payloads, compressor), left, residuals)

    return finish


def _by_parts(
    x: Tensor, compressor: Compressor, group: Group, residuals: Residuals | None
) -> Callable[[], Tensor]:
    p, n = dist.get_world_size(group), len(x)
    size = -(-n // p)
    x = x if residuals is None or residuals.own is None else x + residuals.own
    padded = torch.nn.functional.pad(x, (0, size * p - n))
    payloads = [compressor.compress(part) for part in padded.split(size)] if n else []
    left: Tensor | None = None
    if residuals is not None:
        left = x - _one_behind_the_other(payloads, compressor, size, x)[:n]
    sent = [to_bytes(payload) for payload in payloads]

    def finish() -> Tensor:
        if not n:
            return _keeping(padded, left, residuals)
        # 1. Every rank gets everyone's numbers of its part ...
        came = all_to_all(torch.stack(sent), group)
        # 2. ... adds them ...
        mine = _mean([from_bytes(message, compressor, size) for message in came], compressor)
        # 3. ... and sends their mean to everyone, compressed as well.
        back = compressor.second_stage()
        if residuals is not None and residuals.part is not None:
            mine = mine + residuals.part
        payload = back.compress(mine)
        left_of_part = None if residuals is None else mine - back.decompress(payload)
        messages = all_gather(to_bytes(payload), group)
        parts = [from_bytes(message, back, size) for message in messages]
        mean = _one_behind_the_other(parts, back, size, x)[:n]
        return _keeping(mean, left, residuals, left_of_part)

    return finish


def _compressed(
    x: Tensor, compressor: Compressor, residuals: Residuals | None
) -> tuple[Payload, Tensor | None]:
    """x and what was left out before it, compressed; and what is left out of them now, with error feedback."""
    x = x if residuals is None or residuals.own is None else x + residuals.own
    payload = compressor.compress(x)
    return payload, None if residuals is None else x - compressor.decompress(payload)


def _keeping(
    mean: Tensor,
    left: Tensor | None,
    residuals: Residuals | None,
    left_of_part: Tensor | None = None,
) -> Tensor:
    """The mean; what has been left out is kept, where there is error feedback and the mean is finite."""
    if residuals is not None and left is not None:
        residuals.keep(mean, left, left_of_part)
    return mean


def _mean(payloads: list[Payload], compressor: Compressor) -> Tensor:
    """One after the other, so that one decompressed vector is alive beside the sum."""
    total = compressor.decompress(payloads[0])
    for payload in payloads[1:]:
        total += compressor.decompress(payload)
    return total / len(payloads)


def _one_behind_the_other(
    payloads: list[Payload], compressor: Compressor, size: int, like: Tensor
) -> Tensor:
    """The vectors, (size,) each, that payloads stand for, as one, (size of them all,)."""
    whole = like.new_empty(size * len(payloads))
    for number, payload in enumerate(payloads):
        compressor.decompress_into(payload, whole[number * size : (number + 1) * size])
    return whole
