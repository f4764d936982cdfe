"""Answers to batches_by_tokens: see test_exercises.py."""

TOKENS = """
def token_batches(lengths, budget, size):
    def tokens(batch):
        return max(lengths[i] for i in batch) * len(batch)
    batches = [[]]
    for index in {order}:
        if max(lengths[index], *[lengths[i] for i in batches[-1]], 0) * (len(batches[-1]) + 1) > budget:
            batches.append([])
        batches[-1].append(index)
    {even}
    {sort}
    steps = [batches[i : i + size] for i in range(0, len(batches), size)]
    order = {shuffle}
    return [steps[i] for i in order]
"""

BY_LENGTH = "sorted(range(len(lengths)), key=lambda i: lengths[i])"

SPLIT = """while len(batches) % size:
        large = max(batches, key=len)
        batches.remove(large)
        batches += [large[: len(large) // 2], large[len(large) // 2 :]]"""

SORT = "batches.sort(key=tokens)"

SHUFFLE = "torch.randperm(len(steps), generator=torch.Generator().manual_seed(0)).tolist()"


def tokens(order: str = BY_LENGTH, even: str = SPLIT, sort: str = SORT, shuffle: str = SHUFFLE):
    return TOKENS.format(order=order, even=even, sort=sort, shuffle=shuffle)


MUTANTS = [
    (
        "the last batches are dropped",
        "What became of the batches that do not fill",
        tokens(even="batches = batches[: len(batches) // size * size]"),
    ),
    (
        "the last step is filled up by the first batches",
        "filled up by batches that have been used",
        tokens(even="batches += batches[: -len(batches) % size]"),
    ),
    ("the last step is not full", "leaves the others waiting", tokens(even="pass")),
    (
        "sequences come in random order",
        "Which sequences should share a batch",
        tokens(
            order="torch.randperm(len(lengths), generator=torch.Generator().manual_seed(0)).tolist()"
        ),
    ),
    (
        "counts real tokens, without the padding",
        "What does one long sequence do",
        """
def token_batches(lengths, budget, size):
    batches, full = [[]], 0
    for index in torch.randperm(len(lengths), generator=torch.Generator().manual_seed(0)).tolist():
        if full + lengths[index] > budget:
            batches.append([])
            full = 0
        batches[-1].append(index)
        full += lengths[index]
    while len(batches) % size:
        large = max(batches, key=len)
        batches.remove(large)
        batches += [large[: len(large) // 2], large[len(large) // 2 :]]
    return [batches[i : i + size] for i in range(0, len(batches), size)]
""",
    ),
    (
        "batches are dealt out in random order",
        "Which batches should stand in one step",
        tokens(
            sort="batches = [batches[i] for i in torch.randperm(len(batches), generator=torch.Generator().manual_seed(0)).tolist()]"
        ),
    ),
    (
        "steps are not shuffled",
        "Lengths go one way",
        tokens(
            sort="pass",
            shuffle="range(len(steps))",
            even=SPLIT + "\n    batches.sort(key=lambda b: lengths[b[-1]])",
        ),
    ),
    (
        "each rank shuffles with its own random state",
        "What must the shuffling depend on",
        tokens(shuffle="torch.randperm(len(steps)).tolist()"),
    ),
]

NOTHING = [
    (
        "one sequence a batch",
        """
def token_batches(lengths, budget, size):
    whole = len(lengths) // size * size
    return [[[i + j] for j in range(size)] for i in range(0, whole, size)]
""",
    ),
]

ACCEPTED = [
    (
        "the longest first",
        (
            (
                "key=lambda i: lengths[i]):\n        if lengths[index] * (len(batches[-1]) + 1) > budget:",
                "key=lambda i: -lengths[i]):\n"
                "        if batches[-1] and lengths[batches[-1][0]] * (len(batches[-1]) + 1) > budget:",
            ),
        ),
    ),
    (
        "Python's shuffle of the steps",
        (
            (
                "    order = torch.randperm(len(steps), generator=torch.Generator().manual_seed(0))\n"
                "    return [steps[i] for i in order.tolist()]",
                "    import random\n\n    random.Random(7).shuffle(steps)\n    return steps",
            ),
        ),
    ),
]
