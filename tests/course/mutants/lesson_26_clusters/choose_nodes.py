"""Answers to choose_nodes: see test_exercises.py."""

_SPOT = "for spot, lost, dollars in ((False, on_demand, 1.0), (True, spot_loss, price)):"
_BETWEEN = "between = lost / nodes"
_MIN = "_, nodes, spot, minutes = min(found)"
_HEAD = "\ndef choose_nodes(work, serial, deadline, most, price, on_demand, spot_loss, save, restart):\n"

MUTANTS = [
    ("always spot", "min() arg is an empty sequence", ((_SPOT, "for spot, lost, dollars in ((True, spot_loss, price),):"),)),
    ("never spot", "What does one node more cost", ((_SPOT, "for spot, lost, dollars in ((False, on_demand, 1.0),):"),)),
    ("all nodes", "What does one node more cost", (("for nodes in range(1, most + 1):", "for nodes in (most,):"),)),
    ("the quickest", "What does one node more cost", (("found.append((hours * nodes * dollars, nodes, spot, minutes))", "found.append((hours, nodes, spot, minutes))"),)),
    ("the price of spot is forgotten", "What does one node more cost", (("found.append((hours * nodes * dollars,", "found.append((hours * nodes,"),)),
    ("one node's losses, on any number of nodes", "the best choice", ((_BETWEEN, "between = lost"),)),
    ("saves take no time", "How long is a segment with its save", (("exponent = (minutes + save) / 60 / between", "exponent = minutes / 60 / between"),)),
    ("minutes are hours", "the best choice", (("exponent = (minutes + save) / 60 / between", "exponent = (minutes / 60 + save) / between"),)),
    ("all of it speeds up", "How long is a segment", (("alone = work * (serial + (1 - serial) / nodes)", "alone = work / nodes"),)),
    ("nothing is ever lost", "How long is a segment", (("hours = alone / (minutes / 60) * segment", "hours = alone * (minutes + save) / minutes"),)),
    ("no deadline", "How long is a segment", (("if hours <= deadline:", "if True:"),)),
    ("saves every hour", "the best choice", (("for minutes in range(1, 1441):", "for minutes in (60,):"),)),
    ("the dearest", "the best choice", ((_MIN, "_, nodes, spot, minutes = max(found)"),)),
    ("in hours", "a choice is (nodes, spot, minutes)", (("    return nodes, spot, minutes\n", "    return nodes, spot, minutes / 60\n"),)),
    ("a word for spot", "a choice is (nodes, spot, minutes)", (("    return nodes, spot, minutes\n", '    return nodes, "spot" if spot else "on-demand", minutes\n'),)),
]  # fmt: skip

ACCEPTED = [
    (
        "by a finer search round Young's interval",
        _HEAD
        + """    import math

    best = None
    for nodes in range(1, most + 1):
        for spot in (False, True):
            M = (spot_loss if spot else on_demand) / nodes
            young = 60 * math.sqrt(2 * save / 60 * M)
            for minutes in range(max(1, int(young / 4)), min(1440, int(2 * young) + 2)):
                x = (minutes + save) / 60 / M
                w = work * serial + work * (1 - serial) / nodes
                hours = w * 60 / minutes * M * math.exp(restart / 60 / M) * (math.exp(min(x, 500)) - 1)
                bill = hours * nodes * (price if spot else 1)
                if hours <= deadline and (best is None or bill < best[0]):
                    best = bill, nodes, spot, minutes
    return best[1:]
""",
    ),
    (
        "a list, and every second minute",
        (
            ("for minutes in range(1, 1441):", "for minutes in range(1, 1441, 2):"),
            ("    return nodes, spot, minutes\n", "    return [nodes, spot, minutes]\n"),
        ),
    ),
]

NOTHING = [
    ("one node, always", _HEAD + "    return 1, False, 60\n"),
]
