"""Answers to choose_quantiser: see test_exercises.py."""

_HEAD = "\ndef choose_quantiser(measure, all_bits, blocks, ways, error):\n"
_RING = 'found = {(32, None, "ring"): measure(32, None, "ring")[0]}'
_WITHIN = "                if lost <= error:\n"
_BYTES = "how many bytes does each way send"
_MESSAGES = "How many messages does each way wait for"
_MEMORY = "What does compressing itself take"
_ERROR = "What does measure say of its error"

# The lesson's formula of bytes, and its error of a scale per block; nothing is measured.
_LESSONS = """
def choose_quantiser(measure, all_bits, blocks, ways, error):
    N, p = 12288, 4

    def nbytes(bits, block, way):
        each = bits / 8 + 4 / block
        return (p - 1) * N * each if way == "everyone" else 2 * (p - 1) / p * N * each

    lost = {8: 0.0055, 4: 0.1012, 2: 0.61}
    within = [(b, k, w) for b in all_bits for k in blocks for w in ways if lost[b] <= error]
    return min(within or [(32, None, "ring")], key=lambda one: nbytes(*one))
"""

MUTANTS = [
    ("parts only", _MESSAGES, (("    for way in ways:\n", "    for way in ways[:1]:\n"),)),
    ("the lesson's bytes and errors", _ERROR, _LESSONS),
    ("everyone only", _BYTES, (("    for way in ways:\n", "    for way in ways[1:]:\n"),)),
    (
        "the error is never looked at",
        _ERROR,
        ((_WITHIN, "                if True:\n"), ("measure(bits, blocks[0], way)[1] > error", "measure(bits, blocks[0], way)[1] > 10")),
    ),
    ("the error of the smallest block is every block's", _ERROR, ((_WITHIN, "                if True:\n"),)),
    ("half of the error", _BYTES, ((_WITHIN, "                if lost <= error / 2:\n"),)),
    ("always the smallest block", _BYTES, (("reversed(blocks)", "blocks[:1]"),)),
    ("always compressed", _MEMORY, ((_RING, "found = {}"), ("return min(found, key=found.get)", 'return min(found, key=found.get, default=(32, None, "ring"))'))),
    ("8 bits, in blocks of 256, by parts, always", _BYTES, _HEAD + '    return 8, 256, "parts"\n'),
    ("the most bits within the error", _BYTES, (("for bits in all_bits:", "for bits in reversed(all_bits):"),)),
    (
        "everything is measured",
        "no more may be",
        (("    for way in ways:\n", "    [measure(b, k, w) for b in all_bits for k in blocks for w in ways]\n    for way in ways:\n"),),
    ),
    ("the slowest", "the best choice takes", (("return min(found, key=found.get)", "return max(found, key=found.get)"),)),
    ("one number of what is measured", _ERROR, (("seconds, lost = measure(bits, block, way)", "lost, seconds = measure(bits, block, way)"),)),
    ("bits alone", "a choice is 3 things", (("return min(found, key=found.get)", "return min(found, key=found.get)[0]"),)),
    ("a block that is not there", "is not possible", _HEAD + '    return 4, 128, "parts"\n'),
]  # fmt: skip

ACCEPTED = [
    (
        "ways at the smallest block first, then larger ones of the better way, as a list",
        _HEAD
        + """    plain = measure(32, None, "ring")[0]
    best, choice = plain, (32, None, "ring")
    for bits in all_bits:
        tried = {way: measure(bits, blocks[0], way) for way in ways}
        if min(lost for _, lost in tried.values()) > error:
            continue
        for way in sorted(ways, key=lambda way: tried[way][0]):
            if tried[way][1] > error:
                continue
            for block in blocks:
                seconds, lost = measure(bits, block, way)
                if lost > error:
                    break
                if seconds < best:
                    best, choice = seconds, (bits, block, way)
        break
    return list(choice)
""",
    ),
    (
        "by halving over the blocks",
        _HEAD
        + """    seen = [(measure(32, None, "ring")[0], (32, None, "ring"))]
    for way in ways:
        for bits in all_bits:
            low, high = -1, len(blocks) - 1
            while low < high:
                middle = (low + high + 1) // 2
                seconds, lost = measure(bits, blocks[middle], way)
                if lost <= error:
                    low = middle
                    seen.append((seconds, (bits, blocks[middle], way)))
                else:
                    high = middle - 1
            if low >= 0:
                break
    return min(seen, key=lambda one: one[0])[1]
""",
    ),
]

NOTHING = [
    ("nothing is chosen", _HEAD + "    return None\n"),
    ("2 bits in the largest blocks, always", _HEAD + '    return 2, 1024, "parts"\n'),
]
