"""Answers to balance_stages: see test_exercises.py."""

_RETURN = "return min(found)[1:]"
_TOOK = "took = [sum(forward[kind] for kind in layers) for layers in cut]"
_ROOM = "        if most > room:\n            continue\n"
_STASHED = "min(stages - stage, micro_batches) * sum("
_ORDERS = 'for order in ("pp dp", "dp pp"):'
_ENDS = "ends_at = [now[s] + 2 * latency + own[s] / reduce for s in range(stages)]"
_BORDER = "border = [latency + passed / link for link in borders]"
_BORDERS = 'borders = [inside, between, inside] if order == "pp dp" else [inside] * 3'
_REDUCE = 'reduce = inside if order == "pp dp" else between'

_PLAYED = """            done, now = {}, [0.0] * stages
            while any(waiting):
                for stage in (s for s in range(stages) if waiting[s]):
                    back, i = waiting[stage][0]
                    source = stage + 1 if back else stage - 1
                    start = now[stage]
                    if 0 <= source < stages:
                        if (back, i, source) not in done:
                            continue
                        start = max(start, done[back, i, source] + border[min(stage, source)])
                    now[stage] = done[back, i, stage] = start + (2 if back else 1) * took[stage]
                    del waiting[stage][0]
"""
_ASKED = """            @functools.cache
            def end(back, i, stage):
                place = waiting[stage].index((back, i))
                start = end(*waiting[stage][place - 1], stage) if place else 0.0
                source = stage + 1 if back else stage - 1
                if 0 <= source < stages:
                    start = max(start, end(back, i, source) + border[min(stage, source)])
                return start + (1 + back) * took[stage]

            now = [end(*actions[-1], stage) for stage, actions in enumerate(waiting)]
"""

MUTANTS = [
    (
        "the lesson's formula: each stage once, and the slowest one's other micro-batches",
        "for whom does a slow stage wait",
        (
            (
                _ENDS,
                "now = [3 * (sum(took) + (micro_batches - 1) * max(took)) + 2 * sum(border)] * stages\n"
                f"            {_ENDS}",
            ),
        ),
    ),
    (
        "as many layers in each stage",
        "what does the head cost beside a block",
        ((_TOOK, "took = [float(len(layers)) for layers in cut]"),),
    ),
    (
        "the head is a block",
        "what does the head cost beside a block",
        ((_TOOK, "took = [sum(forward[min(kind, 1)] for kind in layers) for layers in cut]"),),
    ),
    (
        "as much weight in each stage",
        "what does the embedding cost in time",
        ((_TOOK, "took = [sum(weights[kind] for kind in layers) / 24e6 for layers in cut]"),),
    ),
    (
        "data parallelism is always inside the node",
        "What crosses between the nodes in each order",
        ((_ORDERS, 'for order in ("pp dp",):'),),
    ),
    (
        "the pipeline is always inside the node",
        "What crosses between the nodes in each order",
        ((_ORDERS, 'for order in ("dp pp",):'),),
    ),
    (
        "nobody waits for gradients",
        "What crosses between the nodes in each order",
        ((_ENDS, "ends_at = now"),),
    ),
    (
        "borders cost nothing",
        "What crosses between the nodes in each order",
        ((_BORDER, "border = [0.0 for _ in borders]"),),
    ),
    (
        "the outermost axis is the neighbours'",
        "What crosses between the nodes in each order",
        (
            (_BORDERS, 'borders = [inside, between, inside] if order == "dp pp" else [inside] * 3'),
            (_REDUCE, 'reduce = inside if order == "dp pp" else between'),
        ),
    ),
    (
        "whatever fits or not",
        "the fullest rank holds",
        ((_ROOM, ""),),
    ),
    (
        "each stage keeps one micro-batch",
        "of how many micro-batches does each stage keep",
        ((_STASHED, "sum("),),
    ),
    (
        "weights have no states",
        "What are an embedding's states beside a block's",
        (("4 * own[stage] +", "own[stage] +"),),
    ),
    (
        "a stage without the head",
        "a choice is (layers of each stage, order)",
        ((_RETURN, "best = min(found)\n    return (*best[1][:3], best[1][3] - 1), best[2]"),),
    ),
    (
        "the time, too",
        "a choice is (layers of each stage, order)",
        ((_RETURN, "return min(found)"),),
    ),
    (
        "the package's own balance",
        "the answer uses dtcourse.pipeline_parallel",
        (
            (
                "    stages, found = 4, []\n",
                "    from dtcourse.pipeline_parallel import balance\n\n    balance([1.0] * 12, 4)\n    stages, found = 4, []\n",
            ),
        ),
    ),
]

NOTHING = [
    (
        "as many layers in each stage, and no order chosen",
        "\ndef balance_stages(\n    blocks, micro_batches, forward, weights, kept, passed, latency, inside, between, room\n):\n"
        '    layers = blocks + 2\n    return tuple((layers + i) // 4 for i in range(4)), "pp dp"\n',
    ),
]

ACCEPTED = [
    (
        "lists",
        ((_RETURN, "best = min(found)\n    return [list(best[1]), best[2]]"),),
    ),
    (
        "backwards from the last action of each stage",
        (
            ("    stages, found = 4, []\n", "    import functools\n\n    stages, found = 4, []\n"),
            (_PLAYED, _ASKED),
        ),
    ),
    (
        "the slowest of those within half a percent",
        ((_RETURN, "return max(f for f in found if f[0] <= 1.005 * min(found)[0])[1:]"),),
    ),
]
