"""Answers to flat_to_rows: see test_exercises.py."""

# The lesson's `cut_rows`, on a flat vector that all ranks have gathered.
_GATHERED = """
def flat_to_rows(part, shapes):
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [torch.empty_like(part) for _ in range(size)]
    dist.all_gather(parts, part)
    flat, found = torch.cat(parts), []
    for shape in shapes:
        whole, flat = flat[: torch.Size(shape).numel()], flat[torch.Size(shape).numel() :]
        each = -(-shape[0] // size)
        found.append(whole.view(shape)[rank * each : (rank + 1) * each])
    return found
"""

MUTANTS = [
    (
        "the lesson's own: all of it gathered, and cut by rows",
        "Which elements of its part does each other rank need",
        _GATHERED,
    ),
    (
        "rows rounded down",
        "How many rows has each rank",
        (("each, elements = -(-shape[0] // size)", "each, elements = max(1, shape[0] // size)"),),
    ),
    (
        "one row too far",
        "How many rows has each rank",
        (("min((of + 1) * each, shape[0])", "min((of + 1) * each + 1, shape[0])"),),
    ),
    (
        "put together tensor by tensor in the order of the holders, from the last to the first",
        "in which order do they arrive",
        (
            (
                "    parts = rows.split(",
                "    rows = torch.cat(rows.split(coming)[::-1])\n    parts = rows.split(",
            ),
        ),
    ),
    (
        "as if each tensor began at a flat part",
        "Where do these rows lie in the flat vector",
        (
            ("            start += elements\n", "            start = -(-(start + elements) // len(part)) * len(part)\n"),
            ("    rows = part.new_empty(sum(coming))", "    rows = part.new_zeros(sum(b - a for a, b in runs(rank)))"),
            (
                "    dist.all_to_all_single(rows, torch.cat([part[:0], *leaving]), coming, counts)\n",
                "    dist.all_to_all_single(rows[: sum(coming)], torch.cat([part[:0], *leaving]), coming, counts)\n",
            ),
        ),
    ),
    (
        "every rank sends its whole part to each",
        "Which elements of its part does each other rank need",
        (
            (
                "    dist.all_to_all_single(rows, torch.cat([part[:0], *leaving]), coming, counts)\n",
                "    whole = part.new_empty(size * len(part))\n"
                "    dist.all_to_all_single(whole, part.repeat(size))\n"
                "    rows = torch.cat([whole[a:b] for a, b in runs(rank)])\n",
            ),
        ),
    ),
    (
        "room for the whole unit",
        "What does it keep",
        (
            (
                "    rows = part.new_empty(sum(coming))\n",
                "    room = part.new_empty(2 * size * len(part))\n    rows = room[: sum(coming)]\n",
            ),
        ),
    ),
]  # fmt: skip

NOTHING = [
    (
        "rows of zeros",
        """
def flat_to_rows(part, shapes):
    rank, size = dist.get_rank(), dist.get_world_size()
    return [torch.zeros(shape).split(-(-shape[0] // size))[0][: max(0, shape[0] - rank)] for shape in shapes]
""",
    ),
]

ACCEPTED = [
    (
        "messages from rank to rank, straight into their places",
        """
def flat_to_rows(part, shapes):
    rank, size = dist.get_rank(), dist.get_world_size()
    found = []
    for shape in shapes:
        each = -(-shape[0] // size)
        found.append(part.new_empty(max(0, min(each, shape[0] - rank * each)), *shape[1:]))
    works, start = [], 0
    for number, shape in enumerate(shapes):
        width = torch.Size(shape[1:]).numel()
        each = -(-shape[0] // size)
        for needs in range(size):
            first = start + min(needs * each, shape[0]) * width
            last = start + min((needs + 1) * each, shape[0]) * width
            for holder in range(size):
                a = max(first, holder * len(part))
                b = min(last, (holder + 1) * len(part))
                if a >= b:
                    continue
                from_here = part[a - holder * len(part) : b - holder * len(part)]
                to_here = found[number].view(-1)[a - first : b - first]
                if holder == rank == needs:
                    to_here.copy_(from_here)
                elif holder == rank:
                    works.append(dist.isend(from_here, needs, tag=number))
                elif needs == rank:
                    works.append(dist.irecv(to_here, holder, tag=number))
        start += shape[0] * width
    for work in works:
        work.wait()
    return found
""",
    ),
    (
        "the flat vector walked from cut to cut, and an all-to-all of each tensor",
        """
def flat_to_rows(part, shapes):
    rank, size, n = dist.get_rank(), dist.get_world_size(), len(part)
    found, start = [], 0
    for shape in shapes:
        end = start + torch.Size(shape).numel()
        rows = -(-shape[0] // size)
        width = (end - start) // shape[0]
        cuts = {start + r * rows * width for r in range(size)} | {r * n for r in range(size + 1)}
        cuts = sorted({start, end} | {cut for cut in cuts if start < cut < end})
        sending, coming = [0] * size, [0] * size
        first = None
        for a, b in zip(cuts, cuts[1:]):
            holder, needs = a // n, (a - start) // (rows * width)
            if holder == rank:
                first = a - rank * n if first is None else first
                sending[needs] += b - a
            if needs == rank:
                coming[holder] += b - a
        first = first or 0
        out = part.new_empty(sum(coming))
        dist.all_to_all_single(out, part[first : first + sum(sending)].clone(), coming, sending)
        found.append(out.view(-1, *shape[1:]))
        start = end
    return found
""",
    ),
]
