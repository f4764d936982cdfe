"""Answers to share_nodes: see test_exercises.py."""

MUTANTS = [
    ("in the order of their numbers", "Ranks with neighbouring numbers", "\ndef share_nodes(sent, per_node):\n    return [rank // per_node for rank in range(len(sent))]\n"),
    ("dealt out like cards", "Does a row send more", "\ndef share_nodes(sent, per_node):\n    return [rank % (len(sent) // per_node) for rank in range(len(sent))]\n"),
    ("the fewest bytes inside", "Ranks with neighbouring numbers", (("return max(found)", "return min(found)"),)),
    ("one direction alone", "Do you count both directions", (("sent[a][b] for a in node for b in node)", "sent[a][b] for a in node for b in node if a < b)"),)),
    ("all on one node", "each has room for", "\ndef share_nodes(sent, per_node):\n    return [0] * len(sent)\n"),
    ("the ranks of each node, not the node of each rank", "a placement is a list with the node of each rank", (("    return [next(n for n, node in enumerate(nodes) if rank in node) for rank in range(len(sent))]\n", "    return [list(node) for node in nodes]\n"),)),
    ("counted from one", "a placement is a list with the node of each rank", (("next(n for n, node in enumerate(nodes)", "next(n for n, node in enumerate(nodes, 1)"),)),
    (
        "the heaviest pair that is left, and so on",
        "keeping the heaviest pair together",
        '''
def share_nodes(sent, per_node):
    p = len(sent)
    both = {(a, b): sent[a][b] + sent[b][a] for a in range(p) for b in range(a)}
    nodes, count = [None] * p, p // per_node
    for node in range(count):
        free = [r for r in range(p) if nodes[r] is None]
        mine = [max(free, key=lambda r: max(both[max(r, o), min(r, o)] for o in free if o != r)) if len(free) > 1 else free[0]]
        while len(mine) < per_node:
            rest = [r for r in free if r not in mine]
            mine.append(max(rest, key=lambda r: sum(both[max(r, o), min(r, o)] for o in mine)))
        for r in mine:
            nodes[r] = node
    return nodes
''',
    ),
]  # fmt: skip

ACCEPTED = [
    (
        "swaps two ranks while that helps, from many starts",
        """
def share_nodes(sent, per_node):
    import random

    p, chance, best = len(sent), random.Random(0), None
    for _ in range(60):
        nodes = [r // per_node for r in range(p)]
        chance.shuffle(nodes)
        cost, better = out(sent, nodes), True
        while better:
            better = False
            for a in range(p):
                for b in range(a):
                    nodes[a], nodes[b] = nodes[b], nodes[a]
                    now = out(sent, nodes)
                    if now < cost:
                        cost, better = now, True
                    else:
                        nodes[a], nodes[b] = nodes[b], nodes[a]
        if best is None or cost < best[0]:
            best = cost, list(nodes)
    return best[1]


def out(sent, nodes):
    p = range(len(sent))
    return sum(sent[a][b] for a in p for b in p if nodes[a] != nodes[b])
""",
    ),
    (
        "all placements, rank by rank, given up when too dear",
        """
def share_nodes(sent, per_node):
    p, best = len(sent), [float("inf"), None]

    def go_on(nodes, cost):
        rank = len(nodes)
        if cost >= best[0]:
            return
        if rank == p:
            best[:] = [cost, tuple(nodes)]
            return
        for node in range(min(max(nodes, default=-1) + 2, p // per_node)):
            if nodes.count(node) < per_node:
                more = sum(sent[rank][o] + sent[o][rank] for o in range(rank) if nodes[o] != node)
                go_on([*nodes, node], cost + more)

    go_on([], 0)
    return best[1]
""",
    ),
]

NOTHING = [
    ("no rank is placed", "\ndef share_nodes(sent, per_node):\n    return []\n"),
]
