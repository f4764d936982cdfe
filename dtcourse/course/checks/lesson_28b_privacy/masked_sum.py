"""A masked sum in which each client has masks with some neighbours alone, and some clients never send."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, require

MASKED = Exercise(
    "masked_sum",
    lesson="28b",
    title="Masks among neighbours",
    takes=("masked", "told", "unmasked"),
    target="the sum to the bit with 5 to 9 clients, whoever has not sent; what is sent is like chance",
    forbidden=("dtcourse.federated",),
)

N = 4000  # numbers of a client: their deviation is known to one in a hundred
Pairs = dict[int, dict[int, int]]
# what a client is: number, x, pairs, own
Client = tuple[int, Tensor, dict[int, int], int]


def _sent(masked: Any, told: Any, unmasked: Any, clients: list[Client], dropped: list[int]) -> Any:
    """What each client sends, whether its x is as it was, and what those tell who have not dropped out."""
    ys, kept = {}, {}
    for u, x, pairs, own in clients:
        before = x.clone()
        ys[u] = masked(u, x, dict(pairs), own)
        kept[u] = bool(torch.equal(x, before))
    sent = sorted(u for u, *_ in clients if u not in dropped)
    answers = {
        u: told(u, dict(pairs), own, list(sent)) for u, _, pairs, own in clients if u in sent
    }
    return ys, kept, answers


def _total(masked: Any, told: Any, unmasked: Any, sent: Any, answers: Any) -> Any:
    """At the server, in a process that has seen no client."""
    return unmasked(sent, answers)


def _clients(num: int, values: Tensor) -> list[Client]:
    """On a ring with some chords: neighbours are few, and not the same number for all. values: (num, n)"""
    numbers = sorted(random.sample(range(100), num))
    edges = {tuple(sorted((numbers[i], numbers[(i + 1) % num]))) for i in range(num)}
    edges |= {tuple(sorted(random.sample(numbers, 2))) for _ in range(num // 2)}
    pairs: Pairs = {u: {} for u in numbers}
    for u, v in sorted(edges):
        pairs[u][v] = pairs[v][u] = random.randrange(2**60)
    return [
        (u, values[i].clone(), pairs[u], random.randrange(2**60)) for i, u in enumerate(numbers)
    ]


def _values(num: int, n: int = N) -> Tensor:
    """(num, n) of int32, from all of its range, so that sums wrap around."""
    return torch.randint(-(2**31), 2**31, (num, n)).int()


def _require_vector(got: Any, what: str, n: int) -> None:
    right = isinstance(got, Tensor) and got.shape == (n,) and got.dtype == torch.int32
    shape = (
        f"{got.dtype} of shape {tuple(got.shape)}"
        if isinstance(got, Tensor)
        else type(got).__name__
    )
    require(right, f"{what} is a tensor of shape ({n},) in torch.int32; got {shape}.")


def _require_sum(answer: Answer, num: int, num_dropped: int) -> None:
    clients = _clients(num, _values(num))
    numbers = [u for u, *_ in clients]
    dropped = random.sample(numbers, num_dropped)
    who = f"{num} clients, of which {sorted(dropped) or 'none'} have not sent"
    ys, kept, answers = answer.call(_sent, clients, dropped)
    for u, x, _, _ in clients:
        _require_vector(ys[u], f"{who}: what client {u} sends", len(x))
        require(kept[u], f"{who}: `masked` has changed x itself. Client {u} may need it again.")
    for u, said in answers.items():
        shaped = isinstance(said, (list, tuple)) and len(said) == 2 and isinstance(said[1], dict)
        require(
            shaped,
            f"{who}: what client {u} tells is (its own seed, {{neighbour: seed}}); got {said!r}.",
        )
        pairs, own = next(one[2:] for one in clients if one[0] == u)
        require(
            said[0] is not None,
            f"{who}: client {u} has sent, and tells no seed of its own: who takes its own mask off?",
        )
        secret = sorted(v for v in said[1] if v not in dropped)
        require(
            not secret,
            f"{who}: client {u} tells the seeds of its pairs with {secret}, who have sent. With those of all pairs and "
            "its own seed the server reads the vector of one client. Whose masks are still in the sum?",
        )
        strange = sorted(set(said[1]) - set(pairs))
        require(
            not strange,
            f"{who}: client {u} tells seeds of {strange}, who are no neighbours of its.",
        )
        given = said[0] == own and all(seed == pairs[v] for v, seed in said[1].items())
        require(
            given,
            f"{who}: client {u} tells {said!r}, in which something is no seed that it was given for this: what may the "
            "server make of it?",
        )
    sent = {u: ys[u] for u in numbers if u not in dropped}
    total = answer.call(_total, sent, answers)
    _require_vector(total, f"{who}: the sum", N)
    right = torch.stack([x for u, x, *_ in clients if u in sent]).sum(0, dtype=torch.int32)
    wrong = int((total != right).sum())
    hint = (
        "Of each pair one adds the mask, and the other subtracts it; what of the masks that have no partner?"
        if not dropped
        else "A mask of a pair is left in the sum where one of the two has not sent. Who knows its seed, and with "
        "which sign is it there?"
    )
    require(
        not wrong,
        f"{who}: {wrong:,} of {N:,} numbers of the sum are wrong; the first is {int(total[0])}, and should be "
        f"{int(right[0])}. {hint}",
    )


@MASKED.check("all send: the sum is exact", points=3)
def check_sum(answer: Answer) -> None:
    """Masks of pairs cancel, and each one's own is taken off."""
    _require_sum(answer, random.randint(5, 9), 0)


