"""Answers to cheapest_plan: see test_exercises.py."""

_HEAD = "\nimport math\n\n\ndef cheapest_plan(plans, job):\n"
_BATCH = "How many steps does a plan take with its own batch"
_FAILURES = "How much of its time does a plan lose"
_INTERVAL = "how often does the whole job fail"
_RESTARTS = "What does a failure cost beside the work"
_ORDER = "Can a sum of parts lose more"
_ANY = "with a deadline of"  # too late, too dear, or saved at another interval, as the job is
_STEPS = 'steps = job["steps"] * (1 + job["critical"] / plan["batch"])'
_DAYS = 'days = steps * plan["seconds"] / goodput(every) / 86_400'
_MTBF = 'mtbf = job["lifetime"] / plan["devices"]'
_SAVE = 'save = plan["state"] / job["storage"]'
_EVERY = "every = max((young * 1.01**n for n in range(-120, 121)), key=goodput)"
_IN_TIME = 'in_time = [one for one in found if one[1] <= job["days"]]'
_BEST = "_, _, number, every = min(in_time)"
_RETURN = "    return number, every\n"

MUTANTS = [
    ("a step is a step, whatever its batch", _BATCH, ((_STEPS, 'steps = job["steps"]'),)),
    ("nothing fails", _FAILURES, ((_DAYS, 'days = steps * plan["seconds"] / 86_400'),)),
    ("a restart takes no time", _RESTARTS, (('first = job["restart"] + every + save', "first = every + save"),)),
    (
        "the first-order sum",
        _ORDER,
        _HEAD
        + """    found = []
    for at, plan in enumerate(plans):
        mtbf, save = job["lifetime"] / plan["devices"], plan["state"] / job["storage"]
        every = math.sqrt(2 * save * mtbf)
        kept = max(1e-9, 1 - save / every - every / (2 * mtbf) - job["restart"] / mtbf)
        days = job["steps"] * (1 + job["critical"] / plan["batch"]) * plan["seconds"] / kept / 86_400
        found.append((plan["devices"] * days, days, at, every))
    return min((one for one in found if one[1] <= job["days"]), default=found[0])[2:]
""",
    ),
    ("the first plan's state", _ANY, ((_SAVE, 'save = plans[0]["state"] / job["storage"]'),)),
    ("the job fails as often as one device", _ANY, ((_MTBF, 'mtbf = job["lifetime"]'),)),
    ("more devices fail more rarely", _ANY, ((_MTBF, 'mtbf = job["lifetime"] * plan["devices"] / 512'),)),
    ("an hour between saves", _ANY, ((_EVERY, "every = 3600.0"),)),
    ("ten times the best interval", _INTERVAL, ((_RETURN, "    return number, 10 * every\n"),)),
    ("a tenth of it", _INTERVAL, ((_RETURN, "    return number, every / 10\n"),)),
    ("each device saves its part alone", _ANY, ((_SAVE, 'save = plan["state"] / plan["devices"] / job["storage"]'),)),
    ("the critical batch upside down", _ANY, ((_STEPS, 'steps = job["steps"] * (1 + plan["batch"] / job["critical"])'),)),
    ("the quickest", _ANY, ((_BEST, "_, _, number, every = min(in_time, key=lambda one: one[1])"),)),
    ("the fewest devices, in time or not", _ANY, ((_IN_TIME, 'in_time = [min(found, key=lambda one: one[0] / one[1])]'),)),
    ("the cheapest, in time or not", _ANY, ((_IN_TIME, "in_time = found"),)),
    ("the dearest in time", _ANY, ((_BEST, "_, _, number, every = max(in_time)"),)),
    ("the deadline is in days, and the days are seconds", "ValueError", ((_DAYS, 'days = steps * plan["seconds"] / goodput(every)'),)),
    ("counted from one", _ANY, ((_RETURN, "    return (number + 1) % len(plans), every\n"),)),
    ("no interval", "An answer is (the number of a plan", ((_RETURN, "    return number\n"),)),
    (
        "the course's own",
        "dtcourse.fault_tolerance",
        _HEAD
        + """    from dtcourse.fault_tolerance import daly

    return 0, daly(plans[0]["state"] / job["storage"], job["lifetime"] / plans[0]["devices"])
""",
    ),
]  # fmt: skip

ACCEPTED = [
    (
        "Daly's formula",
        _HEAD
        + """    best = None
    for at, plan in enumerate(plans):
        M, save = job["lifetime"] / plan["devices"], plan["state"] / job["storage"]
        part = save / (2 * M)
        every = math.sqrt(2 * save * M) * (1 + math.sqrt(part) / 3 + part / 9) - save
        kept = every / M * math.exp(-job["restart"] / M) / math.expm1((every + save) / M)
        days = job["steps"] * (1 + job["critical"] / plan["batch"]) * plan["seconds"] / kept / 86400
        cost = days * plan["devices"]
        if days <= job["days"] and (best is None or cost < best[0]):
            best = cost, at, every
    return list(best[1:])
""",
    ),
    (
        "the exact interval, by halves",
        _HEAD
        + """    def exact(save, M):
        # Of interval / M: (1 - x) e^(x + save / M) = 1
        low, high = 0.0, 1.0
        for _ in range(60):
            x = (low + high) / 2
            if (1 - x) * math.exp(x + save / M) > 1:
                low = x
            else:
                high = x
        return low * M

    costs = {}
    for at, plan in enumerate(plans):
        M, save = job["lifetime"] / plan["devices"], plan["state"] / job["storage"]
        every = exact(save, M)
        kept = every / M / (math.exp(job["restart"] / M) * (math.exp((every + save) / M) - 1))
        days = job["steps"] * (1 + job["critical"] / plan["batch"]) * plan["seconds"] / kept / 86400
        if days <= job["days"]:
            costs[at] = days * plan["devices"], every
    number = min(costs, key=lambda at: costs[at][0])
    return number, costs[number][1]
""",
    ),
    ("Young's interval, returned", ((_RETURN, '    plan = plans[number]\n    young = math.sqrt(2 * plan["state"] / job["storage"] * job["lifetime"] / plan["devices"])\n    return number, young\n'),)),
]  # fmt: skip

NOTHING = [
    ("nothing", _HEAD + "    return None\n"),
    ("the first plan, and a millisecond", _HEAD + "    return 0, 1e-3\n"),
]
