"""Answers to diagnose_cut: see test_exercises.py."""

_RESTART = '    if all(rank["places"] == list(range(len(rank["words"]))) for rank in ranks):\n        return "places restart", None\n'
_MISSING = '    if missing:\n        return "shifted late", None\n'
_BEYOND = '    if beyond:\n        return "across documents", None\n'

MUTANTS = [
    ("late targets are never looked for", "Which word follows each token", ((_MISSING, ""),)),
    ("documents are never looked at", "should have none", ((_BEYOND, ""),)),
    (
        "the mean of means is taken for right",
        "May a rank have tokens in another order",
        (
            (
                '    mean = losses / sum(t != -100 for rank in ranks for t in rank["targets"])\n',
                "    mean = sum(sum(r['losses']) / sum(t != -100 for t in r['targets']) for r in ranks) / len(ranks)\n",
            ),
        ),
    ),
    (
        "the loss is never looked at",
        "How much does one token count",
        (("> 1e-4 * mean", "> 1e4 * mean"),),
    ),
    ("places that restart are another's", "Where in the sequence is each rank's first", ((_RESTART, ""),)),
    (
        "the first rank is named",
        "Which words of the sequence stand at the places",
        (('return "another\'s places", r', 'return "another\'s places", 0'),),
    ),
    (
        "every order but the contiguous one is wrong",
        "May a rank have tokens in another order",
        (
            (
                "    ends = [",
                "    if any(a != b + 1 for rank in ranks for b, a in zip(rank['places'], rank['places'][1:])):\n"
                "        return 'shifted late', None\n    ends = [",
            ),
        ),
    ),
    (
        "the last token of all is forgotten",
        "which tokens have no target",
        (("documents[at + 1 : at + 2] != [d]]", "documents[at + 1 : at + 2] not in ([d], [])]"), ("missing += target != words[at + 1]", "missing += target != (words + [None])[at + 1]")),
    ),
    ("to the last digit", "rounding to single precision", (("> 1e-4 * mean", "> 0"),)),
    ("divided by all tokens", "which tokens have no target", (('sum(t != -100 for rank in ranks for t in rank["targets"])', "len(words)"),)),
    ("a diagnosis of one thing", "A diagnosis is two things", (('return "healthy", None', 'return "healthy"'),)),
]  # fmt: skip
NAMED = "documents are never looked at"

ACCEPTED = [
    (
        "put back in the sequence's order, as tables",
        """
def diagnose_cut(words, documents, ranks):
    n, p = len(words), len(ranks)
    where = {word: at for at, word in enumerate(words)}
    true = [[where[word] for word in rank["words"]] for rank in ranks]
    off = [r for r in range(p) if true[r] != rank_places(ranks[r])]
    if len(off) == 1:
        return ["another's places", off[0]]
    if off:
        return ["places restart", None]
    targets = [None] * n
    for places, rank in zip(true, ranks):
        for at, target in zip(places, rank["targets"]):
            targets[at] = target
    right = [words[i + 1] if i + 1 < n and documents[i] == documents[i + 1] else -100 for i in range(n)]
    wrong = [i for i in range(n) if targets[i] != right[i]]
    if wrong:
        late = any(right[i] != -100 for i in wrong)
        return ["shifted late" if late else "across documents", None]
    counted = [(sum(r["losses"]), len(r["targets"]) - r["targets"].count(-100)) for r in ranks]
    total = sum(a for a, _ in counted) / sum(b for _, b in counted)
    return ["healthy" if abs(total / ranks[-1]["loss"] - 1) < 1e-3 else "mean of means", None]


def rank_places(rank):
    return list(rank["places"])
""",
    ),
    (
        "another tolerance",
        (("> 1e-4 * mean", "> 1e-3"),),
    ),
]

NOTHING = [
    (
        "always healthy",
        '\ndef diagnose_cut(words, documents, ranks):\n    return "healthy", None\n',
    ),
    (
        "always late",
        '\ndef diagnose_cut(words, documents, ranks):\n    return "shifted late", None\n',
    ),
]
