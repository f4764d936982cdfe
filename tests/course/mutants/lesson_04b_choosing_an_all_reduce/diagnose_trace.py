"""Answers to diagnose_trace: see test_exercises.py."""

_BEGUN = "            begun = max(left + alpha, free.get(target, 0.0))\n"
_CAME = "            came = [m[-1] for m in messages if m[1] == rank and m[-1] <= first]\n"
_LINK = '        return "link", links.pop()\n'
_GROWN = '        return "latency" if short > 2.5 * long else "bandwidth", None\n'
_BEST = "        best = min(seconds, key=seconds.get)\n"
_ROUTE = '            return "route", (call, best)\n'

MUTANTS = [
    (
        "what waits for a port is slow",
        "which messages only waited for a port",
        ((_BEGUN, "            begun = left + alpha\n"),),
    ),
    (
        "short calls go by the tree, long ones round the ring",
        "is any other route more than a fifth faster",
        ((_BEST, '        best = ("tree", "ring")[call]\n'), ("        if seconds[taken(n, messages)] > 1.2 * seconds[best]:\n", "        if taken(n, messages) != best:\n")),
    ),
    (
        "any faster route is worth a change",
        "is any other route more than a fifth faster",
        (("> 1.2 * seconds[best]", "> 1.0001 * seconds[best]"),),
    ),
    (
        "a late message makes a late rank",
        "which messages only waited for a port or for another message",
        ((_CAME, "            came = []\n"),),
    ),
    (
        "the noise is a fault",
        "differ only by the 2% that every message is off by",
        (("if more > 0.1 *", "if more > 0.002 *"),),
    ),
    (
        "the first call alone",
        "for the bytes of each call",
        (("    for call, (n, messages) in enumerate(calls):\n", "    for call, (n, messages) in enumerate(calls[:1]):\n"),),
    ),
    (
        "routes by their bytes alone",
        "is any other route more than a fifth faster",
        (("terms[name][0] * alpha + terms[name][1] * gap + terms[name][2]", "terms[name][2]"),),
    ),
    (
        "the link from its other end",
        "in which direction",
        ((_LINK, '        return "link", links.pop()[::-1]\n'),),
    ),
    (
        "the slowest message's link, however many there are",
        "Is it one link, or all?",
        (("    if len(links) == 1:\n", "    if links:\n"),),
    ),
    (
        "the rank that ends last is the late one",
        "Which rank sends nothing though it has all that it needs",
        (('                return "late", rank\n', '                return "late", max(messages, key=lambda m: m[-1])[0]\n'), ("    for _, messages in calls:\n", "    for _, messages in reversed(calls):\n")),
    ),
    (
        "lateness is not looked for",
        "Which rank sends nothing though it has all that it needs",
        (("if first - max(came, default=0.0) > alpha / 2:", "if False:"),),
    ),
    (
        "all that has grown is bandwidth",
        "By how much is a short message too long",
        ((_GROWN, '        return "bandwidth", None\n'),),
    ),
    (
        "all that has grown is latency",
        "for each of its bytes",
        ((_GROWN, '        return "latency", None\n'),),
    ),
    (
        "the call is not said",
        "for the bytes of each call",
        ((_ROUTE, '            return "route", best\n'),),
    ),
    (
        "the simulator's formulas",
        "dtcourse.simulator",
        (
            (
                "    p = 1 + max(",
                "    from dtcourse.simulator import collective_cost\n\n"
                "    told = collective_cost.seconds\n    p = 1 + max(",
            ),
        ),
    ),
]  # fmt: skip

NOTHING = [
    (
        "always healthy",
        '\ndef diagnose_trace(calls, routes, alpha, gap, beta):\n    return "healthy", None\n',
    ),
    (
        "always latency",
        '\ndef diagnose_trace(calls, routes, alpha, gap, beta):\n    return "latency", None\n',
    ),
]

# Each explanation is played: what a message takes by it is compared with what it took, by the sum of all deviations.
EXPLAINED = """
def diagnose_trace(calls, routes, alpha, gap, beta):
    def apart(messages, alpha, beta, link=None, factor=1.0):
        free, worst = {}, 0.0
        for source, target, n, left, arrived in sorted(messages, key=lambda m: m[-1]):
            k = factor if (source, target) == link else 1.0
            said = max(left + k * alpha, free.get(target, 0.0)) + k * (gap + n * beta)
            worst = max(worst, abs(arrived - said) / (k * (alpha + gap + n * beta)))
            free[target] = arrived
        return worst

    def fits(alpha, beta, link=None, factor=1.0):
        sums = [apart(messages, alpha, beta, link, factor) for _, messages in calls]
        return max(sums) if link is None else min(sums)

    p = 1 + max(m[0] for m in calls[0][1])
    for _, messages in calls:
        arrivals = [[m[-1] for m in messages if m[1] == r] for r in range(p)]
        for r in range(p):
            first = min(m[3] for m in messages if m[0] == r)
            idle = [a for a in [0.0, *arrivals[r]] if abs(a - first) < 1e-9]
            if not idle:
                return ["late", r]
    if fits(alpha, beta) > 0.05:
        factors = [1.9 + 0.02 * k for k in range(60)]
        by_latency = min(fits(k * alpha, beta) for k in factors)
        by_bandwidth = min(fits(alpha, k * beta) for k in factors)
        if min(by_latency, by_bandwidth) < 0.06:
            return ["latency" if by_latency < by_bandwidth else "bandwidth", None]
        for _, messages in calls:
            if apart(messages, alpha, beta) > 0.05:
                links = {(m[0], m[1]) for m in messages}
                played = {x: min(apart(messages, alpha, beta, x, 1.9 + 0.1 * k) for k in range(13)) for x in links}
                return ["link", list(min(played, key=played.get))]
    for call, (n, messages) in enumerate(calls):
        b, block, half = alpha + gap + n * beta, n / p * beta, (p - 1) / p * n * beta
        rounds = math.log2(p)
        all_routes = {
            "root": 2 * alpha + 2 * (p - 1) * (gap + n * beta),
            "ring": 2 * (p - 1) * (alpha + gap + block),
            "tree": 2 * rounds * b,
            "halving and doubling": 2 * rounds * (alpha + gap) + 2 * half,
        }
        if len(messages) > 2 * (p - 1) and len(messages) == 2 * (p - 1) * p:
            here = "ring"
        elif len(messages) > 2 * (p - 1):
            here = "halving and doubling"
        else:
            here = "root" if len({m[0] for m in messages if m[1] == 0}) == p - 1 else "tree"
        best = min(routes, key=all_routes.get)
        if all_routes[here] > 1.2 * all_routes[best]:
            return ["route", [call, best]]
    return ["healthy", None]
"""

# The seconds of a call are what its messages took, and least squares says what the network has become.
LEAST_SQUARES = (
    (
        _GROWN,
        """        import numpy as np

        rows, right = [], []
        for n, messages in calls:
            free = {}
            for _, target, nbytes, left, arrived in sorted(messages, key=lambda m: m[-1]):
                nominal = alpha + gap + nbytes * beta
                if left + alpha > free.get(target, 0.0):
                    rows.append((alpha / nominal, nbytes * beta / nominal))
                    right.append((arrived - left - gap) / nominal)
                free[target] = arrived
        grown = np.linalg.lstsq(np.array(rows), np.array(right), rcond=None)[0]
        return "latency" if grown[0] > grown[1] else "bandwidth", None
""",
    ),
)

ACCEPTED = [
    ("each explanation played", EXPLAINED),
    ("alpha and beta by least squares", LEAST_SQUARES),
]
