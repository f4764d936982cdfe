"""Answers to bus_bandwidth: see test_exercises.py."""

MUTANTS = [
    (
        "the algorithm's bandwidth",
        "How many times does each byte",
        """
def bus_bandwidth(collective, nbytes, seconds, ranks):
    return nbytes / seconds
""",
    ),
    (
        "all_reduce counted once",
        "all_reduce of",
        """
def bus_bandwidth(collective, nbytes, seconds, ranks):
    return nbytes / seconds * (1.0 if collective == "broadcast" else (ranks - 1) / ranks)
""",
    ),
    (
        "a broadcast as if it were cut",
        "broadcast of",
        """
def bus_bandwidth(collective, nbytes, seconds, ranks):
    return nbytes / seconds * (2 if collective == "all_reduce" else 1) * (ranks - 1) / ranks
""",
    ),
    (
        "right for many ranks only",
        "on 2 ranks",
        """
def bus_bandwidth(collective, nbytes, seconds, ranks):
    return nbytes / seconds * (2.0 if collective == "all_reduce" else 1.0)
""",
    ),
]

NOTHING = [
    (
        "bytes by seconds",
        """
def bus_bandwidth(collective, nbytes, seconds, ranks):
    return nbytes / seconds
""",
    ),
]

ACCEPTED = [
    (
        "the factors of nccl-tests, in a table",
        """
def bus_bandwidth(collective, nbytes, seconds, ranks):
    part = (ranks - 1) / ranks
    factor = {"all_reduce": 2 * part, "all_gather": part, "reduce_scatter": part, "all_to_all": part}
    return factor.get(collective, 1) * nbytes / seconds
""",
    ),
    (
        "bytes over the seconds of each link, in torch's double",
        """
def bus_bandwidth(collective, nbytes, seconds, ranks):
    links = torch.tensor(1.0 - 1.0 / ranks, dtype=torch.float64)
    if collective == "broadcast":
        links = torch.ones_like(links)
    times = 2 if collective == "all_reduce" else 1
    return times * links * (nbytes / seconds)
""",
    ),
]
