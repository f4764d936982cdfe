"""Flows on broken networks, drawn anew each time: which link is busy longest, and for how long?"""

from __future__ import annotations

import math
import random
from statistics import mode
from typing import Any

from dtcourse.course.judging import Answer, Exercise, call_each, number, require
from dtcourse.plural import plural

BUSIEST = Exercise(
    "busiest_link",
    lesson="05",
    title="The busiest link of a broken network",
    takes=("busiest_link",),
    target="the link, and its seconds to 6 digits, of 18 networks of 8 to 28 nodes, drawn anew each time",
    forbidden=("dtcourse.simulator",),
)

EACH = 3  # networks of each kind in a check
KINDS = ("machine", "torus", "leaf and spine")
# Links that go missing, or of which a part is left: fewer than each network has beyond a tree's.
TAKEN = 4
Links = list[tuple[str, str, float]]
Flows = list[tuple[str, str, float]]


def _whole(kind: str) -> Any:
    """A network of that kind without faults, whose rates are all a little different: no two links are as busy."""
    from dtcourse.simulator import nodes, topology

    if kind == "machine":
        net = nodes.nvlink_mesh(150e9)
    elif kind == "torus":
        net = topology.torus([random.choice((4, 5)), 4], 50e9)
    else:
        net = topology.leaf_spine(random.randint(3, 5), 3, 4, 50e9, 50e9)
    graph = net.graph.copy()
    for a, b in graph.edges:
        graph.edges[a, b]["bandwidth"] *= random.uniform(0.97, 1.0)
    return topology.Topology(net.name, graph)


def _hurt(net: Any, missing: bool, slow: bool) -> Any:
    """TAKEN links of it broken at random; all hosts can still be reached."""
    import networkx

    from dtcourse.simulator import nodes

    taken = 0
    while taken < TAKEN and (missing or slow):
        a, b = random.choice(list(net.graph.edges))
        gone = missing and (not slow or taken % 2 == 0)
        left = 0.0 if gone else net.graph.edges[a, b]["bandwidth"] * random.uniform(0.1, 0.5)
        less = nodes.broken(net, a, b, left)
        if networkx.is_connected(less.graph):
            net, taken = less, taken + 1
    return net


def _drawn(kind: str, missing: bool, slow: bool) -> tuple[Any, Flows]:
    """A network, and flows of sizes that differ: two per host, in any direction."""
    net = _hurt(_whole(kind), missing, slow)
    flows = []
    for _ in range(2 * len(net.hosts)):
        a, b = random.sample(net.hosts, 2)
        flows.append((a, b, random.uniform(0.5, 1.5) * 1e9))
    return net, flows


def _given(net: Any, flows: Flows) -> tuple[Links, Flows]:
    """As an answer gets it: in any order, each link from any of its ends."""
    links = [
        (a, b, rate) if random.random() < 0.5 else (b, a, rate)
        for a, b, rate in net.graph.edges(data="bandwidth")
    ]
    random.shuffle(links)
    return links, random.sample(flows, len(flows))


def _read(where: str, got: Any) -> tuple[tuple[Any, ...], Any]:
    right = isinstance(got, (list, tuple)) and len(got) == 2
    right = right and isinstance(got[0], (list, tuple)) and len(got[0]) == 2
    require(right, f"{where}: an answer is ((from, to), seconds); got {got!r}.")
    seconds = number(got[1])
    require(
        isinstance(seconds, (int, float)),
        f"{where}: the seconds are a number; got {got[1]!r}.",
    )
    return tuple(got[0]), seconds


