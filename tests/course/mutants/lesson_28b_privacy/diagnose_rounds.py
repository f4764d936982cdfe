"""Answers to diagnose_rounds: see test_exercises.py."""

_REUSED = '            if key in keys.setdefault(client, set()):\n                return "reused", client\n'
_LONG = "            if norm > max_norm * (1 + 1e-9):\n"
_FEW = '        if len(one["answered"]) < threshold:\n'
_CAME = '        for client in one["answered"]:\n'
_BOTH = "            if min(of_seed.get(v, 0), of_key.get(v, 0)) >= threshold:\n"

_BY_SETS = """
def uncovered(threshold, one):
    for victim in one["norms"]:
        halves = [[], []]
        for client in one["answered"]:
            for half, listed in zip(halves, one["asked"][client]):
                if victim in listed:
                    half.append(client)
        if all(len(half) >= threshold for half in halves):
            return victim
    return None


def diagnose_rounds(threshold, max_norm, rounds):
    for number, one in enumerate(rounds):
        if sum(1 for _ in one["answered"]) < threshold:
            return ["too few", number]
    for client in rounds[0]["keys"]:
        seen = [one["keys"][client] for one in rounds if client in one["keys"]]
        if len(seen) != len(set(seen)):
            return ["reused", client]
    longest = max(((norm, client) for one in rounds for client, norm in one["norms"].items()))
    if longest[0] > 1.01 * max_norm:
        return ["unclipped", longest[1]]
    for one in rounds:
        victim = uncovered(threshold, one)
        if victim is not None:
            return ["uncovered", victim]
    return ["healthy", None]
"""

MUTANTS = [
    (
        "lists that differ are enough",
        "How many shares give a secret back",
        ((_BOTH, "            if min(of_seed.get(v, 0), of_key.get(v, 0)) >= 1:\n"),),
    ),
    (
        "who was asked, and not who has answered",
        "whose have come to the server",
        ((_CAME, '        for client in one["asked"]:\n'),),
    ),
    (
        "one list with a client on both",
        "Two secrets hide one vector",
        ((_BOTH, '            if any(v in s and v in d for s, d in one["asked"].values()):\n'),),
    ),
    (
        "nobody is ever uncovered",
        "have enough shares of both come to the server",
        ((_BOTH, "            if False:\n"),),
    ),
    (
        "one share less is enough",
        "How many shares give a secret back",
        ((_BOTH, "            if min(of_seed.get(v, 0), of_key.get(v, 0)) >= threshold - 1 > 0:\n"),),
    ),
    ("keys are not compared", "Equal keys make equal masks", ((_REUSED, "            keys.setdefault(client, set())\n"),)),
    (
        "keys are compared with the last round's alone",
        "in all of the rounds",
        (("            keys[client].add(key)\n", "            keys[client] = {key}\n"),),
    ),
    (
        "a vector as long as is allowed",
        "exactly as long as is allowed",
        ((_LONG, "            if norm >= max_norm:\n"),),
    ),
    ("lengths are not looked at", "which one is longer", ((_LONG, "            if False:\n"),)),
    (
        "one answer more is needed",
        "How many shares give a secret back",
        ((_FEW, '        if len(one["answered"]) <= threshold:\n'),),
    ),
    ("answers are not counted", "how many have come", ((_FEW, "        if False:\n"),)),
    (
        "rounds from 1",
        "how many have come",
        (("            return \"too few\", number\n", "            return \"too few\", number + 1\n"),),
    ),
    ("a word alone", "A diagnosis is two things", (('    return "healthy", None\n', '    return "healthy"\n'),)),
    (
        "two answers too few",
        "how many have come",
        ((_FEW, '        if len(one["answered"]) < threshold - 1:\n'),),
    ),
    (
        "fewer than two answers",
        "how many have come",
        ((_FEW, '        if len(one["answered"]) < min(2, threshold):\n'),),
    ),
    (
        "lengths of those who have answered alone",
        "which one is longer",
        ((_LONG, '            if client in one["answered"] and norm > max_norm * (1 + 1e-9):\n'),),
    ),
    (
        "keys are compared with the first round's alone",
        "in all of the rounds",
        (("            keys[client].add(key)\n", "            keys[client] = keys[client] or {key}\n"),),
    ),
    (
        "one share more of a key is needed",
        "have enough shares of both come",
        ((_BOTH, "            if min(of_seed.get(v, 0), of_key.get(v, 0) - 1) >= threshold:\n"),),
    ),
    (
        "a client holds no share of its own seed",
        "have enough shares of both come",
        (("            for v in survivors:\n", "            for v in set(survivors) - {client}:\n"),),
    ),
]  # fmt: skip

NAMED = "nobody is ever uncovered"

ACCEPTED = [
    (
        "too few where the seed of one that has sent is unknown as well",
        (
            (
                _FEW,
                '        answered = one["answered"]\n'
                '        seeds = {v: sum(v in one["asked"][u][0] for u in answered) for v in one["norms"]}\n'
                "        if len(answered) < threshold or min(seeds.values()) < threshold:\n",
            ),
        ),
    ),
    ("one question after the other, over all rounds", _BY_SETS),
    (
        "shares as lists of holders",
        (
            (
                "                of_seed[v] = of_seed.get(v, 0) + 1\n",
                "                of_seed.setdefault(v, []).append(client)\n",
            ),
            (
                "                of_key[v] = of_key.get(v, 0) + 1\n",
                "                of_key.setdefault(v, []).append(client)\n",
            ),
            (
                _BOTH,
                "            if all(len(set(of.get(v, ()))) >= threshold for of in (of_seed, of_key)):\n",
            ),
        ),
    ),
]

NOTHING = [
    (
        "all is well",
        '\ndef diagnose_rounds(threshold, max_norm, rounds):\n    return "healthy", None\n',
    ),
    (
        "always client 0",
        '\ndef diagnose_rounds(threshold, max_norm, rounds):\n    return "uncovered", 0\n',
    ),
]
