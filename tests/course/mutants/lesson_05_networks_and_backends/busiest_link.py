"""Answers to busiest_link: see test_exercises.py."""

_LESSON = """
def busiest_link(links, flows):
    import itertools

    import networkx

    graph = networkx.Graph()
    for a, b, rate in links:
        graph.add_edge(a, b, bandwidth=rate)
    busy = defaultdict(float)
    for a, b, nbytes in flows:
        if a not in graph or b not in graph or not networkx.has_path(graph, a, b):
            return (a, b), math.inf
        ways = list(networkx.all_shortest_paths(graph, a, b))
        for way in ways:
            for link in itertools.pairwise(way):
                busy[link] += nbytes / len(ways) / graph.edges[link]["bandwidth"]
    worst = max(busy, key=busy.get)
    return worst, busy[worst]
"""

MUTANTS = [
    ("the lesson's own cell: every way gets a part", "if every *way* got an equal part", _LESSON),
    (
        "the ready-made one",
        "asks you to write that yourself",
        """
def busiest_link(links, flows):
    import networkx
    from dtcourse.simulator import ecmp, topology
    graph = networkx.Graph()
    for a, b, rate in links:
        graph.add_edge(a, b, bandwidth=rate)
    busy = ecmp.link_seconds(topology.Topology("given", graph), flows)
    worst = max(busy, key=busy.get)
    return worst, busy[worst]
""",
    ),
    ("one of the shortest ways", "Which neighbours are one link nearer", (("nearer = [other for other in neighbours[node] if left[other] < left[node]]", "nearer = [other for other in neighbours[node] if left[other] < left[node]][:1]"),)),
    ("bytes, not seconds, are compared", "is it bytes that you compare, or seconds", (("    worst = max(busy, key=busy.get)", "    worst = max(busy, key=lambda link: busy[link] * rates[link])"),)),
    ("both directions are one", "keep the way from b to a busy", (("                busy[node, other] += part / rates[node, other]", "                busy[min(node, other), max(node, other)] += part / rates[node, other]"),)),
    ("the other direction", "From which of its ends do the bytes come", (("    return worst, busy[worst]", "    return worst[::-1], busy[worst]"),)),
    ("wide links get more", "look at its links' rates", (("part = here[node] / len(nearer)", "part = here[node] * rates[node, other] / sum(rates[node, one] for one in nearer)"),)),
    ("flow by flow, the longest of all", "do all flows over a link count", (("        if source not in left:", "        busy = defaultdict(float, {link: -abs(n) for link, n in busy.items()})\n        if source not in left:"), ("                busy[node, other] += part / rates[node, other]", "                busy[node, other] = max(abs(busy[node, other]), part / rates[node, other])"), ("    worst = max(busy, key=busy.get)\n", "    busy = {link: abs(n) for link, n in busy.items()}\n    worst = max(busy, key=busy.get)\n"))),
    ("all neighbours that are not farther", "Which neighbours are one link nearer", (("if left[other] < left[node]]", "if left[other] < left[node] or (left[other] == left[node] and order.index(other) < order.index(node))]"),)),
    ("the nearest first: passed on before all has come", "you say", (("for node in reversed(order[1:]):", "for node in order[1:]:"),)),
    ("milliseconds", "you say", (("    return worst, busy[worst]", "    return worst, 1e3 * busy[worst]"),)),
    ("a flow without a way is left out", "Did your search ever come", (("            return (source, end), math.inf", "            continue"),)),
    ("no seconds", "an answer is ((from, to), seconds)", (("    return worst, busy[worst]", "    return worst"),)),
]  # fmt: skip

NOTHING = [
    (
        "the first link, at once",
        "\ndef busiest_link(links, flows):\n    return links[0][:2], 0.0\n",
    ),
]

ACCEPTED = [
    (
        "networkx for the distances, recursion that remembers",
        """
def busiest_link(links, flows):
    import networkx

    graph = networkx.DiGraph()
    for a, b, rate in links:
        graph.add_edge(a, b, rate=rate, load=0.0)
        graph.add_edge(b, a, rate=rate, load=0.0)
    ends = {}
    for source, end, nbytes in flows:
        ends.setdefault(end, defaultdict(float))[source] += nbytes
    for end, sources in ends.items():
        if end not in graph:
            return (next(iter(sources)), end), math.inf
        left = networkx.single_source_shortest_path_length(graph, end)
        for source in sources:
            if source not in left:
                return (source, end), math.inf
        held = {}

        def comes(node):
            if node not in held:
                held[node] = sources[node] + sum(
                    comes(one) / sum(left[n] == left[node] for n in graph[one])
                    for one in graph[node]
                    if left[one] == left[node] + 1
                )
            return held[node]

        for a, b in graph.edges:
            if a in left and left[a] == left[b] + 1:
                share = comes(a) / sum(left[n] == left[b] for n in graph[a])
                graph.edges[a, b]["load"] += share / graph.edges[a, b]["rate"]
    worst = max(graph.edges, key=lambda link: graph.edges[link]["load"])
    return worst, graph.edges[worst]["load"]
""",
    ),
    (
        "visits of a chain, as linear equations",
        """
def busiest_link(links, flows):
    names = sorted({n for a, b, _ in links for n in (a, b)} | {n for a, b, _ in flows for n in (a, b)})
    place = {name: i for i, name in enumerate(names)}
    n = len(names)
    rate = torch.zeros(n, n, dtype=torch.double)
    for a, b, r in links:
        rate[place[a], place[b]] = rate[place[b], place[a]] = r
    linked = rate > 0
    far = torch.full((n, n), math.inf)
    far.fill_diagonal_(0)
    far[linked] = 1
    for k in range(n):
        far = torch.minimum(far, far[:, k : k + 1] + far[k : k + 1, :])
    busy = torch.zeros(n, n, dtype=torch.double)
    for source, end, nbytes in flows:
        a, b = place[source], place[end]
        if far[a, b] == math.inf:
            return [[source, end], math.inf]
        step = (linked & (far[:, b][None, :] < far[:, b][:, None])).double()
        step /= step.sum(1, keepdim=True).clamp(min=1)
        start = torch.zeros(n, dtype=torch.double)
        start[a] = nbytes
        visits = torch.linalg.solve(torch.eye(n, dtype=torch.double) - step.T, start)
        busy += torch.where(linked, visits[:, None] * step / rate.clamp(min=1), 0.0)
    i, j = divmod(int(busy.argmax()), n)
    return [[names[i], names[j]], busy[i, j]]
""",
    ),
]
