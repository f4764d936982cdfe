"""Answers to spines_needed: see test_exercises.py."""

MUTANTS = [
    (
        "rounds down",
        "is oversubscribed",
        """
def spines_needed(hosts_per_leaf, host_rate, uplink_rate, ratio):
    return max(1, int(hosts_per_leaf * host_rate // (uplink_rate * ratio)))
""",
    ),
    (
        "the ratio the wrong way round",
        "the promise is kept with",
        """
def spines_needed(hosts_per_leaf, host_rate, uplink_rate, ratio):
    return max(1, math.ceil(hosts_per_leaf * host_rate * ratio / uplink_rate))
""",
    ),
    (
        "takes uplinks to be as fast as hosts",
        "the promise is kept with",
        """
def spines_needed(hosts_per_leaf, host_rate, uplink_rate, ratio):
    return max(1, math.ceil(hosts_per_leaf / ratio))
""",
    ),
]

NOTHING = [
    (
        "one",
        """
def spines_needed(hosts_per_leaf, host_rate, uplink_rate, ratio):
    return 1
""",
    ),
]

ACCEPTED = [
    (
        "one more until it is enough",
        """
def spines_needed(hosts_per_leaf, host_rate, uplink_rate, ratio):
    spines = 1
    while spines * uplink_rate * ratio < hosts_per_leaf * host_rate:
        spines += 1
    return torch.tensor(spines)
""",
    ),
    (
        "an exact fraction, rounded up",
        """
def spines_needed(hosts_per_leaf, host_rate, uplink_rate, ratio):
    from fractions import Fraction
    need = Fraction(hosts_per_leaf) * Fraction(host_rate) / (Fraction(uplink_rate) * Fraction(ratio))
    return max(1, -(-need.numerator // need.denominator))
""",
    ),
]
