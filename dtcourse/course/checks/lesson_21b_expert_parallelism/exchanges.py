"""The layer of exercise 21b-2, which is really run under emulation: experts on ranks of two nodes, rows in chunks."""

from __future__ import annotations

import torch
from torch import Tensor

from dtcourse.course.judging import trials

NODES, PLACES, WIDTH = 2, 2, 8  # nodes, ranks of each, numbers of a row
RANKS = NODES * PLACES


def step(choice: trials.Choice, rows: int, hidden: int) -> tuple[float]:
    """On each rank: the seconds of a layer's forward, of `rows` rows for each rank."""
    seconds, _ = computed(choice, rows, hidden)
    return (seconds,)


def computed(choice: trials.Choice, rows: int, hidden: int) -> tuple[float, Tensor]:
    """On each rank: seconds, and what came back for its rows, (ranks, rows, width)."""
    import torch.distributed as dist

    from dtcourse import emulation

    make = torch.Generator().manual_seed(dist.get_rank())
    x = torch.randn(RANKS, rows, WIDTH, generator=make)
    up, down = (torch.randn(s, generator=make) for s in ((WIDTH, hidden), (hidden, WIDTH)))
    way, parts = choice
    send = AtOnce if way == "at once" else TwoSteps
    chunks = x.chunk(parts, 1)
    start = trials.begin_together()
    moving, back = send(chunks[0], 0), []
    for i in range(parts):
        arrived = moving.wait()
        if i + 1 < parts:
            # Posted before this chunk is computed.
            moving = send(chunks[i + 1], i + 1)
        y = (arrived.flatten(0, 1) @ up).relu_() @ down
        back.append(send(y.view_as(arrived), parts + i))
    outputs = [one.wait() for one in back]
    return emulation.now() - start, torch.cat(outputs, 1)


class AtOnce:
    """All-to-all of blocks, (ranks, ...), every message posted together, those to the other node first."""

    def __init__(self, blocks: Tensor, tag: int) -> None:
        import torch.distributed as dist

        node, place = divmod(dist.get_rank(), PLACES)
        order = [
            (node + m) % NODES * PLACES + (place + s) % PLACES
            for m in (1, 0)
            for s in range(PLACES)
        ]
        self.moving = Posted(blocks, order, order, tag)

    def wait(self) -> Tensor:
        return self.moving.wait()


class TwoSteps:
    """The same: first within the node, by place in the other node, then one message to the rank there at this place."""

    def __init__(self, blocks: Tensor, tag: int) -> None:
        import torch.distributed as dist

        node, place = divmod(dist.get_rank(), PLACES)
        by_place = blocks.unflatten(0, (NODES, PLACES)).transpose(0, 1).contiguous()
        order = [(place + s) % PLACES for s in range(PLACES)]
        inside = Posted(by_place, order, [node * PLACES + s for s in order], tag).wait()
        by_node = inside.transpose(0, 1).contiguous()
        self.moving = Posted(
            by_node, list(range(NODES)), [m * PLACES + place for m in range(NODES)], tag
        )

    def wait(self) -> Tensor:
        return self.moving.wait().flatten(0, 1)


class Posted:
    """Messages to ranks and as many from them, all posted. Block `places[i]` is for, and comes from, `ranks[i]`."""

    def __init__(self, blocks: Tensor, places: list[int], ranks: list[int], tag: int) -> None:
        import torch.distributed as dist

        from dtcourse.collectives import p2p

        me = dist.get_rank()
        self.sent, self.arrived = blocks.contiguous(), blocks.clone()
        others = [(at, r) for at, r in zip(places, ranks, strict=True) if r != me]
        self.works = [p2p.irecv(self.arrived[at], r, tag=tag) for at, r in others]
        self.works += [p2p.isend(self.sent[at], r, tag=tag) for at, r in others]

    def wait(self) -> Tensor:
        for work in self.works:
            work.wait()
        return self.arrived
