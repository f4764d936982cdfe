"""Answers to who_sends: see test_exercises.py."""

_DDP = "return [2 * others * 4 * sum(n_in * n_out for n_in, n_out in layers)] * ranks"
_PADDED = "padded = sum(n_in * -(-n_out // ranks) * ranks for n_in, n_out in layers)"
_PASSES = 'passes = 2 if "not" in wrapper else 3'
_TENSOR = "summed = sum(n_out for _, n_out in layers[1::2]) + sum(n_in for n_in, _ in layers[2::2])"
_FORWARD = "sum(borders[rank : rank + 1])"
_BACK = "(borders[rank - 1] if rank else 0)"

NAMED = "each layer is gathered once"

MUTANTS = [
    ("an all-reduce sends all once", "how many times its bytes", ((_DDP, _DDP.replace("2 * others", "1")),)),
    ("the bytes of all ranks", "how many times its bytes", ((_DDP, _DDP.replace("2 * others", "2 * others * ranks")),)),
    ("numbers, not bytes", "how many times its bytes", ((_DDP, _DDP.replace("* 4 *", "*")),)),
    ("each layer is gathered once", "How often is each layer gathered", ((_PASSES, "passes = 2"),)),
    ("each layer is gathered twice, also where it is kept", "How often is each layer gathered", ((_PASSES, "passes = 3"),)),
    ("rows are even", "how many rows has the largest part", ((_PADDED, "padded = sum(n_in * n_out for n_in, n_out in layers)"),)),
    ("the gradient of the samples", "does anybody want", ((_TENSOR, _TENSOR.replace("layers[2::2]", "layers[0::2]")),)),
    ("forward alone", "forward and backward, how wide", ((_TENSOR, "summed = sum(n_out for _, n_out in layers[1::2])"),)),
    ("each layer is summed", "Which sums does a pair", ((_TENSOR, _TENSOR.replace("layers[1::2]", "layers")),)),
    ("nothing goes back", "which rank sends each", ((_BACK, "0"),)),
    ("both ways from one rank", "which rank sends each", ((_FORWARD, "2 * sum(borders[rank : rank + 1])"), (_BACK, "0"))),
    (
        "counted by the course",
        "the answer uses dtcourse",
        (("    others = (ranks - 1) / ranks\n", "    from dtcourse.collectives import traffic\n    traffic.counting()\n    others = (ranks - 1) / ranks\n"),),
    ),
]  # fmt: skip

ACCEPTED = [
    (
        "block by block, in whole numbers",
        """
def who_sends(wrapper, widths, samples, ranks):
    import math

    def gathered(numbers):  # bytes that a rank passes on round a ring
        return 4 * math.ceil(numbers / ranks) * (ranks - 1)

    layers = [(widths[i], widths[i + 1]) for i in range(len(widths) - 1)]
    if wrapper == "pipeline":
        sent = [0] * ranks
        for rank, (_, width) in enumerate(layers[:-1]):
            sent[rank] += 4 * samples * width
            sent[rank + 1] += 4 * samples * width
        return sent
    total = 0
    for i, (n_in, n_out) in enumerate(layers):
        if wrapper == "ddp":
            total += 2 * gathered(n_in * n_out)
        elif wrapper == "tensor":
            total += 2 * gathered(samples * n_out) if i % 2 else 0
            total += 2 * gathered(samples * n_in) if i % 2 == 0 and i else 0
        else:
            rows = math.ceil(n_out / ranks)
            total += (3 if wrapper == "fully_shard" else 2) * 4 * rows * n_in * (ranks - 1)
    return [total for _ in range(ranks)]
""",
    ),
    ("a tuple", ((_DDP, _DDP.replace("return [", "return (").replace("] * ranks", ",) * ranks")),)),
    ("with the ring's last odd bytes", ((_DDP, _DDP.replace("2 * others * 4", "16 + 2 * others * 4")),)),
]  # fmt: skip

NOTHING = [
    ("nobody sends", "\ndef who_sends(wrapper, widths, samples, ranks):\n    return [0] * ranks\n"),
]
