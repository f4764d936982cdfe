"""Answers to choose_loading: see test_exercises.py."""

_RETURN = "    return min(found)[1:]\n"
_LEFT = "left = room - (2 * workers + 2) * size * larger"
_KEEPS = 'keeps = min(shards, left // (size * (larger if kept == "decoded" else 1)))'
_NEW = "new = epoch == 0 or i * keeps // shards == (i + 1) * keeps // shards"

# The longest of three, as an average: no shard is whole, and nothing waits for the first one.
AVERAGE = """
def choose_loading(samples, most, epochs, room, larger, latency, read, decode, compute):
    found = []
    for workers in range(1, most + 1):
        for size in (2**power for power in range(8)):
            left = room - (2 * workers + 2) * size * larger
            shards = math.ceil(samples / size)
            for kept, place in (("files", size), ("decoded", larger * size)) if left >= 0 else ():
                new = 1 - min(shards, left // place) / shards

                def epoch(fetched, decoded):
                    reading = shards * fetched * latency + samples * (fetched * read + decoded * decode)
                    return max(reading / workers, fetched * samples * read, samples * compute)

                later = epoch(new, new if kept == "decoded" else 1)
                found.append((epoch(1, 1) + (epochs - 1) * later, workers, size, kept))
    return min(found)[1:]
"""

MUTANTS = [
    (
        "one worker",
        "How many opens does the busiest worker make",
        ((_RETURN, "    return min(one for one in found if one[1] == 1)[1:]\n"),),
    ),
    ("the longest of three, on average", "how many shards has it more than the others", AVERAGE),
    (
        "as many workers as there are",
        "what does one worker more take",
        ((_RETURN, "    return min(one for one in found if one[1] == most)[1:]\n"),),
    ),
    (
        "small files",
        "How many opens does the busiest worker make",
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
        "an open costs nothing",
        "How many opens does the busiest worker make",
        (("at + latency", "at"),),
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
        "workers hold nothing",
        "How many decoded shards does the loader hold",
        ((_LEFT, "left = room"),),
    ),
    ("nothing is kept", "the best choice takes", ((_NEW, "new = True"),)),
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
        "workers in a heap, epoch by epoch",
        """
import heapq


def choose_loading(samples, most, epochs, room, larger, latency, read, decode, compute):
    def epoch_seconds(workers, sizes, kept, decoded):
        heap, link, done = [0.0] * workers, 0.0, []
        for i, held in enumerate(sizes):
            at = heapq.heappop(heap)
            if i >= 2 * workers + 2:
                at = max(at, done[i - 2 * workers - 2])
            if i not in kept:
                link = max(link, at + latency) + held * read
                at = link
            at += held * decode * (i not in kept or not decoded)
            heapq.heappush(heap, at)
            done.append(max(done[-1] if done else 0.0, at) + held * compute)
        return done[-1]

    best = (float("inf"),)
    for workers in range(1, most + 1):
        for power in range(8):
            size = 1 << power
            left = room - (2 * workers + 2) * size * larger
            sizes = [min(size, samples - start) for start in range(0, samples, size)]
            for decoded in (False, True) if left >= 0 else ():
                n = min(len(sizes), left // (size * larger if decoded else size))
                kept = {i for i in range(len(sizes)) if i * n // len(sizes) != (i + 1) * n // len(sizes)}
                total = epoch_seconds(workers, sizes, (), decoded)
                total += (epochs - 1) * epoch_seconds(workers, sizes, kept, decoded)
                best = min(best, (total, workers, size, "decoded" if decoded else "files"))
    return best[1:]
""",
    ),
    ("a list", ((_RETURN, "    return list(min(found)[1:])\n"),)),
]
