"""Answers to diagnose_axis: see test_exercises.py."""

_SHAPE = "    shape = [sizes[axis] for axis in axes]\n"
_STEPS = "    for step, one in zip(log, reference, strict=True):\n"
_NEAR = "return max(numbers) - min(numbers) <= 1e-4 * max(numbers)"
_COPIES = (
    'copies = {"dp": ("embed", "norm", "in", "out"), "tp": ("embed", "norm"), "pp": ("embed",)}'
)
_MISSING = '                    return "missing", axis\n'
_TWICE_DP = '            return "doubled", "dp"\n'
_TWICE_TP = '            return "doubled", "tp"\n'
_TWICE_PP = '            return "doubled", "pp"\n'
_OFF_IN = "        if not all(whole):\n"
_OFF_NORM = '            alike([u["norm"], right["norm"][s]]) for u, s in zip(used, stage_of, strict=True)\n        ):\n'
_NORM = '                return "norm", axis\n'
_NORM_DP = '            return "norm", "dp"\n'

MUTANTS = [
    (
        "the last step alone",
        "later ones start from other weights",
        ((_STEPS, "    for step, one in [(log[-1], reference[-1])]:\n"),),
    ),
    (
        "the first step alone",
        "in which step for the first time",
        ((_STEPS, "    for step, one in [(log[0], reference[0])]:\n"),),
    ),
    (
        "the lesson's order of axes, whatever the mesh's",
        "lie on the mesh",
        ((_SHAPE, '    axes = ("dp", "pp", "tp")\n' + _SHAPE),),
    ),
    (
        "whatever is not reduced is missing over dp",
        "hold copies of, where do these lie",
        ((_MISSING, '                    return "missing", "dp"\n'),),
    ),
    (
        "embed is not held by two stages",
        "Which ranks use unlike gradients",
        ((_COPIES, _COPIES.replace('("embed",)}', "()}")),),
    ),
    (
        "slices are taken for copies",
        "hold parts of it",
        ((_COPIES, _COPIES.replace('"tp": ("embed", "norm")', '"tp": ("embed", "norm", "in")')),),
    ),
    (
        "used as computed is missing over dp, also on one rank",
        "Which axes have one rank only",
        (
            (
                _STEPS,
                _STEPS
                + "        if abs(step['used'][0]['in'] / step['own'][0]['in'] - 1) < 1e-4:\n"
                + "            return 'missing', 'dp'\n",
            ),
        ),
    ),
    (
        "no rounding allowed",
        "which differences are rounding",
        ((_NEAR, "return max(numbers) == min(numbers)"),),
    ),
    (
        "whatever is less than twice as large is rounding",
        "Which ranks use unlike gradients",
        ((_NEAR, "return max(numbers) - min(numbers) <= 0.5 * max(numbers)"),),
    ),
    (
        "copies that agree are right",
        "some gradients are too large",
        (
            (_TWICE_DP, "            pass\n"),
            (_TWICE_TP, "            pass\n"),
            (_TWICE_PP, "            pass\n"),
        ),
    ),
    (
        "dp and tp exchanged",
        "over which axis is just the former's sum",
        (
            (_OFF_IN + _TWICE_DP, _OFF_IN + _TWICE_TP),
            (_OFF_NORM + _TWICE_TP, _OFF_NORM + _TWICE_DP),
        ),
    ),
    (
        "embed alone is summed over tp as well",
        "Which are, which are not",
        ((_TWICE_PP, _TWICE_TP),),
    ),
    (
        "norms are not compared",
        "Which ranks clip by unlike norms",
        ((_NORM, "                pass\n"),),
    ),
    (
        "norms that agree are right",
        "how large is their norm beside one process's",
        ((_NORM_DP, "            pass\n"),),
    ),
    (
        "a word, no axis",
        "A diagnosis is two things",
        (
            (_MISSING, '                    return "missing"\n'),
            ('return "healthy", None', 'return "healthy"'),
        ),
    ),
]

NOTHING = [
    (
        "all is well",
        '\ndef diagnose_axis(axes, sizes, log, reference):\n    return "healthy", None\n',
    ),
    (
        "always the sum over dp",
        '\ndef diagnose_axis(axes, sizes, log, reference):\n    return "missing", "dp"\n',
    ),
    (
        "the loss tells whether, and the largest axis where",
        """
def diagnose_axis(axes, sizes, log, reference):
    wrong = any(abs(a["loss"] / b["loss"] - 1) > 1e-4 for a, b in zip(log, reference))
    return ("missing", max(sizes, key=sizes.get)) if wrong else ("healthy", None)
""",
    ),
]

ACCEPTED = [
    (
        "by places on the mesh, and by how often each gradient is too large",
        """
import itertools
import math


def diagnose_axis(axes, sizes, log, reference):
    places = [dict(zip(axes, place)) for place in itertools.product(*(range(sizes[a]) for a in axes))]
    slices = {"embed": 1, "norm": 1, "in": sizes["tp"], "out": sizes["tp"]}

    def spread(numbers):
        numbers = list(numbers)
        return bool(numbers) and max(numbers) > (1 + 2e-5) * min(numbers)

    def unlike(value, axis):
        rows = {}
        for place, one in zip(places, value):
            if one is not None:
                rows.setdefault(tuple(place[a] for a in axes if a != axis), []).append(one)
        return any(spread(row) for row in rows.values())

    for step, right in zip(log, reference):
        used = {name: [one.get(name) for one in step["used"]] for name in slices}
        for axis, held in (("pp", ["embed"]), ("tp", ["embed", "norm"]), ("dp", slices)):
            if any(unlike(used[name], axis) for name in held):
                return ["missing", axis]
        times = {}
        for name, parts in slices.items():
            found = {}
            for place, one in zip(places, used[name]):
                if one is not None and place["dp"] == 0:
                    found.setdefault(place["pp"], []).append(one)
            for stage, norms in found.items():
                wanted = right["grads"][name] if name == "embed" else right["grads"][name][stage]
                whole = math.sqrt(sum(n * n for n in norms) * parts / len(norms))
                times[name] = max(times.get(name, 1), round(whole / wanted))
        if times["out"] > 1:
            return ["doubled", "dp"]
        if times["norm"] > 1:
            return ["doubled", "tp"]
        if times["embed"] > 1:
            return ["doubled", "pp"]
        for axis in ("pp", "tp"):
            if unlike(step["norm"], axis):
                return ["norm", axis]
        if spread([*step["norm"], right["norm"]]):
            return ["norm", "dp"]
    return ["healthy", None]
""",
    ),
    (
        "with a coarser measure, and the other way round through the axes",
        (
            (_NEAR, "return max(numbers) < 1.001 * min(numbers) or not any(numbers)"),
            (
                "every = [(axis, group) for axis in axes for",
                "every = [(axis, group) for axis in reversed(axes) for",
            ),
        ),
    ),
]
