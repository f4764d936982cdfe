"""A secret from Shamir's shares of which some are wrong: which secret, and whose share?"""

from __future__ import annotations

import random

from dtcourse.course.judging import Answer, Exercise, call_each, require

JOINED = Exercise(
    "joined",
    lesson="28b",
    title="A secret from shares, some of them wrong",
    takes=("joined",),
    target="24 of 24 sets of 2 to 9 shares, drawn anew each time, with primes from 251 to 2^61 - 1",
    forbidden=("dtcourse.federated",),
)

PRIMES = (251, 65_537, 2**61 - 1)
Case = tuple[dict[int, int], int, int]  # shares, threshold, prime
EACH = 8  # sets of a check


def drawn(
    threshold: int,
    num: int,
    num_wrong: int,
    prime: int,
    first: bool = False,
    together: bool = False,
) -> tuple[Case, int, list[int]]:
    """Shares of `num` holders, anywhere below 50 and in any order, of which so many are wrong.

    first:    the wrong ones have the lowest numbers, and come first
    together: the wrong ones lie on one other polynomial, which goes through threshold - 1 of the right points besides
    """
    coefficients = [
        random.randrange(1, prime),
        *(random.randrange(prime) for _ in range(threshold - 1)),
    ]
    holders = random.sample(range(50), num)
    holders = sorted(holders) if first else holders
    wrong = holders[:num_wrong]
    meeting = holders[num_wrong : num_wrong + threshold - 1]
    times = random.randrange(1, prime)
    shares = {}
    for v in holders:
        shares[v] = sum(c * pow(v + 1, k, prime) for k, c in enumerate(coefficients)) % prime
        if v in wrong and together:
            off = times
            for w in meeting:
                off = off * (v - w) % prime
            shares[v] = (shares[v] + off) % prime
        elif v in wrong:
            shares[v] = (shares[v] + random.randrange(1, prime)) % prime
    if not first:
        shares = dict(random.sample(sorted(shares.items()), num))
    return (shares, threshold, prime), coefficients[0], sorted(wrong)


def _require(answer: Answer, sets: list[tuple[Case, int, list[int]]], hint: str) -> None:
    found = call_each(answer, [case for case, _, _ in sets], shuffled=True)
    for ((shares, threshold, prime), secret, wrong), got in zip(sets, found, strict=True):
        where = f"{len(shares)} shares modulo {prime:,}, of which {threshold} are needed and {len(wrong)} are wrong"
        right = (
            isinstance(got, (list, tuple)) and len(got) == 2 and isinstance(got[1], (list, tuple))
        )
        require(got is not None, f"{where}: it finds nothing. {hint}")
        require(right, f"{where}: the answer is (secret, wrong), such as (42, [2]); got {got!r}.")
        require(got[0] is not None, f"{where}: it finds no secret. {hint}")
        require(
            type(got[0]) is int,
            f"{where}: a secret is a whole number below the prime; got {got[0]!r}. A division modulo a prime is a "
            "multiplication with what number?",
        )
        require(got[0] == secret, f"{where}: the secret is {secret}; got {got[0]}. {hint}")
        require(
            list(got[1]) == wrong,
            f"{where}: the secret is right, and the wrong shares are those of {wrong}; got {list(got[1])}. Of which "
            "shares do you know that they are the polynomial's, and have all the others been compared?",
        )


@JOINED.check("all shares are right", points=3)
def check_right(answer: Answer) -> None:
    """Exactly as many as are needed, and more."""
    sets = []
    for turn in range(EACH):
        threshold = random.randint(2, 5)
        num = threshold + (0 if turn < 3 else random.randint(1, 4))
        sets.append(drawn(threshold, num, 0, PRIMES[turn % len(PRIMES)]))
    _require(
        answer,
        sets,
        "Where are the points of holder v: at v or at v + 1? And is each step modulo the prime, divisions too?",
    )


@JOINED.check("one share is wrong", points=3)
def check_one(answer: Answer) -> None:
    """Any of them."""
    sets = []
    for turn in range(EACH):
        threshold = random.randint(2, 4)
        num = threshold + random.randint(2, 3)
        sets.append(drawn(threshold, num, 1, PRIMES[turn % len(PRIMES)], first=turn == 0))
    _require(
        answer,
        sets,
        "A wrong share may be among those that you join. How many others lie on what they give?",
    )


@JOINED.check("as many are wrong as can be", points=4)
def check_many(answer: Answer) -> None:
    """Two or three, by chance or together: then they lie on a polynomial of their own."""
    sets = []
    for turn in range(EACH):
        threshold, num_wrong = ((2, 3), (3, 3), (3, 2), (4, 2))[turn % 4]
        num = threshold + 2 * num_wrong
        prime, together = PRIMES[turn % len(PRIMES)], turn < 4 or turn % 2 == 0
        sets.append(drawn(threshold, num, num_wrong, prime, first=turn < 4, together=together))
    _require(
        answer,
        sets,
        "With two wrong shares or more, leaving out one does not help, and a few that agree prove little. How many of "
        "all shares must lie on the right polynomial?",
    )
