"""Answers to choose_loading: see test_exercises.py."""

_RETURN = "    return min(found)[1:]\n"
_TURNS = "math.ceil(shards / readers)"
_LEFT = "room - readers * size"
_NEW = "new = 1 - min(shards, left // place) / shards"

MUTANTS = [
    (
        "one reader per rank",
        "How many opens does the busiest reader make",
        ((_RETURN, "    return min(one for one in found if one[1] == 1)[1:]\n"),),
    ),
    (
        "as many workers as there are",
        "the best choice takes",
        ((_RETURN, "    return min(one for one in found if one[1] == most)[1:]\n"),),
    ),
    (
        "small files",
        "How many opens does the busiest reader make",
        ((_RETURN, "    return min(one for one in found if one[2] == 1)[1:]\n"),),
    ),
    (
        "the largest shards that fit",
        "how many shards has it more than the others",
        (
            (
                _RETURN,
                "    largest = max(one[2] for one in found)\n    return min(one for one in found if one[2] == largest)[1:]\n",
            ),
        ),
    ),
    (
        "shards can be divided among readers",
        "how much of it has the busiest reader",
        ((_TURNS, "shards / readers"),),
    ),
    (
        "an open costs nothing",
        "How many opens does the busiest reader make",
        (("latency + size * read", "size * read"),),
    ),
    (
        "files, whatever they cost",
        "still have to do, with files kept",
        ((_RETURN, '    return min(one for one in found if one[3] == "files")[1:]\n'),),
    ),
    (
        "decoded samples, whatever room they take",
        "what takes the room for that",
        ((_RETURN, '    return min(one for one in found if one[3] == "decoded")[1:]\n'),),
    ),
    (
        "a decoded sample is as large as its file",
        "what takes the room for that",
        (("larger * size)", "size)"),),
    ),
    (
        "readers hold nothing",
        "How many readers hold a shard at once",
        ((_LEFT, "room - 0 * readers"),),
    ),
    ("nothing is kept", "the best choice takes", ((_NEW, "new = 1.0"),)),
    (
        "the time, too",
        "a choice is (workers, samples per shard, what to keep)",
        ((_RETURN, "    return min(found)\n"),),
    ),
    ("a shard of any size", "is not possible", ((_RETURN, '    return most, 100, "files"\n'),)),
]

NOTHING = [
    (
        "nothing is chosen",
        """
def choose_loading(*cluster):
    return None
""",
    ),
]

ACCEPTED = [
    (
        "all shard sizes at once, in arrays",
        """
def choose_loading(samples, ranks, most, epochs, room, larger, latency, read, decode, compute):
    best = (float("inf"), None)
    size, ones = 2.0 ** torch.arange(13, dtype=torch.double), torch.ones(13, dtype=torch.double)
    shards = (samples / size).ceil()
    for workers in range(1, most + 1):
        left = room - ranks * workers * size
        turns = (shards / (ranks * workers)).ceil()

        def epoch(fetched, decoded):
            reader = turns * (fetched * (latency + size * read) + decoded * size * decode)
            return torch.stack([reader, fetched * samples * read, ones * samples / ranks * compute]).amax(0)

        for kept, times in (("decoded", larger), ("files", 1)):
            new = 1 - torch.minimum((left / (size * times)).floor(), shards) / shards
            total = epoch(ones, ones) + (epochs - 1) * epoch(new, new if kept == "decoded" else ones)
            total = torch.where(left < 0, float("inf"), total)
            place = int(total.argmin())
            if total[place] < best[0]:
                best = (float(total[place]), (workers, 2**place, kept))
    return best[1]
""",
    ),
    ("a list", ((_RETURN, "    return list(min(found)[1:])\n"),)),
]
