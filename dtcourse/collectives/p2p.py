"""Send and receive: the only place where a message leaves a rank.

Every algorithm of this package is built on the functions below, and on nothing else. So what a collective costs
is counted here (`traffic`), what it did is recorded here (`events`), and an emulated link is slow here (`network`):
wire/observers.py.

Ranks are *group ranks*: 0 .. size(group) - 1, whatever the ranks are in the default group.
`group=None` is the default group. A group may be one of torch's or one of ours (`launch(fn, 4, backend="ring")`).

A message has to be received, by one of these functions, into a tensor of the same dtype and number of elements;
otherwise the two ends wait for each other. Tensors must be contiguous (rows of a matrix are; a column is not).

    work = p2p.isend(x, dst=1)             # returns at once; x must not change before work.wait()
    work = p2p.irecv(y, src=0)             # returns at once; y holds the message after work.wait()
    p2p.exchange(x, right, y, left)        # send and receive at the same time: what a ring does in each step
    with p2p.batch():                      # what is posted inside starts together: NCCL needs it (wire/transport.py)
    index = p2p.wait_any([work, other])    # whichever is over first: what a parameter server asks (wire/arrivals.py)

`with p2p.operation("all_reduce"):` (also a decorator) names what the messages inside belong to, for the counters.
"""

from __future__ import annotations

import weakref

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, Work

from dtcourse import torch_private
from dtcourse.collectives.traffic import operation
from dtcourse.collectives.wire.arrivals import wait_any
from dtcourse.collectives.wire.channel import Channel
from dtcourse.collectives.wire.transport import Batch

__all__ = [
    "batch",
    "exchange",
    "in_batches",
    "irecv",
    "isend",
    "operation",
    "rank",
    "recv",
    "send",
    "size",
    "wait_any",
]


def rank(group: ProcessGroup | None = None) -> int:
    """This process's rank in `group`, from 0."""
    return channel(group).rank


def size(group: ProcessGroup | None = None) -> int:
    """Number of ranks in `group`."""
    return channel(group).size


def isend(tensor: torch.Tensor, dst: int, group: ProcessGroup | None = None, tag: int = 0) -> Work:
    """Start sending `tensor` to group rank `dst`. The tensor must stay unchanged until `wait()` returns."""
    return channel(group).isend(tensor, dst, tag)


def irecv(tensor: torch.Tensor, src: int, group: ProcessGroup | None = None, tag: int = 0) -> Work:
    """Start receiving from group rank `src` into `tensor`, which holds the message after `wait()`."""
    return channel(group).irecv(tensor, src, tag)


def send(tensor: torch.Tensor, dst: int, group: ProcessGroup | None = None, tag: int = 0) -> None:
    """Send `tensor` to group rank `dst` and wait until it may be changed again."""
    isend(tensor, dst, group, tag).wait()


def recv(tensor: torch.Tensor, src: int, group: ProcessGroup | None = None, tag: int = 0) -> None:
    """Receive from group rank `src` into `tensor`."""
    irecv(tensor, src, group, tag).wait()


def batch(group: ProcessGroup | None = None) -> Batch:
    """What is posted on `group` inside starts together when the block ends, as dist.batch_isend_irecv has it.

    Wait after the block. Both ends of a message post it in a batch, or neither does.
    """
    return channel(group).batch()


def in_batches(like: torch.Tensor, group: ProcessGroup | None = None) -> bool:
    """Whether a batch of tensors like this one starts together (NCCL), so that a receive is posted with its send.

    Elsewhere (gloo) each message starts by itself, and a receive may be posted before its turn: then it waits for the
    message, and not the message for it.
    """
    return channel(group).transport.batching(like.device) is not None


def exchange(
    send_tensor: torch.Tensor,
    dst: int,
    recv_tensor: torch.Tensor,
    src: int,
    group: ProcessGroup | None = None,
    tag: int = 0,
) -> None:
    """Send to `dst` and receive from `src` at the same time; they may be the same rank, and both call this too."""
    with batch(group):
        # Posted first, so that the message finds its buffer.
        receiving = irecv(recv_tensor, src, group, tag)
        sending = isend(send_tensor, dst, group, tag)
    receiving.wait()
    sending.wait()


# Channels of torch's own groups, made when first used. Ours bring theirs.
_channels: weakref.WeakKeyDictionary[ProcessGroup, Channel] = weakref.WeakKeyDictionary()


def channel(group: ProcessGroup | None = None) -> Channel:
    """This rank's end of `group`."""
    if group is None:
        group = dist.group.WORLD
        if group is None:
            raise ValueError(
                "no default process group: call dist.init_process_group, or run under launch"
            )
    own = getattr(group, "channel", None)
    if own is not None:
        return own
    known = _channels.get(group) if isinstance(group, ProcessGroup) else None
    if known is None:
        if not isinstance(group, ProcessGroup):
            raise ValueError(
                f"rank {dist.get_rank()} is not in the group (new_group gave it {group!r}): "
                "only the group's members may take part"
            )
        on_gpu = torch_private.gpu_backend_of(group)
        ranks = dist.get_process_group_ranks(group)
        notes = torch.device("cpu") in torch_private.devices_of(group)
        known = Channel(group, group.rank(), ranks, gpu=on_gpu, carries_notes=notes)
        _channels[group] = known
    return known