@MASKED.check("some never send: the sum of the others is exact", points=4)
def check_dropped(answer: Answer) -> None:
    """One, and nearly all of them."""
    for num, gone in ((random.randint(6, 9), 1), (random.randint(5, 9), 2), (7, 5)):
        _require_sum(answer, num, gone)


def _require_chance(y: Tensor, what: str) -> None:
    """y: (n,) of int32"""
    parts = y.double() / 2**31
    far = (
        abs(float(parts.mean())) > 5 / (3 * N) ** 0.5 or abs(float(parts.std()) * 3**0.5 - 1) > 0.05
    )
    require(
        not far,
        f"{what} has mean {float(parts.mean()):.3g} and deviation {float(parts.std()):.3g}, where 2^31 counts as 1; "
        "chance has 0 and 0.577. Over which range are your masks uniform?",
    )
    ones = ((y.long()[:, None] >> torch.arange(32)) & 1).double().mean(0)
    worst = int((ones - 0.5).abs().argmax())
    require(
        abs(float(ones[worst]) - 0.5) < 3 / N**0.5,
        f"{what} has bit {worst} set in {float(ones[worst]):.0%} of its numbers; chance has it in half of them. Over "
        "which whole numbers are your masks uniform?",
    )


@MASKED.check("what is sent is like chance", points=3, needs=("check_sum",))
def check_chance(answer: Answer) -> None:
    """Also for somebody who knows all seeds of the pairs, or the client's own."""
    clients = _clients(5, torch.zeros(5, N, dtype=torch.int32))
    first, *_ = answer.call(_sent, clients, [])
    others = [(u, x, pairs, own ^ random.randrange(1, 2**60)) for u, x, pairs, own in clients]
    second, *_ = answer.call(_sent, others, [])
    other = random.randrange(1, 2**60)
    again, *_ = answer.call(
        _sent,
        [(u, x, {v: s ^ other for v, s in pairs.items()}, own) for u, x, pairs, own in clients],
        [],
    )
    for u, *_ in clients:
        _require_vector(first[u], f"What client {u} sends", N)
        _require_chance(first[u], f"Client {u} has zeros alone, and what it sends")
        require(
            not torch.equal(first[u], second[u]),
            f"Client {u} has another seed of its own, and sends the same: whoever knows the seeds of its pairs reads "
            "its vector. What does only this client know?",
        )
        require(
            not torch.equal(first[u], again[u]),
            f"Client {u} has other seeds with its neighbours, and sends the same: once its own seed is told, as it has "
            "to be, the server reads its vector. Which masks hide it then?",
        )
        without = f"Client {u} has zeros alone, and what it sends, without the masks of its"
        _require_chance(first[u] - second[u], f"{without} pairs,")
        _require_chance(first[u] - again[u], f"{without} own,")
    for v in list(first)[1:]:
        u = next(iter(first))
        alike = float(torch.corrcoef(torch.stack([first[u].double(), first[v].double()]))[0, 1])
        require(
            abs(alike) < 0.1,
            f"What clients {u} and {v} send is alike (correlation {alike:.2f}), though both have zeros: is one mask "
            "in both?",
        )
