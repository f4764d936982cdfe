"""Send and receive: the only place where a message leaves a rank.

Every algorithm of this package is built on the six functions below, and on nothing else. So what a collective costs
is counted here (`traffic`), what it did is recorded here (`events`), and an emulated link is slow here (`network`).

Ranks are *group ranks*: 0 .. size(group) - 1, whatever the ranks are in the default group.
`group=None` is the default group. A group may be one of torch's or one of ours (`launch(fn, 4, backend="ring")`).

Tensors are sent as they are: a message has to be received into a tensor of the same shape and dtype.
Both must be dense and contiguous (a slice along the first dimension is; a column is not).

    work = p2p.isend(x, dst=1)             # returns at once; x must not change before work.wait()
    work = p2p.irecv(y, src=0)             # returns at once; y holds the message after work.wait()
    p2p.exchange(x, right, y, left)        # send and receive at the same time: what a ring does in each step
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, Work


def rank(group: ProcessGroup | None = None) -> int:
    """This process's rank in `group`, from 0."""
    return _resolve(group).rank()


def size(group: ProcessGroup | None = None) -> int:
    """Number of ranks in `group`."""
    return _resolve(group).size()


def isend(tensor: torch.Tensor, dst: int, group: ProcessGroup | None = None, tag: int = 0) -> Work:
    """Start sending `tensor` to group rank `dst`. The tensor must stay unchanged until `wait()` returns."""
    pg = _resolve(group)
    _check(tensor, dst, pg, "dst")
    return pg.send([tensor], dst, tag)


def irecv(tensor: torch.Tensor, src: int, group: ProcessGroup | None = None, tag: int = 0) -> Work:
    """Start receiving from group rank `src` into `tensor`, which holds the message after `wait()`."""
    pg = _resolve(group)
    _check(tensor, src, pg, "src")
    return pg.recv([tensor], src, tag)


def send(tensor: torch.Tensor, dst: int, group: ProcessGroup | None = None, tag: int = 0) -> None:
    """Send `tensor` to group rank `dst` and wait until it may be changed again."""
    isend(tensor, dst, group, tag).wait()


def recv(tensor: torch.Tensor, src: int, group: ProcessGroup | None = None, tag: int = 0) -> None:
    """Receive from group rank `src` into `tensor`."""
    irecv(tensor, src, group, tag).wait()


def exchange(
    send_tensor: torch.Tensor,
    dst: int,
    recv_tensor: torch.Tensor,
    src: int,
    group: ProcessGroup | None = None,
    tag: int = 0,
) -> None:
    """Send to `dst` and receive from `src` at the same time; `dst` and `src` may be the same rank."""
    sending = isend(send_tensor, dst, group, tag)
    irecv(recv_tensor, src, group, tag).wait()
    sending.wait()


def _resolve(group: ProcessGroup | None) -> ProcessGroup:
    if group is None:
        group = dist.group.WORLD
        if group is None:
            raise ValueError("no default process group: call dist.init_process_group, or run under launch")
    return group


def _check(tensor: torch.Tensor, peer: int, pg: ProcessGroup, role: str) -> None:
    if not 0 <= peer < pg.size() or peer == pg.rank():
        raise ValueError(
            f"{role}={peer} on rank {pg.rank()} of a group of {pg.size()}: "
            f"it must be another rank of the group, 0 to {pg.size() - 1}"
        )
    if not tensor.is_contiguous():
        raise ValueError(
            f"rank {pg.rank()}: a message must be contiguous, got shape {tuple(tensor.shape)} "
            f"with strides {tensor.stride()}; call .contiguous() first"
        )
