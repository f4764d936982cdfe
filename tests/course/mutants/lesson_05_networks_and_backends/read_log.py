"""Answers to read_log: see test_exercises.py."""

_LESSON = r"""
def read_log(lines):
    hops = re.findall(r"(\d+)\[\d+\] -> (\d+)\[\d+\].* via (\S+)", "\n".join(lines))
    ways = {}
    for src, dst, way in hops:
        ways.setdefault(way, []).append((src, dst))
    odd = min(ways, key=lambda way: len(ways[way]))
    node = next(line for line in lines if line.endswith(odd)).partition(":")[0]
    if "Socket" in odd:
        return "TCP", None
    if "SHM" in odd:
        return "no direct way", node
    return ("healthy", None) if "GDRDMA" in odd else ("no GPUDirect", node)
"""

MUTANTS = [
    ("the lesson's own cell, and the rarest way is wrong", "you say", _LESSON),
    ("every way by memory is a fault", "the same on every node", (("fewest_by_memory = min(map(len, by_memory.values()))", "fewest_by_memory = 0"),)),
    ("a single card is a fault", "the same on every node", (("most_cards = max(map(len, cards.values()))", "most_cards = 2"),)),
    (
        "the node of the hop's first rank, whoever wrote the line",
        "Which of its two ends wrote this line",
        (
            ("    for line in lines:\n", "    home = {}\n    for line in lines:\n        sent = re.match(r\"([^:]+):.* (\\d+)\\[\\d+\\] -> .*(send|P2P|SHM)\", line)\n        if sent:\n            home[sent[2]] = sent[1]\n    for line in lines:\n"),
            ("        node, _, gpu, way = hop.groups()", "        _, rank, gpu, way = hop.groups()\n        node = home[rank]\n        if way.startswith(\"NET\") and \"[send]\" in line:\n            continue"),
        ),
    ),
    (
        "cards counted channel by channel",
        "over all channels",
        (("cards[node].add(way.split(\"/\")[2])", "cards[node].add(0)"),),
    ),
    ("the way's name decides the card", "how many do the other nodes", (("        if len(cards[node]) < most_cards:", "        if cards[node] == {\"1\"}:"),)),
    ("GPUDirect is not looked at", "Which of its two ends", (('            if not way.endswith("GDRDMA"):', '            if not way.startswith("NET"):'),)),
    ("TCP is a node's fault", "By what do its messages leave a node", (('        return "TCP", None', '        return "TCP", next(iter(by_memory))'),)),
    ("the last line's node", "you say", (("    if tcp:\n", "    without = {node} if without else set()\n    if tcp:\n"),)),
    ("lines by memory, which name no connection, are not matched", "On which node do hops go by memory", (('r"([^:]+):.* (', 'r"([^:]+):.*Channel \\d+/\\d+ : ('),)),
    ("more by memory, the other way round", "On which node do hops go by memory", (("if len(by_memory[node]) > fewest_by_memory", "if len(by_memory[node]) < max(map(len, by_memory.values()))"),)),
]  # fmt: skip

NOTHING = [
    ("always healthy", '\ndef read_log(lines):\n    return "healthy", None\n'),
]

ACCEPTED = [
    (
        "each node's set of ways, and who stands out",
        r"""
def read_log(lines):
    ways = {}
    for line in lines:
        if " via " in line:
            node, way = line.partition(":")[0], line.rpartition(" via ")[2]
            here = "by memory" if "SHM" in way else way
            if here == "by memory":
                here += re.search(r"\[(\d+)\]", line)[1]
            ways.setdefault(node, []).append(here)
    if any("Socket" in way for found in ways.values() for way in found):
        return ["TCP", None]
    sets = {node: frozenset(found) for node, found in ways.items()}
    counted = list(sets.values())
    odd = [node for node, found in sets.items() if counted.count(found) == 1]
    if not odd:
        return ["healthy", None]
    node = odd[0]
    usual = next(found for other, found in sets.items() if other != node)
    if any(way.startswith("NET") and "GDR" not in way for way in sets[node]):
        return ["no GPUDirect", node]
    if any(way.startswith("by memory") for way in sets[node] - usual):
        return ["no direct way", node]
    return ["one card", node]
""",
    ),
    (
        "by counters, from the line that names the network",
        r"""
def read_log(lines):
    from collections import Counter

    if any("Using network Socket" in line for line in lines):
        return "TCP", None
    shm, bad, cards = Counter(), Counter(), {}
    for line in lines:
        node = line.split(":")[0]
        shm[node] += "via SHM" in line
        bad[node] += "via NET/IB" in line and "GDRDMA" not in line
        card = re.search(r"NET/IB/(\d+)", line)
        cards.setdefault(node, set()).update(card.groups() if card else ())
    if max(bad.values()):
        return "no GPUDirect", bad.most_common(1)[0][0]
    if max(shm.values()) > min(shm.values()):
        return "no direct way", shm.most_common(1)[0][0]
    few = min(cards, key=lambda node: len(cards[node]))
    if len(cards[few]) < max(map(len, cards.values())):
        return "one card", few
    return "healthy", None
""",
    ),
]
