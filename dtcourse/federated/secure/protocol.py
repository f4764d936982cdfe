"""Secure aggregation, whole: the sum of all clients' vectors, and nothing else, comes to the server.

    found = secure_sum({client: x, ...}, threshold=12, num_clients=20)     # x of the clients that live on this rank
    found.total, found.survivors, found.nbytes

    round        client -> server                                  server -> client
    advertise    three public keys                     96          all public keys                   96 n
    share        sealed shares for n - 1 others        160 (n-1)   those that are for it             160 (n-1)
    masked       y: its numbers, masked                4 N or 8 N  who has sent y, who has not
    consistency  the lists, signed                     64          all signatures                    64 n
    unmask       a share for each of the n clients     66 n        the sum is known

(bytes; and 32 for each of two digests, of b and of the list that y is for.) A client may stop answering before any of
them. Before `masked`: it is left out of the sum, and where it has sent shares its masks are taken off by its key, which
t others give back. After `masked`: it is in the sum. Fewer than t clients in any round: nobody learns anything, and the
round stops.

A curious server keeps to the protocol, and looks at all it gets. What a server that lies could ask for is refused by
each client (client.py). It could send different lists to different clients, of which each agrees in itself, and have
the sum of very few: of two from seven with t = 4. So clients sign the lists, and answer only when they have t
signatures of the same ones, themselves among them; with t above half there are no two lists that both get so many.

What the paper's variant against active servers has besides, and is not here: identities that a third party vouches
for, by which keys are signed. Without them a server can invent clients, whose shares and signatures it makes itself,
or put its own keys in another's place. Clients that help the server are not here either: then t is above two thirds.
And a server that lies can always give out a wrong sum.

Source: Bonawitz et al. (CCS 2017), sections 4 and 6.2, figure 4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor

from dtcourse.federated.clients import place_in
from dtcourse.federated.secure.client import Refused, SecureClient
from dtcourse.federated.secure.fixed_point import FixedPoint
from dtcourse.federated.secure.server import SecureServer, Stopped, View
from dtcourse.parameters.agreement import check_agreed, raise_on_all_ranks
from dtcourse.parameters.replicas import Group

ROUNDS = ("advertise", "share", "masked", "consistency", "unmask")
T = TypeVar("T")


@dataclass
class SecureSum:
    """What came of it; total and survivors are the same on every rank.

    total:     (n,) of float64
    survivors: the clients whose vectors are in it
    lost:      client -> why it did not answer, and from which round on; a message that did not fit
    nbytes:    round -> bytes that clients have sent in it
    view:      what the server has received, on the server's rank 0; None on the others
    """

    total: Tensor
    survivors: list[int]
    lost: dict[int, str] = field(default_factory=dict)
    nbytes: dict[str, int] = field(default_factory=dict)
    view: View | None = None


def secure_sum(
    vectors: Mapping[int, Tensor],
    threshold: int,
    num_clients: int,
    encoding: FixedPoint | None = None,
    *,
    dropouts: Mapping[int, str] | None = None,
    group: Group = None,
    make_server: Callable[[int], SecureServer] = SecureServer,
    make_client: Callable[[int, Tensor, int], SecureClient] = SecureClient,
) -> SecureSum:
    """The sum of all ranks' clients' vectors. All ranks call it; the server is on rank 0.

    vectors:     client -> (n,), of the clients that live on this rank
    num_clients: on all ranks
    dropouts:    client -> the round before which it stops answering
    make_server, make_client: other ones, to try what a curious server or a broken client does

    Raises ValueError on all ranks, before anything is sent, where a number does not fit, vectors differ in shape, or
    ranks in their settings; Stopped where fewer than `threshold` clients answer.
    """
    encoding, dropouts = encoding or FixedPoint(), dropouts or {}
    rank, world_size = place_in(group)
    if world_size > 1:
        settings = {
            "threshold": threshold,
            "num_clients": num_clients,
            "encoding": encoding,
            "dropouts": dict(sorted(dropouts.items())),
        }
        check_agreed(settings, group, "Ranks simulate one aggregation: pass the same on every rank")
    if unknown := sorted(set(dropouts.values()) - set(ROUNDS)):
        raise ValueError(
            f"clients drop out before one of the rounds {', '.join(ROUNDS)}; got {unknown}"
        )
    if not 2 <= threshold <= num_clients:
        raise Stopped(
            f"the round stops: there are {num_clients} clients, and a threshold of {threshold}; it is 2 to their number"
        )
    _check_vectors(vectors, num_clients, world_size, group)

    def build() -> dict[int, SecureClient]:
        numbers = {k: encoding.encode(x, num_clients) for k, x in vectors.items()}
        return {k: make_client(k, x, threshold) for k, x in numbers.items()}

    clients = raise_on_all_ranks(build, group) if world_size > 1 else build()
    wire = _Wire(rank, world_size, group, dict(dropouts))
    server = make_server(threshold) if rank == 0 else None

    keys = wire.round(
        "advertise", clients, lambda c: c.advertise(), server.pass_keys if server else None
    )
    sealed = wire.round(
        "share", clients, lambda c: c.share(keys), server.pass_shares if server else None, keys
    )
    lists = wire.round(
        "masked",
        clients,
        lambda c: c.masked(sealed[c.number]),
        server.ask if server else None,
        sealed,
    )
    signed = wire.round(
        "consistency", clients, lambda c: c.consistency(*lists[c.number]),
        server.pass_signatures if server else None, lists,
    )  # fmt: skip
    total = wire.round(
        "unmask", clients, lambda c: c.unmask(signed[c.number]), server.total if server else None,
        signed,
    )  # fmt: skip
    misfits = wire.from_server(lambda: server.misfits if server else {})
    return SecureSum(
        encoding.decode(total),
        sorted(lists),
        misfits | wire.lost,
        wire.nbytes,
        server.view if server else None,
    )


def _check_vectors(
    vectors: Mapping[int, Tensor], num_clients: int, world_size: int, group: Group
) -> None:
    """Raises ValueError on all ranks unless num_clients clients have one vector each, all as long."""
    mine = [(client, tuple(x.shape)) for client, x in vectors.items()]
    came: list[Any] = [mine]
    if world_size > 1:
        came = [None] * world_size
        dist.all_gather_object(came, mine, group=group)
    everyone = [pair for theirs in came for pair in theirs]
    num = len({client for client, _ in everyone})
    if num < len(everyone):
        raise ValueError(
            f"{len(everyone)} vectors are of {num} clients: a client lives on one rank, and has one vector"
        )
    if num != num_clients:
        raise ValueError(
            f"{num} clients have vectors, and num_clients is {num_clients}: by it is known how large a number may be"
        )
    if len({shape for _, shape in everyone}) > 1 or any(len(s) != 1 or 0 in s for _, s in everyone):
        usual = Counter(s for _, s in everyone if len(s) == 1 and 0 not in s).most_common(1)
        others = [f"client {k}: {s}" for k, s in sorted(everyone) if not usual or s != usual[0][0]]
        raise ValueError(
            f"the vectors are to be (n,), with one n for all clients; {', '.join(others)}"
            + (f", unlike {usual[0][1]} others, which are {usual[0][0]}" if usual else "")
        )


class _Wire:
    """Brings messages from the clients on all ranks to the server on rank 0, and its answer to all."""

    def __init__(self, rank: int, world_size: int, group: Group, dropouts: dict[int, str]) -> None:
        self.rank, self.world_size, self.group = rank, world_size, group
        self.dropouts, self.lost, self.nbytes = dropouts, dict[int, str](), dict[str, int]()

    def round(
        self,
        name: str,
        clients: Mapping[int, SecureClient],
        answer: Callable[[SecureClient], Any],
        serve: Callable[[dict[int, Any]], T] | None,
        asked: Mapping[int, Any] | None = None,
    ) -> T:
        """One round: those clients answer that have not dropped out, and the server takes what came."""
        messages, lost, error = {}, {}, None
        for number, client in clients.items():
            if error or number in self.lost or (asked is not None and number not in asked):
                continue
            if self.dropouts.get(number) == name:
                lost[number] = f"client {number} dropped out before the round {name!r}"
                continue
            try:
                messages[number] = answer(client)
            except Refused as refusal:
                lost[number] = str(refusal)
            except Exception as unexpected:  # raised when all ranks know of it, so that none waits
                error = unexpected
        if self.world_size > 1:
            raise_on_all_ranks(lambda: _raise(error), self.group)
        _raise(error)
        came: list[Any] = [(messages, lost)]
        if self.world_size > 1:
            came = [None] * self.world_size
            dist.all_gather_object(came, (messages, lost), group=self.group)
        everyone = {k: m for theirs, _ in came for k, m in theirs.items()}
        self.lost |= {k: why for _, theirs in came for k, why in theirs.items()}
        self.nbytes[name] = sum(m.nbytes for m in everyone.values())
        in_order = dict(sorted(everyone.items()))
        return self.from_server(lambda: serve(in_order) if serve else None)  # type: ignore[return-value]

    def from_server(self, work: Callable[[], T]) -> T:
        """What rank 0's work gives, on all ranks. Raises Stopped on all of them where it stops there."""
        answer: list[Any] = [None, None, None]
        error: Exception | None = None
        if self.rank == 0:
            try:
                answer[0] = work()
            except Stopped as stopped:
                reasons = list(dict.fromkeys(self.lost.values()))
                more = [f"and {len(reasons) - 3} more"] if len(reasons) > 3 else []
                said = "; ".join(reasons[:3] + more)
                answer[1] = f"{stopped}" + (f" ({said})" if said else "")
            except Exception as unexpected:
                error = unexpected
                answer[2] = f"{type(error).__name__}: {error}"
        if self.world_size > 1:
            dist.broadcast_object_list(answer, group=self.group, group_src=0)
        _raise(error)
        if answer[2] is not None:
            raise ValueError(f"the server on rank 0 could not go on: {answer[2]}")
        if answer[1] is not None:
            raise Stopped(answer[1])
        return answer[0]  # type: ignore[no-any-return]


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error
