"""Answers to fit_link: see test_exercises.py."""

MUTANTS = [
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
]

NOTHING = [
    (
        "the smallest and the largest as they are",
        """
def fit_link(sizes, seconds):
    return min(seconds), max(sizes) / max(seconds)
""",
    ),
]

ACCEPTED = [
    (
        "numpy's polyfit, weighted",
        """
def fit_link(sizes, seconds):
    import numpy
    per_byte, latency = numpy.polyfit(sizes, seconds, 1, w=1 / numpy.array(seconds))
    return latency, 1 / per_byte
""",
    ),
    (
        "the normal equations by hand",
        """
def fit_link(sizes, seconds):
    rows = [(1 / t, n / t) for n, t in zip(sizes, seconds)]
    aa, ab, bb = (sum(r[i] * r[j] for r in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = sum(r[0] for r in rows), sum(r[1] for r in rows)
    determinant = aa * bb - ab * ab
    return (a * bb - b * ab) / determinant, determinant / (aa * b - ab * a)
""",
    ),
]
