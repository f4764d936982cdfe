"""Answers to diagnose_plan: see test_exercises.py."""

_HEAD = "\ndef diagnose_plan(model, plans):\n"
_HEALTHY = "Each of its numbers follows"
_BATCH = "How many tokens does a step have"
_TWICE = "Which operations does this plan do"
_PEAK = "Which peak do tokens per second"
_STAGE = "Which states does this stage share"
_OFTEN = "How often does one of so many devices fail"
_LOOP = "for number, plan in enumerate(plans):"
_RATE_OFF = 'if abs(off("tokens per second", rate) - 1) > 0.02:'
_EACH = 'each = 6 * P + 12 * model["layers"] * model["width"] * model["length"]'
_STATES_OFF = 'if abs(off("states", states) - 1) > 0.02:'
_STATES = "states = own * (sum(whole[: 3 - stage]) + sum(whole[3 - stage :]) / data)"
_HOURS = 'hours = model["lifetime"] / plan["devices"]'
_HOURS_OFF = 'if abs(off("hours between failures", hours) - 1) > 0.02:'

MUTANTS = [
    ("an MFU above 1 is a rank's batch", _BATCH, ((_RATE_OFF, 'if plan["mfu"] > 1:'),)),
    ("a low MFU is another peak", _HEALTHY, (("if mfu < 0.98:", 'if plan["mfu"] < 0.29:'),)),
    ("states are always shared, all of them", _HEALTHY, ((_STATES, "states = own * 16 / data"),)),
    ("a wrong batch is never said", _BATCH, ((_RATE_OFF, "if False:"),)),
    ("counting twice is never said", _TWICE, (("if mfu > 1.02:", "if False:"),)),
    ("another peak is never said", _PEAK, (("if mfu < 0.98:", "if False:"),)),
    ("another stage is never said", _STAGE, ((_STATES_OFF, "if False:"),)),
    ("failures are never wrong", _OFTEN, ((_HOURS_OFF, "if False:"),)),
    ("never the last plan", _BATCH, ((_LOOP, "for number, plan in enumerate(plans[:-1]):"),)),
    ("never the first plan", _BATCH, ((_LOOP, "for number, plan in list(enumerate(plans))[1:]:"),)),
    ("attention does nothing", _HEALTHY, ((_EACH, "each = 6 * P"),)),
    ("half of the attention", _HEALTHY, ((_EACH, _EACH.replace("12 *", "6 *")),)),
    ("states shared over all devices", _HEALTHY, (('own, data = P / (plan["stages"] * plan["tensor"]), plan["data"]', 'own, data = P / plan["stages"], plan["devices"]'),)),
    ("one stage further", _HEALTHY, (('stage = plan["zero"]', 'stage = min(3, plan["zero"] + 1)'),)),
    ("a node fails, not a device", _HEALTHY, ((_HOURS, 'hours = model["lifetime"] / plan["devices"] * 8'),)),
    (
        "who recomputes counts twice",
        _HEALTHY,
        _HEAD
        + """    for number, plan in enumerate(plans):
        if plan["recomputed"]:
            return "counted twice", number
    return "healthy", None
""",
    ),
    (
        "whoever stands out most has another peak",
        _HEALTHY,
        _HEAD
        + """    worst = min(range(len(plans)), key=lambda n: plans[n]["mfu"])
    return "other peak", worst
""",
    ),
    ("too little matters", _STAGE, ((_STATES_OFF, 'if abs(off("states", states) - 1) > 100:'),)),
    ("counted from one", _STAGE, (('return "other stage", number', 'return "other stage", number + 1'),)),
    ("the two MFUs exchanged", _TWICE, (('return "counted twice", number', 'return "other peak", number'),)),
    ("what is wrong, without where", "A diagnosis is two things", (('return "healthy", None', 'return "healthy"'),)),
]  # fmt: skip

ACCEPTED = [
    (
        "each number beside the right one, the largest difference tells",
        """
import math


def diagnose_plan(model, plans):
    bytes_ = {"parameters": 2, "gradients": 2, "optimizer": 12}
    shared = [[], ["optimizer"], ["optimizer", "gradients"], list(bytes_)]
    found = []
    for number, plan in enumerate(plans):
        tokens = plan["sequences"] * model["length"] / plan["seconds"]
        work = model["parameters"] * 6 + model["layers"] * model["width"] * model["length"] * 12
        states = sum(n / (plan["data"] if kind in shared[plan["zero"]] else 1) for kind, n in bytes_.items())
        right = {
            "tokens per second": tokens,
            "mfu": tokens * work / plan["devices"] / model["peak"],
            "states": states * model["parameters"] / plan["stages"] / plan["tensor"],
            "hours between failures": model["lifetime"] / plan["devices"],
        }
        for name, value in right.items():
            found.append((abs(math.log(plan[name] / value)), name, plan[name] > value, number))
    off, name, more, number = max(found)
    if off < 0.05:
        return ["healthy", None]
    if any(one[0] > 0.05 and one[1] == "tokens per second" for one in found):
        return ["batch of a rank", number]
    kinds = {"states": "other stage", "hours between failures": "failures of a node"}
    return [kinds.get(name, "counted twice" if more else "other peak"), number]
""",
    ),
    (
        "failures first, the batch last",
        _HEAD
        + """    def near(a, b):
        return abs(a - b) <= 0.01 * b

    for n, p in enumerate(plans):
        if not near(p["hours between failures"] * p["devices"], model["lifetime"]):
            return "failures of a node", n
        d, z = p["data"], p["zero"]
        each = (2 / d if z > 2 else 2) + (2 / d if z > 1 else 2) + (12 / d if z else 12)
        if not near(p["states"] * p["stages"] * p["tensor"], each * model["parameters"]):
            return "other stage", n
        rate = p["sequences"] * model["length"] / p["seconds"]
        if not near(p["tokens per second"], rate):
            return "batch of a rank", n
        token = 6 * (model["parameters"] + 2 * model["layers"] * model["width"] * model["length"])
        used = rate * token / (p["devices"] * model["peak"])
        if not near(p["mfu"], used):
            return ("counted twice" if p["mfu"] > used else "other peak"), n
    return "healthy", None
""",
    ),
]

NOTHING = [
    ("always healthy", _HEAD + '    return "healthy", None\n'),
    ("always the first plan's states", _HEAD + '    return "other stage", 0\n'),
]
