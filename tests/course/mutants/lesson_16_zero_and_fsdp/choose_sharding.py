"""Answers to choose_sharding: see test_exercises.py."""

_RETURN = "    return min(found)[1:]\n"
_HYBRID = "                messages += 2 * (nodes - 1) / nodes * 2 * parameters / s / between\n"

MUTANTS = [
    (
        "the lowest stage that fits",
        "the best choice takes",
        ((_RETURN, "    return min(found, key=lambda one: (one[1], one[0]))[1:]\n"),),
    ),
    (
        "always over all",
        "What travels between the nodes",
        ((_RETURN, '    return min(one for one in found if one[2] == "all")[1:]\n'),),
    ),
    (
        "one ring, through one card of a node",
        "by how many cards of a node",
        (("min(inside, per_node * between) if", "between if"),),
    ),
    (
        "the parts' all-reduce is forgotten",
        "the best choice takes",
        ((_HYBRID, "                messages += 0\n"),),
    ),
    (
        "stage 3 makes two passes",
        "the best choice takes",
        (("(3 if stage == 3 else 2) * 2 * parameters", "2 * 2 * parameters"),),
    ),
    (
        "copies cost nothing",
        "the best choice takes",
        (("copies = 4 * parameters / s / host if offload else 0", "copies = 0"),),
    ),
    (
        "it always fits",
        "What does each stage shard",
        ((" <= room:", " <= 1e30:"),),
    ),
    (
        "nothing is hidden",
        "the best choice takes",
        (("max(compute, messages) + copies", "compute + messages + copies"),),
    ),
    (
        "no choice",
        "a choice is (stage, over, offload)",
        ((_RETURN, "    return min(found)[1]\n"),),
    ),
]  # fmt: skip

NOTHING = [
    (
        "stage 3 over all, offloaded: it fits",
        """
def choose_sharding(parameters, nodes, per_node, room, compute, inside, between, host):
    return 3, "all", True
""",
    ),
]

ACCEPTED = [
    (
        "the highest stage where several take as long",
        ((_RETURN, "    return min(found, key=lambda one: (round(one[0], 9), -one[1]))[1:]\n"),),
    ),
    (
        "one choice after the other",
        """
def choose_sharding(parameters, nodes, per_node, room, compute, inside, between, host):
    from itertools import product
    least, choice = float("inf"), None
    for stage, over, offload in product((3, 2, 1), ("all", "node"), (True, False)):
        s = per_node if over == "node" else per_node * nodes
        need = sum(
            each / s if stage >= first else each
            for each, first in ((2, 3), (2, 2), (0 if offload else 12, 1))
        )
        if need * parameters > room:
            continue
        bytes_of_a_pass = 2 * parameters * (1 - 1 / s)
        passes = 3 if stage == 3 else 2
        takes = passes * bytes_of_a_pass / (inside if s == per_node else min(inside, between * per_node))
        if over == "node":
            takes += 4 * parameters * (1 - 1 / nodes) / s / between
        takes = max(takes, compute) + offload * 4 * parameters / s / host
        if takes < least:
            least, choice = takes, (stage, over, offload)
    return list(choice)
""",
    ),
]
