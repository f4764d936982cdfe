"""The mean of all ranks' vectors, compressed on each of its ways; and error feedback, which sends later what was left out.

What can be added is added on the way, by any all-reduce:

    SUM        all_reduce of the payloads                              as that all-reduce, of payload bytes

What cannot is decompressed where it is added. Either a rank adds a part of everyone's, and what it has added is compressed
once more for its way back (1-bit Adam, Tang et al. 2102.02888); or everyone's payloads come to everyone:

    PARTS      all_to_all of parts, sum, compress again, all_gather    2 (p - 1) c(n / p) sent by each rank
    EVERYONE   all_gather of whole payloads                            (p - 1) c(n): it grows with p

c(n) is compressor.nbytes(n), p the ranks, all_gather as a ring. fp32's ring sends 2 (p - 1)/p 4 n: eight bits gathered by
everyone cost as much at p = 8.

Error feedback (Seide et al. 2014; Karimireddy et al. 1901.09847): what a compression has left out of a vector is kept, and
added to the next one. So nothing is lost, it is only late. PARTS leaves out twice, and keeps both.

Memory with error feedback: n numbers, and n / p more for PARTS.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from dtcourse.compression.compressor import (
    EVERYONE,
    SUM,
    Compressor,
    Payload,
    from_bytes,
    to_bytes,
)
from dtcourse.parameters.replicas import Group
from dtcourse.torch_private import all_gather_single


@dataclass
class Residuals:
    """What has been left out so far: of this rank's vector (n,), and of the part of the sum that it compresses again."""

    own: Tensor | None = None
    part: Tensor | None = None


def average(
    x: Tensor, compressor: Compressor, group: Group = None, residuals: Residuals | None = None
) -> Tensor:
    """The mean over the group's ranks of x, (n,) of float32, as the compressor lets it through. The same on every rank.

    residuals: kept from call to call for error feedback, and changed; None: without

    Raises ValueError for what is no vector of float32.
    """
    if x.dim() != 1 or x.dtype != torch.float32:
        raise ValueError(
            f"compression takes a vector of float32; got {tuple(x.shape)} of {x.dtype}"
        )
    if compressor.way == SUM:
        return _added(x, compressor, group, residuals)
    if compressor.way == EVERYONE:
        return _gathered(x, compressor, group, residuals)
    return _by_parts(x, compressor, group, residuals)


# --- the three ways ----------------------------------------------------------------------------------------------


def _added(x: Tensor, compressor: Compressor, group: Group, residuals: Residuals | None) -> Tensor:
    # Divided first: the sum of many ranks' float16 numbers may have no float16.
    payload = _compressed(x / dist.get_world_size(group), compressor, residuals)
    for tensor in payload.wire:
        dist.all_reduce(tensor, group=group)
    return compressor.decompress(payload)


def _gathered(
    x: Tensor, compressor: Compressor, group: Group, residuals: Residuals | None
) -> Tensor:
    payload = _compressed(x, compressor, residuals)
    messages = _all_gather(to_bytes(payload), group)
    return _mean([from_bytes(message, compressor, len(x)) for message in messages], compressor)


def _by_parts(
    x: Tensor, compressor: Compressor, group: Group, residuals: Residuals | None
) -> Tensor:
    p, n = dist.get_world_size(group), len(x)
    size = -(-n // p)
    x = x if residuals is None or residuals.own is None else x + residuals.own
    padded = torch.nn.functional.pad(x, (0, size * p - n))
    # 1. Every rank gets everyone's numbers of its part ...
    payloads = [compressor.compress(part) for part in padded.split(size)]
    if residuals is not None:
        residuals.own = x - torch.cat([compressor.decompress(one) for one in payloads])[:n]
    sent = torch.stack([to_bytes(payload) for payload in payloads])
    came = torch.empty_like(sent)
    dist.all_to_all_single(came, sent, group=group)
    # 2. ... adds them ...
    mine = _mean([from_bytes(message, compressor, size) for message in came], compressor)
    # 3. ... and sends their mean to everyone, compressed as well.
    if residuals is not None and residuals.part is not None:
        mine = mine + residuals.part
    payload = compressor.compress(mine)
    if residuals is not None:
        residuals.part = mine - compressor.decompress(payload)
    messages = _all_gather(to_bytes(payload), group)
    parts = [compressor.decompress(from_bytes(each, compressor, size)) for each in messages]
    return torch.cat(parts)[:n]


def _compressed(x: Tensor, compressor: Compressor, residuals: Residuals | None) -> Payload:
    """x and what was left out before it; what is left out of them now is kept."""
    x = x if residuals is None or residuals.own is None else x + residuals.own
    payload = compressor.compress(x)
    if residuals is not None:
        residuals.own = x - compressor.decompress(payload)
    return payload


def _all_gather(message: Tensor, group: Group) -> Tensor:
    """(p, nbytes): everyone's message."""
    p = dist.get_world_size(group)
    everyone = message.new_empty(p * len(message))
    all_gather_single(everyone, message, group=group)
    return everyone.view(p, -1)


def _mean(payloads: list[Payload], compressor: Compressor) -> Tensor:
    """One after the other, so that one decompressed vector is alive beside the sum."""
    total = compressor.decompress(payloads[0])
    for payload in payloads[1:]:
        total += compressor.decompress(payload)
    return total / len(payloads)
