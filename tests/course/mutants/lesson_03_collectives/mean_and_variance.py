"""Answers to mean_and_variance: see test_exercises.py."""

MUTANTS = [
    (
        "averages the ranks' means",
        "different numbers of values",
        """
def mean_and_variance(x):
    sums = torch.stack([x.double().mean(), x.double().square().mean()])
    dist.all_reduce(sums)
    mean, square = sums / dist.get_world_size()
    return mean, square - mean**2
""",
    ),
    (
        "averages the ranks' variances",
        "that spread is part of the variance",
        """
def mean_and_variance(x):
    x = x.double()
    n = torch.tensor(float(len(x)), dtype=torch.double)
    sums = torch.stack([n, x.sum(), x.var(unbiased=False) * n])
    dist.all_reduce(sums)
    return sums[1] / sums[0], sums[2] / sums[0]
""",
    ),
    (
        "float32 sums",
        "how many digits does float32 have",
        """
def mean_and_variance(x):
    sums = torch.stack([torch.tensor(float(len(x))), x.sum(), x.square().sum()])
    dist.all_reduce(sums)
    mean = sums[1] / sums[0]
    return mean.double(), (sums[2] / sums[0] - mean**2).double()
""",
    ),
    (
        "two passes, two messages",
        "one all_reduce is enough",
        """
def mean_and_variance(x):
    x = x.double()
    first = torch.stack([torch.tensor(float(len(x)), dtype=torch.double), x.sum()])
    dist.all_reduce(first)
    mean = first[1] / first[0]
    second = (x - mean).square().sum()
    dist.all_reduce(second)
    return mean, second / first[0]
""",
    ),
    (
        "the unbiased variance",
        "variance on rank",
        """
def mean_and_variance(x):
    x = x.double()
    sums = torch.stack([torch.tensor(float(len(x)), dtype=torch.double), x.sum(), x.square().sum()])
    dist.all_reduce(sums)
    n, total, squares = sums
    return total / n, (squares - total**2 / n) / (n - 1)
""",
    ),
]

NOTHING = [
    (
        "an all-reduce of anything",
        """
def mean_and_variance(x):
    dist.all_reduce(torch.zeros(3, dtype=torch.double))
    return x.double().mean(), x.double().var(unbiased=False)
""",
    ),
]

ACCEPTED = [
    (
        "from each rank's own mean and variance, posted and waited for",
        """
def mean_and_variance(x):
    x = x.double()
    mean, variance = x.mean(), x.var(unbiased=False)
    sums = len(x) * torch.stack([torch.ones_like(mean), mean, variance + mean**2])
    dist.all_reduce(sums, async_op=True).wait()
    return (sums[1] / sums[0]).item(), (sums[2] / sums[0] - (sums[1] / sums[0]) ** 2).item()
""",
    ),
    (
        "plain numbers of Python",
        """
def mean_and_variance(x):
    values = x.tolist()
    sums = torch.tensor([sum(values), sum(v * v for v in values), len(values)], dtype=torch.float64)
    dist.all_reduce(sums)
    total, squares, count = sums.tolist()
    return total / count, squares / count - (total / count) ** 2
""",
    ),
]
