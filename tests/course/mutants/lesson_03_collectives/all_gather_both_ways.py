"""Answers to all_gather_both_ways: see test_exercises.py."""

from tests.course.hidden import EVERYONES

_HEAD = """
def all_gather_both_ways(flat):
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = flat.chunk(size)
    right, left = (rank + 1) % size, (rank - 1) % size
"""

MUTANTS = [
    (
        "the lesson's ring, one way",
        "What travels to the left while a part travels to the right",
        _HEAD
        + """    for step in range(size - 1):
        passing, coming = (rank - step) % size, (rank - step - 1) % size
        sending = dist.isend(parts[passing], right)
        dist.recv(parts[coming], left)
        sending.wait()
""",
    ),
    (
        "first all to the right, then all to the left",
        "What travels to the left while a part travels to the right",
        _HEAD
        + """    for step in range(size // 2):
        sending = dist.isend(parts[(rank - step) % size], right)
        dist.recv(parts[(rank - step - 1) % size], left)
        sending.wait()
    for step in range((size - 1) // 2):
        sending = dist.isend(parts[(rank + step) % size], left)
        dist.recv(parts[(rank + step + 1) % size], right)
        sending.wait()
""",
    ),
    (
        "straight to everyone",
        "its cables go to its two neighbours",
        _HEAD
        + """    others = [r for r in range(size) if r != rank]
    work = [dist.irecv(parts[r], r) for r in others] + [dist.isend(parts[rank], r) for r in others]
    for one in work:
        one.wait()
""",
    ),
    (
        "both ways carry everything",
        "that its receiver has already",
        _HEAD
        + """    for step in range(size // 2):
        work = [dist.isend(parts[(rank - step) % size], right)]
        work.append(dist.irecv(parts[(rank - step - 1) % size], left))
        other = torch.empty_like(parts[0])
        if size > 2:
            work.append(dist.isend(parts[(rank + step) % size], left))
            work.append(dist.irecv(other, right))
        for one in work:
            one.wait()
        if size > 2:
            parts[(rank + step + 1) % size].copy_(other)
    if size == 5:  # and once more
        sending = dist.isend(parts[rank], right)
        dist.recv(torch.empty_like(parts[0]), left)
        sending.wait()
""",
    ),
    (
        "blocking sends",
        "wait",
        _HEAD
        + """    for step in range(size // 2):
        dist.send(parts[(rank - step) % size], right)
        dist.recv(parts[(rank - step - 1) % size], left)
        if step < (size - 1) // 2:
            dist.send(parts[(rank + step) % size], left)
            dist.recv(parts[(rank + step + 1) % size], right)
""",
    ),
    (
        "sends to the left what goes to the right",
        "whose from the right",
        (("isend(parts[(rank + step) % size], left)", "isend(parts[(rank - step) % size], left)"),),
    ),
    (
        "one step too few",
        "was never written",
        (("for step in range(size // 2):", "for step in range((size - 1) // 2):"),),
    ),
    (
        "torch's own",
        "build it from send and receive",
        _HEAD + "    dist.all_gather(list(parts), parts[rank].clone())\n",
    ),
    (
        "sends nothing that is counted",
        "Where does the rest come from?",
        EVERYONES
        + """def all_gather_both_ways(flat):
    rank, size = dist.get_rank(), dist.get_world_size()
    flat.copy_(torch.cat(everyones(flat.chunk(size)[rank])))
""",
    ),
    (
        "its messages are waited for by nobody",
        "before a message could have come",
        EVERYONES
        + """under_way = []


def all_gather_both_ways(flat):
    rank, size = dist.get_rank(), dist.get_world_size()
    part, left, right = flat.chunk(size)[rank].clone(), (rank - 1) % size, (rank + 1) % size
    flat.copy_(torch.cat(everyones(part)))
    for number, to, source in ((size // 2, right, left), ((size - 1) // 2, left, right)):
        for _ in range(number):
            received = torch.empty_like(part)
            under_way.extend((received, dist.irecv(received, source), dist.isend(part, to)))
""",
    ),
]  # fmt: skip

NOTHING = [("nothing is sent", "\ndef all_gather_both_ways(flat):\n    return None\n")]

ACCEPTED = [
    (
        "the part opposite comes from the right",
        _HEAD
        + """    for step in range(size // 2):
        work = [dist.irecv(parts[(rank + step + 1) % size], right), dist.isend(parts[(rank + step) % size], left)]
        if step < (size - 1) // 2:
            work.append(dist.irecv(parts[(rank - step - 1) % size], left))
            work.append(dist.isend(parts[(rank - step) % size], right))
        while work:
            work.pop().wait()
""",
    ),
    (
        "all receives posted at the start, blocking sends",
        _HEAD
        + """    from_left = [dist.irecv(parts[(rank - s - 1) % size], left) for s in range(size // 2)]
    from_right = [dist.irecv(parts[(rank + s + 1) % size], right) for s in range((size - 1) // 2)]
    for step in range(size // 2):
        dist.send(parts[(rank - step) % size], right)
        if step < len(from_right):
            dist.send(parts[(rank + step) % size], left)
            from_right[step].wait()
        from_left[step].wait()
""",
    ),
]
