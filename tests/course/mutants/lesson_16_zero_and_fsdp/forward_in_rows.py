"""Answers to forward_in_rows: see test_exercises.py."""

_COMING = "        coming = start(i + 1) if i + 1 < len(shards) else None\n"
_LAYER = "        x = layer(i, x, weight[: rows[i]])\n"
_LOOP = "    coming = start(0)\n    for i in range(len(shards)):\n        weight, work = coming\n"
_GATHER = "        return room, dist.all_gather(list(room.split(each)), part, async_op=True)\n"

MUTANTS = [
    (
        "gathered when it is needed",
        "When does the next weight's gather start",
        ((_LOOP, _LOOP.replace("    coming = start(0)\n", "").replace("= coming", "= start(i)")), (_COMING, "")),
    ),
    (
        "the next one, after the layer",
        "When does the next weight's gather start",
        ((_COMING + _LAYER, _LAYER + _COMING),),
    ),
    (
        "waited for at once",
        "who waits for it, and when",
        ((_COMING, _COMING + "        if coming:\n            coming[1].wait()\n"),),
    ),
    (
        "all at once",
        "how many are under way",
        (
            (_LOOP, _LOOP.replace("coming = start(0)", "coming = [start(i) for i in range(len(shards))]")
             .replace("= coming\n", "= coming[i]\n")),
            (_COMING, ""),
        ),
    ),
    (
        "weights that nobody lets go",
        "When is the last weight let go",
        ((_COMING, _COMING + "        kept.append(weight)\n"), ("    coming = start(0)\n", "    coming, kept = start(0), []\n")),
    ),
    (
        "padding among the rows",
        "without its padding",
        (("weight[: rows[i]]", "weight[-rows[i] :]"),),
    ),
    (
        "the ranks turned round",
        "in rank order",
        ((_GATHER, _GATHER.replace("list(room.split(each))", "list(room.split(each))[::-1]")),),
    ),
    (
        "an all-reduce of zeros and rows",
        "What does your collective carry besides",
        (
            (_GATHER, "        rank = dist.get_rank()\n        room.zero_()\n        room[rank * each : (rank + 1) * each] = part\n"
             "        return room, dist.all_reduce(room, async_op=True)\n"),
        ),
    ),
]  # fmt: skip

NOTHING = [
    (
        "zeros",
        """
def forward_in_rows(x, shards, rows, layer):
    return x.new_zeros(len(x), rows[-1])
""",
    ),
]

ACCEPTED = [
    (
        "the form with one tensor",
        (
            (
                _GATHER,
                "        return room, dist.all_gather_into_tensor(room, part, async_op=True)\n",
            ),
        ),
    ),
    (
        "a generator of weights, one ahead",
        """
def forward_in_rows(x, shards, rows, layer):
    p = dist.get_world_size()

    def weights():
        ahead = None
        for i in range(len(shards) + 1):
            before, ahead = ahead, None
            if before is not None:
                before[1].wait()
            if i < len(shards):
                each = (rows[i] + p - 1) // p
                mine = torch.nn.functional.pad(shards[i], (0, 0, 0, each - len(shards[i])))
                room = torch.empty(p, each, mine.shape[1])
                ahead = room.view(p * each, -1)[: rows[i]], dist.all_gather(list(room), mine, async_op=True)
                del room, mine
            if before is not None:
                yield before[0]

    for i, weight in enumerate(weights()):
        x = layer(i, x, weight)
    return x
""",
    ),
]
