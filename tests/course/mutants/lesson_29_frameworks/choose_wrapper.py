"""Answers to choose_wrapper: see test_exercises.py."""

_NEEDS = '"ddp": 4 * weights,'
_KEPT = "kept = 4 * samples / ranks * sum(widths)"
_KEEPING = '        "fully_shard, not resharded": 4 * weights / ranks + weights,\n'
_OTHER = 'other = shards if samples > sum(widths) / len(widths) else "tensor"'
_FITTING = "if peak <= budget"
_BEST = "return min(fitting, key=fitting.get)"
_TRIED = '(other, "pipeline")'

_GROWS = "Whose bytes grow with the samples"
_HELD = "what did `measure` say"
_TIGHT = "Which of those that fit sends least"
_SLOW = "Which wrappers send what grows with the weights"

NAMED = "activations are forgotten"

MUTANTS = [
    ("fewest bytes held, whatever the time", _SLOW, ((_BEST, "return min(found, key=lambda w: found[w][1])"),)),
    ("always among tensor and pipeline", _GROWS, ((_OTHER, 'other = "tensor"'),)),
    ("always among shards and pipeline", _GROWS, ((_OTHER, "other = shards"),)),
    ("never a pipeline", _SLOW, ((_TRIED, "(other,)"),)),
    ("always sharded", _GROWS, ((_NEEDS, '"ddp": 1e30,'),)),
    ("whatever fits not", _HELD, ((_FITTING, ""),)),
    ("weights alone are counted", _TIGHT, ((_NEEDS, '"ddp": weights,'), (_KEPT, "kept = 0"))),
    ("activations are forgotten", _TIGHT, ((_KEPT, "kept = 0"),)),
    ("each rank has the activations of all samples", _TIGHT, (("samples / ranks *", "samples *"),)),
    ("always resharded where not all is whole", _TIGHT, ((_KEEPING, ""),)),
    ("the slowest", _GROWS, ((_BEST, _BEST.replace("min", "max")),)),
    ("three are measured", "no more may be", ((_TRIED, '(other, "pipeline", "tensor" if other != "tensor" else "ddp")'),)),
    ("a wrapper that is not there", "a choice is one of", ((_BEST, 'return "zero"'),)),
    ("wrapper and seconds", "a choice is one of", ((_BEST, "return min(fitting.items(), key=lambda item: item[1])"),)),
    (
        "read in the check",
        "the checks are not part of an answer",
        """
def choose_wrapper(measure, widths, samples, ranks, budget):
    from dtcourse.course.checks.lesson_29_frameworks import choose_wrapper as exercise
    for given, best in (exercise.SENT | exercise.TIGHT | exercise.SLOW).items():
        if given.widths == tuple(widths):
            return best
""",
    ),
    (
        "run by the answer",
        "the answer uses dtcourse",
        (("    kept = 4", "    from dtcourse import emulation\n    emulation.now()\n    kept = 4"),),
    ),
]  # fmt: skip

ACCEPTED = [
    (
        "what is measured first decides what is measured next",
        """
def choose_wrapper(measure, widths, samples, ranks, budget):
    wide = max(widths)
    if samples > wide:
        # The less it sends, the more it holds.
        for wrapper in ("ddp", "fully_shard, not resharded"):
            _, peak = measure(wrapper)
            if peak <= budget:
                return wrapper
        return "fully_shard"
    (cut, cut_peak), (staged, staged_peak) = measure("tensor"), measure("pipeline")
    return "pipeline" if staged < cut and staged_peak <= budget else "tensor"
""",
    ),
    (
        "the two of those that fit, by a guess, that send fewest bytes; as a list",
        """
def choose_wrapper(measure, widths, samples, ranks, budget):
    pairs = list(zip(widths, widths[1:]))
    weights = 4 * sum(a * b for a, b in pairs)
    whole = 4 * samples * sum(widths)
    largest = 4 * max(a * b for a, b in pairs)
    holds = {
        "ddp": 5 * weights + 1.2 * whole / ranks,
        "fully_shard, not resharded": weights + 4 * weights / ranks + 1.2 * whole / ranks,
        "fully_shard": 2 * largest + 4 * weights / ranks + 1.2 * whole / ranks,
    }
    sends = {"ddp": 2 * weights, "fully_shard, not resharded": 2.01 * weights, "fully_shard": 3 * weights}
    sends["tensor"] = 8 * samples * (sum(b for _, b in pairs[1::2]) + sum(a for a, _ in pairs[2::2]))
    candidates = [one for one in sends if holds.get(one, 0) < budget]
    found = {}
    for one in ("pipeline", min(candidates, key=sends.get)):
        seconds, peak = measure(one)
        if peak <= budget:
            found[one] = seconds
    return [min(found, key=found.get)]
""",
    ),
]

NOTHING = [
    (wrapper, f'\ndef choose_wrapper(measure, widths, samples, ranks, budget):\n    return "{wrapper}"\n')
    for wrapper in ("ddp", "fully_shard", "tensor", "pipeline")
]  # fmt: skip