def _why(net: Any, flows: Flows, link: tuple[Any, ...], seconds: float, hint: str) -> str:
    """What a wrong answer looks like, or the check's own hint."""
    from dtcourse.simulator import ecmp, nodes

    def close(one: float) -> bool:
        return math.isclose(seconds, one, rel_tol=1e-6)

    busy = ecmp.link_seconds(net, flows)
    if close(busy.get(link[::-1], 0.0)):
        return "Its other direction is busy for so long. From which of its ends do the bytes come?"
    if close(max(nodes.link_seconds(net, flows).values())):
        return (
            "That is the time if every *way* got an equal part. Who divides a flow, and what does a node know of "
            "the ways that lie behind its neighbours?"
        )
    both = {one: n + busy.get(one[::-1], 0.0) for one, n in busy.items()}
    if close(max(both.values())):
        return "Does what goes from a to b keep the way from b to a busy?"
    if link in busy and close(busy[link]):
        return "This link is busy for so long, but another one for longer: is it bytes that you compare, or seconds?"
    return hint


def _require(answer: Answer, missing: bool, slow: bool, hint: str) -> None:
    from dtcourse.simulator import ecmp

    tried = [_drawn(kind, missing, slow) for kind in KINDS for _ in range(EACH)]
    said = call_each(answer, [_given(*one) for one in tried], shuffled=True)
    wrong: list[tuple[str, str]] = []  # what was said of a network, and what that looks like
    for (net, flows), got in zip(tried, said, strict=True):
        busy = ecmp.link_seconds(net, flows)
        most = max(busy, key=lambda link: busy[link])
        where = (
            f"A {net.name} of {plural(len(net.graph), 'node')} and {plural(net.links, 'link')}, with "
            f"{plural(len(flows), 'flow')}"
        )
        link, seconds = _read(where, got)
        near = math.isclose(seconds, busy[most], rel_tol=1e-6)
        if not (near and math.isclose(busy.get(link, 0.0), busy[most], rel_tol=1e-6)):
            told = (
                f"{where}: {' → '.join(most)} is busy for {1e3 * busy[most]:.4g} ms; you say "
                f"{' → '.join(map(str, link))}, {1e3 * seconds:.4g} ms."
            )
            wrong.append((told, _why(net, flows, link, seconds, hint)))
    # On one network another mistake may give the same numbers by chance: what most of them look like counts.
    if wrong:
        usual = mode(why for _, why in wrong)
        told = next(told for told, why in wrong if why == usual)
        require(False, f"{told} {usual}")


@BUSIEST.check("links that are missing", points=4)
def check_missing(answer: Answer) -> None:
    """Ways round them."""
    _require(
        answer,
        missing=True,
        slow=False,
        hint="Which neighbours are one link nearer to the flow's end, at each node that it comes to? And do all flows "
        "over a link count?",
    )


@BUSIEST.check("links that are slower", points=4)
def check_slower(answer: Answer) -> None:
    """Nobody goes round them: a switch does not look at rates."""
    _require(
        answer,
        missing=True,
        slow=True,
        hint="Does a node look at its links' rates when it divides a flow? And what makes a link busy for long: its "
        "bytes alone?",
    )


@BUSIEST.check("a host that is cut off", points=2)
def check_cut(answer: Answer) -> None:
    """No way is left for one flow, the others go on."""
    from dtcourse.simulator import nodes

    tried, ends = [], []
    for kind in KINDS:
        net, flows = _drawn(kind, missing=False, slow=False)
        lost = random.choice(net.hosts)
        for neighbour in list(net.graph[lost]):
            net = nodes.broken(net, lost, neighbour)
        flows = [flow for flow in flows if lost not in flow]
        end = tuple(random.sample([lost, flows[0][0]], 2))
        flows.append((*end, 1e9))
        tried.append(_given(net, flows))
        ends.append(end)
    for kind, end, got in zip(KINDS, ends, call_each(answer, tried, shuffled=True), strict=True):
        where = f"A {kind}, where nothing leads from {end[0]} to {end[1]}"
        link, seconds = _read(where, got)
        require(
            link == end and seconds == math.inf,
            f"{where}: ({end!r}, inf) is asked for; you say ({link!r}, {seconds:.4g}). Did your search ever come to "
            "the flow's end?",
        )
