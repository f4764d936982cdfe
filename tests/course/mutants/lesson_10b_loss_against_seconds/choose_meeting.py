"""Answers to choose_meeting: see test_exercises.py."""

_PERIOD = "period = min(most, int(limit / distance))"
_RETURN = "    _, name, period = min(found)\n    return name, period\n"
_ONLY = "    _, name, period = min((one for one in found if one[1] == NAME), default=(0, NAME, 1))\n    return name, period\n"

# The lesson's: by the spectral gap.
_LESSONS = """
from dtcourse.asynchronous import mixing


def choose_meeting(p, compute, latency, transfer, limit, most):
    degree = p.bit_length() - 1
    graphs = {
        "all": (mixing.complete(p), 2 * (p - 1) * (latency + transfer / p)),
        "ring": (mixing.ring(p), 2 * (latency + transfer)),
        "exponential": (mixing.exponential(p), degree * (latency + transfer)),
        "one peer": (mixing.one_peer_exponential(p), latency + transfer),
    }
    found = []
    for name, (matrices, meeting) in graphs.items():
        period = max(1, min(most, int(limit * mixing.spectral_gap(matrices))))
        found.append((compute + meeting / period, name, period))
    return min(found)[1:]
"""

MUTANTS = [
    ("the lesson's own: by the spectral gap", "What is left of a step's noise", _LESSONS),
    (
        "always the mean of all",
        "which graph sends the least",
        ((_RETURN, _ONLY.replace("NAME", '"all"')),),
    ),
    (
        "always one peer",
        "What is left of a step's noise",
        ((_RETURN, _ONLY.replace("NAME", '"one peer"')),),
    ),
    (
        "always the ring",
        "What is left of a step's noise",
        ((_RETURN, _ONLY.replace("NAME", '"ring"')),),
    ),
    (
        "one round's noise is all there is",
        "and the one after it",
        (("for t in range(5000):", "for t in range(1):"),),
    ),
    (
        "the distance after the meeting",
        "What is left of a step's noise",
        (
            (
                "            distance += left.square().sum().item() / p\n            left = matrices[t % len(matrices)] @ left\n",
                "            left = matrices[t % len(matrices)] @ left\n            distance += left.square().sum().item() / p\n",
            ),
            (_PERIOD, "period = min(most, int(limit / max(distance, 1e-9)))"),
        ),
    ),
    (
        "the distance, not its square",
        "the best choice takes",
        ((_PERIOD, "period = min(most, int((limit / distance) ** 0.5))"),),
    ),
    (
        "a step too many",
        "What is left of a step's noise",
        ((_PERIOD, "period = min(most, 1 + int(limit / distance))"),),
    ),
    (
        "a step too few",
        "the best choice takes",
        (
            (
                _PERIOD,
                "period = min(most, max(1, int(limit / distance) - 1)) if limit >= distance else 0",
            ),
        ),
    ),
    (
        "in each step",
        "the best choice takes",
        ((_PERIOD, "period = min(1, int(limit / distance))"),),
    ),
    (
        "latency costs nothing",
        "the best choice takes",
        (
            (
                '"all": ([torch.full_like(eye, 1 / p)], 2 * (p - 1) * (latency + transfer / p))',
                '"all": ([torch.full_like(eye, 1 / p)], 2 * (p - 1) * transfer / p)',
            ),
        ),
    ),
    (
        "an all-reduce moves the model once per rank",
        "the best choice takes",
        (("2 * (p - 1) * (latency + transfer / p)", "2 * (p - 1) * (latency + transfer)"),),
    ),
    (
        "longer than allowed",
        "a choice is (graph, period)",
        ((_PERIOD, "period = int(limit / distance)"),),
    ),
    (
        "the sum over the ranks, not their mean",
        "the best choice takes",
        (
            ("left.square().sum().item() / p", "left.square().sum().item()"),
            (
                _PERIOD,
                "period = max(1, min(most, int(limit / distance))) if p * limit >= distance else 0",
            ),
        ),
    ),
    (
        "exchanged",
        "a choice is (graph, period)",
        (("    return name, period\n", "    return period, name\n"),),
    ),
    ("the slowest", "the best choice takes", (("min(found)", "max(found)"),)),
]

ACCEPTED = [
    (
        "by eigenvalues, and all periods compared",
        """
import torch


def choose_meeting(p, compute, latency, transfer, limit, most):
    hops, k = [], 1
    while k < p:
        hops.append(k)
        k *= 2

    def left(places):
        # The first row of a circulant matrix: its eigenvalues are the row's Fourier transform.
        row = torch.zeros(p, dtype=torch.double)
        row[[place % p for place in places]] = 1 / len(places)
        powers = torch.fft.fft(row).abs().square()[1:]
        return (1 / (1 - powers)).sum().item() / p

    once = latency + transfer
    distance = {
        "all": (p - 1) / p,
        "ring": left([0, 1, -1]),
        "exponential": left([0, *hops]),
        "one peer": sum(1 / hop - 1 / p for hop in hops),
    }
    cost = {"all": (p - 1) * 2 * latency + (p - 1) * 2 * transfer / p, "ring": 2 * once}
    cost |= {"exponential": len(hops) * once, "one peer": once}
    return min(
        ((g, H) for g in cost for H in range(1, most + 1) if H * distance[g] <= limit),
        key=lambda one: compute + cost[one[0]] / one[1],
    )
""",
    ),
    (
        "covariances, until they stay",
        """
import torch


def choose_meeting(p, compute, latency, transfer, limit, most):
    eye = torch.eye(p, dtype=torch.double)
    shift = [torch.roll(eye, 2**k, 0) for k in range(p.bit_length() - 1)]
    J, once = torch.ones_like(eye) / p, latency + transfer
    choices = {
        "one peer": ([(eye + s) / 2 for s in shift], once),
        "all": ([J], 2 * (p - 1) * latency + 2 * (p - 1) / p * transfer),
        "exponential": ([(eye + sum(shift)) / (1 + len(shift))], len(shift) * once),
        "ring": ([(eye + torch.roll(eye, 1, 0) + torch.roll(eye, -1, 0)) / 3], 2 * once),
    }
    best = (float("inf"), "", 0)
    for graph, (matrices, cost) in choices.items():
        covariance, before = torch.zeros_like(eye), -1.0
        for t in range(20000):
            W = matrices[t % len(matrices)]
            covariance = covariance + eye - J
            now = covariance.trace().item() / p
            if t >= p and abs(now - before) < 1e-9 * now:
                break
            covariance, before = W @ covariance @ W.T, now
        H = min(int(limit // now), most)
        if H:
            best = min(best, (compute + cost / H, graph, H))
    return best[1], best[2]
""",
    ),
]

NOTHING = [
    (
        "the mean of all in each step",
        '\ndef choose_meeting(p, compute, latency, transfer, limit, most):\n    return "all", 1\n',
    ),
    (
        "one peer in each step",
        '\ndef choose_meeting(p, compute, latency, transfer, limit, most):\n    return "one peer", 1\n',
    ),
]
