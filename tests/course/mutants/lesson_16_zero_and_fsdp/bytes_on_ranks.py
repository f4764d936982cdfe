"""Answers to bytes_on_ranks: see test_exercises.py."""

from tests.course.edits import changed

_BYTES = """
def bytes_on_ranks(sizes, ranks, stage, weights=2, gradients=2, optimizer=12):
    own = [0] * ranks
    for size in sorted(sizes, reverse=True):
        own[own.index(min(own))] += size
    if stage == 3:
        own = [-(-sum(sizes) // ranks)] * ranks
    whole = [sum(sizes)] * ranks
    held = [
        (weights, own if stage >= 3 else whole),
        (gradients, own if stage >= 2 else whole),
        (optimizer, own if stage >= 1 else whole),
    ]
    return [sum(each * elements[rank] for each, elements in held) for rank in range(ranks)]
"""

MUTANTS = [
    (
        "stage 2 leaves the gradients whole",
        "Which of the three does this stage shard",
        changed(_BYTES, "stage >= 2", "stage >= 3"),
    ),
    (
        "dealt out in the model's order",
        "In what order are the parameters dealt out",
        changed(_BYTES, "sorted(sizes, reverse=True)", "sizes"),
    ),
    (
        "even shares for whole parameters",
        "who gets the next one",
        changed(_BYTES, "if stage == 3:", "if stage >= 1:"),
    ),
    (
        "no padding",
        "All parts are of one size",
        changed(_BYTES, "-(-sum(sizes) // ranks)", "sum(sizes) // ranks"),
    ),
    (
        "dealt out in turn",
        "who gets the next one",
        changed(
            changed(_BYTES, "for size in sorted", "for i, size in enumerate(sorted"),
            "reverse=True):\n        own[own.index(min(own))]",
            "reverse=True)):\n        own[i % ranks]",
        ),
    ),
]

NOTHING = [
    (
        "all of it everywhere",
        """
def bytes_on_ranks(sizes, ranks, stage, weights=2, gradients=2, optimizer=12):
    return [sum(sizes) * (weights + gradients + optimizer)] * ranks
""",
    ),
]

ACCEPTED = [
    (
        "a heap of ranks",
        """
def bytes_on_ranks(sizes, ranks, stage, weights=2, gradients=2, optimizer=12):
    import heapq
    heap, total = [(0, rank) for rank in range(ranks)], sum(sizes)
    for size in sorted(sizes, reverse=True):
        held, rank = heapq.heappop(heap)
        heapq.heappush(heap, (held + size, rank))
    own = {rank: held for held, rank in heap}
    whole = total * ((stage < 3) * weights + (stage < 2) * gradients + (stage < 1) * optimizer)
    each = (stage > 2) * weights + (stage > 1) * gradients + (stage > 0) * optimizer
    part = (total + ranks - 1) // ranks
    return [whole + each * (part if stage == 3 else own[rank]) for rank in range(ranks)]
""",
    ),
    (
        "tensors of whole numbers",
        """
def bytes_on_ranks(sizes, ranks, stage, weights=2, gradients=2, optimizer=12):
    own = torch.zeros(ranks, dtype=torch.long)
    for size in sorted(sizes)[::-1]:
        own[int((own == own.min()).nonzero()[0])] += size
    if stage == 3:
        own.fill_(-(-sum(sizes) // ranks))
    whole = torch.full_like(own, sum(sizes))
    widths = ((3, weights), (2, gradients), (1, optimizer))
    return sum(width * (own if stage >= first else whole) for first, width in widths).tolist()
""",
    ),
]
