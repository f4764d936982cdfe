"""Push and pull: gradients go to whoever sums them, peers and servers, and the sums come back.

Ranks 0 to n - 1 of a group work, the last k serve. byteps.py says which part is whose. A part travels in chunks: its
owner receives one from every worker, adds them in the order of ranks, and sends the sum to all of them, while the next
one comes in.

Bytes of a worker: M + (n - 2) x; of a server: n y; worker 0 besides 40 bytes to each server, which say what is coming.
Memory: what is being summed, a chunk from each worker at a time.
Source: Jiang et al. 2020 (BytePS, OSDI), section 4.1.
"""

# Annotations are objects here, not strings: PyTorch looks at the hook's.

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.distributed import Work

from dtcourse.collectives import p2p
from dtcourse.collectives.chunks import TAG, blocks_of, chunks_of, even_bounds
from dtcourse.collectives.wire.work import CollectiveWork, Worker
from dtcourse.communication_scheduling.byteps import part_bounds, shares
from dtcourse.parameters.replicas import Group

CHUNK_BYTES = 1 << 20
HEADER = 5  # int64 numbers: elements, dtype, elements at the servers, bytes of a chunk, whether to divide
AHEAD = 2  # chunks whose receives are posted at a time
_PUSH, _PULL, _TOLD = TAG + 16, TAG + 17, TAG + 18
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass
class PushPull:
    """The workers' end: the sum, or mean, of all workers' tensors. Ranks 0 to n - 1 of the group work,
    the last k serve.

    server_speed, at_servers: as in `shares`;  chunk_bytes: what travels at a time

    Raises ValueError for a number of servers that leaves no worker.
    """

    num_servers: int
    group: Group = None
    server_speed: float = 1.0
    at_servers: float | None = None
    chunk_bytes: int = CHUNK_BYTES
    _background: Worker = field(default_factory=lambda: Worker("push-pull"), repr=False)

    def __post_init__(self) -> None:
        _num_workers(self.group, self.num_servers)
        if not (isinstance(self.chunk_bytes, int) and self.chunk_bytes >= 8):
            raise ValueError(f"a chunk has 8 bytes or more; got chunk_bytes={self.chunk_bytes!r}")
        shares(self.num_workers, self.num_servers, self.server_speed, self.at_servers)

    @property
    def num_workers(self) -> int:
        """Ranks that have gradients."""
        return p2p.size(self.group) - self.num_servers

    def __call__(self, tensor: torch.Tensor, average: bool = False) -> CollectiveWork:
        """Starts to sum `tensor` over the workers, in place; all workers call it in the same order.

        Returns what to wait for, which has a Future. Raises ValueError for a tensor that cannot travel.
        """
        if tensor.dtype not in _DTYPES or not tensor.is_contiguous():
            raise ValueError(
                f"push-pull takes a contiguous tensor of {', '.join(str(d) for d in _DTYPES)}; got {tensor.dtype} with "
                f"strides {tensor.stride()}"
            )
        if p2p.rank(self.group) >= self.num_workers:
            raise ValueError(
                f"rank {p2p.rank(self.group)} is one of the last "
                f"{self.num_servers}, which serve(): it has nothing to push"
            )
        work = CollectiveWork("push_pull", [tensor])
        return self._background.submit(work, lambda: self._run(tensor.view(-1), average))

    def stop(self) -> None:
        """Lets the servers go: their serve() returns. All workers call it, after what they have started."""
        work = CollectiveWork("push_pull", [])
        self._background.submit(work, lambda: self._tell([-1, 0, 0, 0, 0])).wait()
        self._background.stop()

    def _run(self, x: torch.Tensor, average: bool) -> None:
        _, share = shares(self.num_workers, self.num_servers, self.server_speed, self.at_servers)
        served = round(share * self.num_servers * len(x))
        code = _DTYPES.index(x.dtype)
        self._tell([len(x), code, served, self.chunk_bytes, int(average)])
        with p2p.operation("push_pull"):
            _work(
                x, self.num_workers, self.num_servers, served, self.chunk_bytes, average, self.group
            )

    def _tell(self, header: list[int]) -> None:
        """Worker 0 tells the servers what comes."""
        if p2p.rank(self.group) == 0:
            message = torch.tensor(header, dtype=torch.int64)
            with p2p.operation("push_pull header"):
                sent = [
                    p2p.isend(message, self.num_workers + i, self.group, _TOLD)
                    for i in range(self.num_servers)
                ]
                for work in sent:
                    work.wait()


