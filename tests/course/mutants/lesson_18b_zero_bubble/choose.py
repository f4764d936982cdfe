"""Answers to choose: see test_exercises.py."""

_WORK = "work = samples // m * per_rank"
_MEMORY = "memory = Memory(stored=work, limit=limit)"
_TIMES = "Times(own + seconds, own + seconds, halves + seconds / 2, transfer=latency)"
_OVERHEAD = "own, seconds = v * overhead, per_sample * work"
_WHOLE = '            ("1F1B", 1): schedules.one_f_one_b(p, m),\n'
_NO_CHUNKS = ("if per_rank % 2 == 0:", "if False:"), ("if m % p == 0:", "if False:")

MUTANTS = [
    (
        "ZB-H1 and ZB-H2 only, no chunks and no whole backward",
        "What does each action cost besides",
        ((_WHOLE, ""), *_NO_CHUNKS),
    ),
    (
        "one stage per rank only",
        "the best choice takes",
        _NO_CHUNKS,
    ),
    (
        "a whole backward has two overheads",
        "What does each action cost besides",
        (('halves = own if name.startswith("ZB") else 0.0', "halves = own"),),
    ),
    (
        "memory does not count",
        "stay within the room",
        ((_MEMORY, "memory = Memory(stored=work)"),),
    ),
    (
        "one sample is one micro-batch's memory",
        "stay within the room",
        ((_MEMORY, "memory = Memory(stored=1, limit=limit)"),),
    ),
    (
        "messages are free",
        "Who has something else to do while it travels",
        ((_TIMES, _TIMES.replace(", transfer=latency", "")),),
    ),
    (
        "actions cost nothing besides",
        "What does each action cost besides",
        ((_OVERHEAD, "own, seconds = 0.0, per_sample * work"),),
    ),
    (
        "one overhead, however many chunks",
        "the best choice takes",
        ((_OVERHEAD, "own, seconds = overhead, per_sample * work"),),
    ),
    (
        "the smallest bubble rate, not the shortest step",
        "takes",
        (("(one.makespan, name, v, m)", "(one.bubble_rate, name, v, m)"),),
    ),
    (
        "as many micro-batches as there are samples",
        "the best choice takes",
        (
            (
                "for m in (m for m in range(1, samples + 1) if samples % m == 0):",
                "for m in (samples,):",
            ),
        ),
    ),
    (
        "1F1B only",
        "the best choice takes",
        (
            (
                '            ("ZB-H1", 1): zero_bubble.zb_h1(p, m),\n            ("ZB-H2", 1): zero_bubble.zb_h2(p, m),\n',
                "",
            ),
            ("if per_rank % 2 == 0:", "if False:"),
            ("if m % p == 0:", "if False:"),
        ),
    ),
    (
        "the longest step",
        "the best choice takes",
        (("return min(found)[1:]", "return max(found)[1:]"),),
    ),
    (
        "name and numbers in another order",
        "a choice is (name, v, m)",
        (("return min(found)[1:]", "return min(found)[:0:-1]"),),
    ),
]

ACCEPTED = [
    (
        "without interleaved schedules, the first within 1 %",
        (
            ("if m % p == 0:", "if False:"),
            (
                "return min(found)[1:]",
                "return next(one[1:] for one in found if one[0] <= 1.01 * min(found)[0])",
            ),
        ),
    ),
    (
        "by the cost and not the makespan",
        (
            (_TIMES, _TIMES.replace("transfer", "barrier=False, transfer")),
            ("(one.makespan, name", "(one.cost, name"),
        ),
    ),
]

NOTHING = [
    (
        "one micro-batch per sample, 1F1B",
        '\ndef choose(samples, p, layers, overhead, per_sample, latency, limit):\n    return "1F1B", 1, samples\n',
    ),
    (
        "the whole batch at once",
        '\ndef choose(samples, p, layers, overhead, per_sample, latency, limit):\n    return "1F1B", 1, 1\n',
    ),
]
