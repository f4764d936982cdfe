"""Answers to masked_sum: see test_exercises.py."""

_PAIR = "        y = y + pair if u < v else y - pair\n"
_OWN = "    y = x + mask_of(own, len(x))\n"
_MISSING = "    missing = {v: seed for v, seed in pairs.items() if v not in sent}\n"
_OFF = "            total = total - pair if u < v else total + pair\n"
_OWN_OFF = "        total = total - mask_of(own, len(total))\n"
_UNIFORM = "    return torch.randint(-(2**31), 2**31, (n,), generator=draw).int()\n"

_BY_HASH = """
import hashlib

import numpy as np
import torch


def stream(seed, n):
    found = hashlib.shake_256(str(seed).encode()).digest(4 * n)
    return torch.from_numpy(np.frombuffer(found, dtype=np.int32).copy()).long()


def wrapped(x):
    return ((x + 2**31) % 2**32 - 2**31).int()


def masked(u, x, pairs, own):
    total = x.long() - stream(own, len(x))
    for v in sorted(pairs):
        total += (1 if v < u else -1) * stream(pairs[v], len(x))
    return wrapped(total)


def told(u, pairs, own, sent):
    there = set(sent)
    return [own, {v: pairs[v] for v in pairs if v not in there}]


def unmasked(sent, answers):
    total = sum(y.long() for y in sent.values())
    n = len(total)
    for u, (own, lost) in answers.items():
        total += stream(own, n)
        for v, seed in lost.items():
            total -= (1 if v < u else -1) * stream(seed, n)
    return wrapped(total)
"""

MUTANTS = [
    ("both of a pair add the mask", "one adds the mask, and the other subtracts it", ((_PAIR, "        y = y + pair\n"),)),
    (
        "the lesson's: no mask of its own",
        "What does only this client know",
        ((_OWN, "    y = x.clone()\n"), (_OWN_OFF, "")),
    ),
    (
        "its own mask alone",
        "Which masks hide it then",
        ((_PAIR, ""), (_OFF, "")),
    ),
    ("its own mask stays in the sum", "what of the masks that have no partner", ((_OWN_OFF, ""),)),
    ("pairs of who never sent stay in the sum", "Who knows its seed", ((_OFF, ""),)),
    (
        "taken off with the other sign",
        "with which sign is it there",
        ((_OFF, "            total = total + pair if u < v else total - pair\n"),),
    ),
    (
        "all seeds are told",
        "Whose masks are still in the sum",
        ((_MISSING, "    missing = dict(pairs)\n"),),
    ),
    (
        "the seeds of those who have sent",
        "Whose masks are still in the sum",
        ((_MISSING, "    missing = {v: seed for v, seed in pairs.items() if v in sent}\n"),),
    ),
    (
        "masks that are small",
        "Over which range are your masks uniform",
        ((_UNIFORM, "    return torch.randint(-(2**20), 2**20, (n,), generator=draw).int()\n"),),
    ),
    (
        "masks of zero or more",
        "Over which range are your masks uniform",
        ((_UNIFORM, "    return torch.randint(0, 2**10, (n,), generator=draw).int()\n"),),
    ),
    (
        "x is masked in place",
        "has changed x itself",
        ((_OWN, "    y = x.add_(mask_of(own, len(x)))\n"),),
    ),
    (
        "in floating point",
        "in torch.int32; got torch.float32",
        ((_OWN, "    y = x.float() + mask_of(own, len(x))\n"),),
    ),
    (
        "the course's own",
        "dtcourse.federated",
        """
from dtcourse.federated.secure.keys import mask


def masked(u, x, pairs, own):
    return x + mask(own.to_bytes(32, "big"), len(x), x.dtype)


def told(u, pairs, own, sent):
    return own, {}


def unmasked(sent, answers):
    return sum(y - mask(answers[u][0].to_bytes(32, "big"), len(y), y.dtype) for u, y in sent.items())
""",
    ),
    (
        "a mask of its own that is one number",
        "without the masks of its pairs",
        ((_OWN, "    y = x + mask_of(own, 1)\n"), (_OWN_OFF, "        total = total - mask_of(own, 1)\n")),
    ),
    (
        "a small mask of its own",
        "without the masks of its pairs",
        ((_OWN, "    y = x + mask_of(own, len(x)) % 1000\n"), (_OWN_OFF, "        total = total - mask_of(own, len(total)) % 1000\n")),
    ),
    (
        "a pair's mask that is one number",
        "without the masks of its own",
        (("        pair = mask_of(seed, len(x))\n", "        pair = mask_of(seed, 1)\n"), ("            pair = mask_of(seed, len(total))\n", "            pair = mask_of(seed, 1)\n")),
    ),
    (
        "masks of 24 bits, made long",
        "Over which whole numbers are your masks uniform",
        ((_UNIFORM, "    return (torch.rand(n, generator=draw) * 2**32 - 2**31).int()\n"),),
    ),
    (
        "one sum of all seeds is the client's own",
        "no seed that it was given",
        ((_OWN, "    return x + mask_of(own + sum(pairs.values()), len(x))\n"), ("    return own, missing\n", "    return own + sum(pairs.values()), {}\n")),
    ),
    (
        "no seed of its own where a neighbour is missing",
        "who takes its own mask off",
        (("    return own, missing\n", "    return (None if missing else own), missing\n"),),
    ),
]  # fmt: skip

ACCEPTED = [
    ("masks from a hash, in int64, with the signs the other way round", _BY_HASH),
    (
        "the server takes a vector's masks off one by one",
        (
            (
                "    total = torch.stack(list(sent.values())).sum(0, dtype=torch.int32)\n",
                "    total = torch.zeros_like(next(iter(sent.values())))\n"
                "    for y in sent.values():\n        total = total + y\n",
            ),
            (_MISSING, "    missing = {v: pairs[v] for v in set(pairs) - set(sent)}\n"),
        ),
    ),
]

NOTHING = [
    (
        "nothing is masked",
        """
import torch


def masked(u, x, pairs, own):
    return x


def told(u, pairs, own, sent):
    return None


def unmasked(sent, answers):
    return torch.stack(list(sent.values())).sum(0, dtype=torch.int32)
""",
    ),
]