def push_pull_hook(state: PushPull, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook of DistributedDataParallel over the workers: register_comm_hook(PushPull(...),
    push_pull_hook).
    """
    return state(bucket.buffer(), average=True).get_future()


def serve(num_servers: int, group: Group = None) -> int:
    """A server: sums what the workers push until they stop. Returns how many tensors it has summed parts of."""
    n = _num_workers(group, num_servers)
    me = p2p.rank(group) - n
    if me < 0:
        raise ValueError(
            f"rank {p2p.rank(group)} is a worker: the last {num_servers} of {n + num_servers} ranks serve"
        )
    served = 0
    header = torch.empty(HEADER, dtype=torch.int64)
    while True:
        with p2p.operation("push_pull header"):
            p2p.recv(header, 0, group, _TOLD)
        elements, code, at_servers, chunk_bytes, average = header.tolist()
        if elements < 0:
            return served
        bounds = even_bounds(at_servers, num_servers)
        mine = torch.empty(bounds[me + 1] - bounds[me], dtype=_DTYPES[code])
        with p2p.operation("push_pull"):
            workers = list(range(n))
            for work in _own(
                chunks_of(mine, chunk_bytes), workers, None, n if average else 1, group
            ):
                work.wait()
        served += 1


def _work(
    x: torch.Tensor, n: int, k: int, served: int, chunk_bytes: int, average: bool, group: Group
) -> None:
    """A worker pushes every part but its own, sums its own beside that, and pulls the others."""
    me = p2p.rank(group)
    by_workers, by_servers = x[: len(x) - served], x[len(x) - served :]
    parts = blocks_of(by_workers, part_bounds(len(x), n, served))
    parts += blocks_of(by_servers, even_bounds(served, k)) if k else []
    chunks = [chunks_of(part, chunk_bytes) for part in parts]
    # Chunks of all parts in turn, each worker beginning with another owner: so all owners have work at once.
    turns = sorted(
        ((j + 0.5) / len(chunks[owner]), (owner - me) % (n + k), owner, j)
        for owner in range(n + k)
        if owner != me
        for j in range(len(chunks[owner]))
    )
    # The sum comes back into place: the owner has what was there by then.
    pulled = [p2p.irecv(chunks[owner][j], owner, group, _PULL) for _, _, owner, j in turns]
    pushed: list[Work] = []

    def push(own_chunk: int) -> None:
        """Pushes one own chunk's share ahead, and pulls one behind: so each port has both kinds in turn."""
        share = min(1.0, (own_chunk + 2) / max(1, len(chunks[me])))
        for _, _, owner, j in turns[len(pushed) : math.ceil(share * len(turns))]:
            pushed.append(p2p.isend(chunks[owner][j], owner, group, _PUSH))
        back = min(1.0, max(0, own_chunk - 1) / max(1, len(chunks[me])))
        for work in pulled[: math.floor(back * len(turns))]:
            work.wait()

    others = [w for w in range(n) if w != me]
    told = _own(chunks[me], others, me, n if average else 1, group, before=push)
    push(len(chunks[me]))
    for work in (*pulled, *pushed, *told):
        work.wait()


def _own(
    mine: Sequence[torch.Tensor],
    workers: Sequence[int],
    me: int | None,
    divide_by: int,
    group: Group,
    before: Callable[[int], None] = lambda chunk: None,
) -> list[Work]:
    """An owner: sums each chunk of its part, in the order of ranks, and starts to send it back to all `workers`.

    me:     this rank, whose own numbers are in the chunks; None on a server, which has none
    before: called with a chunk's number before it is waited for
    """
    sending: list[Work] = []
    rank, size = p2p.rank(group), p2p.size(group)
    # or all would send to the same one first
    in_turn = sorted(workers, key=lambda w: (w - rank) % size)
    arriving = _received(mine, workers, group)
    for i, chunk in enumerate(mine):
        before(i)
        received = next(arriving)
        terms = dict(zip(workers, received, strict=True))
        if me is not None:
            terms[me] = chunk.clone()
        first, *rest = (terms[w] for w in sorted(terms))
        chunk.copy_(first)
        for term in rest:
            chunk += term
        if divide_by != 1:
            chunk /= divide_by
        sending += [p2p.isend(chunk, w, group, _PULL) for w in in_turn]
    return sending


def _received(
    mine: Sequence[torch.Tensor], workers: Sequence[int], group: Group
) -> Iterator[list[torch.Tensor]]:
    """Every worker's chunk, one after the other; receives are posted some chunks ahead."""
    posted: deque[list[tuple[torch.Tensor, Work]]] = deque()
    for i in range(len(mine) + AHEAD):
        if i < len(mine):
            slots = [torch.empty_like(mine[i]) for _ in workers]
            posted.append(
                [(s, p2p.irecv(s, w, group, _PUSH)) for s, w in zip(slots, workers, strict=True)]
            )
        if i >= AHEAD:
            arrived = posted.popleft()
            for _, work in arrived:
                work.wait()
            yield [slot for slot, _ in arrived]


def _num_workers(group: Group, num_servers: int) -> int:
    size = p2p.size(group)
    if not 0 <= num_servers < size:
        raise ValueError(
            f"num_servers={num_servers} of {size} ranks: at least one rank has to be a worker, and none is less than 0"
        )
    return size - num_servers
