"""Plausible wrong answers to lesson 05's exercises: (name, words of the sentence that rejects it, code)."""

MUTANTS = {
    "fit_link": [
        (
            "plain least squares: the large messages' errors drown the latency",
            "does an error of 3% of the largest time drown them",
            """
def fit_link(sizes, seconds):
    columns = torch.stack([torch.ones(len(sizes), dtype=torch.double), torch.tensor(sizes, dtype=torch.double)], dim=1)
    right = torch.tensor(seconds, dtype=torch.double).reshape(-1, 1)
    latency, per_byte = torch.linalg.lstsq(columns, right).solution.flatten().tolist()
    return latency, 1 / per_byte
""",
        ),
        (
            "smallest time is the latency, largest the bandwidth",
            "made with",
            """
def fit_link(sizes, seconds):
    return min(seconds), max(sizes) / max(seconds)
""",
        ),
        (
            "seconds a byte",
            "bytes a second, not seconds a byte",
            """
def fit_link(sizes, seconds):
    weight = 1 / torch.tensor(seconds, dtype=torch.double)
    columns = torch.stack([weight, torch.tensor(sizes, dtype=torch.double) * weight], dim=1)
    ones = torch.ones(len(seconds), 1, dtype=torch.double)
    latency, per_byte = torch.linalg.lstsq(columns, ones).solution.flatten().tolist()
    return latency, per_byte
""",
        ),
    ],
    "bus_bandwidth": [
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
    ],
    "spines_needed": [
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
            "keep the promise, and so do",
            """
def spines_needed(hosts_per_leaf, host_rate, uplink_rate, ratio):
    return max(1, math.ceil(hosts_per_leaf * host_rate * ratio / uplink_rate))
""",
        ),
        (
            "takes uplinks to be as fast as hosts",
            "keep the promise, and so do",
            """
def spines_needed(hosts_per_leaf, host_rate, uplink_rate, ratio):
    return max(1, math.ceil(hosts_per_leaf / ratio))
""",
        ),
    ],
}
