"""Answers to utilisation: see test_exercises.py."""

_WEIGHTS = '    weights = 2 * d * d + 2 * d * shape["kv_width"] + 3 * d * hidden\n'
_BLOCK = '    block = tokens * (2 * weights + 4 * shape["length"] * d)\n'
_NEEDED = '    needed = 3 * (shape["layers"] * block + 2 * tokens * d * shape["vocab"])\n'
_EXECUTED = "    executed = needed + checkpointed * (block - 2 * tokens * d * hidden)\n"
_SLOWEST = "    slowest = [max(of_step) for of_step in zip(*seconds, strict=True)][1:]\n"
_RETURN = "    return needed / at_peak, executed / at_peak\n"

MUTANTS = [
    (
        "MFU counts what is recomputed",
        "needed by the model",
        ((_RETURN, "    return executed / at_peak, executed / at_peak\n"),),
    ),
    (
        "HFU does not",
        "What is computed twice",
        ((_RETURN, "    return needed / at_peak, needed / at_peak\n"),),
    ),
    (
        "a checkpoint repeats all of its block",
        "does the checkpoint not repeat",
        ((_EXECUTED, "    executed = needed + checkpointed * block\n"),),
    ),
    (
        "every block is repeated",
        "How many of the blocks",
        ((_EXECUTED, _EXECUTED.replace("checkpointed", "(checkpointed and shape['layers'])")),),
    ),
    (
        "the lesson's own model, of two matrices",
        "How many matrices",
        ((_WEIGHTS, _WEIGHTS.replace("3 * d * hidden", "2 * d * hidden")),),
    ),
    (
        "keys as wide as queries",
        "How wide are keys",
        ((_WEIGHTS, "    weights = 4 * d * d + 3 * d * hidden\n"),),
    ),
    (
        "six operations per weight, and no attention",
        "Attention multiplies more",
        ((_BLOCK, "    block = tokens * 2 * weights\n"),),
    ),
    (
        "no output layer",
        "The output layer is a product",
        ((_NEEDED, '    needed = 3 * shape["layers"] * block\n'),),
    ),
    ("forward alone", "What of the step is backward", ((_NEEDED, _NEEDED.replace("3 * ", "")),)),
    (
        "one card's peak for all ranks",
        "whose peak is it",
        (("* ranks * peak", "* peak"),),
    ),
    (
        "the mean over ranks",
        "wait for the rank that is late",
        (
            (
                _SLOWEST,
                "    slowest = [sum(of_step) / ranks for of_step in zip(*seconds, strict=True)][1:]\n",
            ),
        ),
    ),
    (
        "the rank that is slowest on average",
        "is it always the same one",
        ((_SLOWEST, "    slowest = max(seconds, key=lambda one: sum(one[1:]))[1:]\n"),),
    ),
    (
        "the first step, too",
        "Is the first step like the others",
        ((_SLOWEST, _SLOWEST.replace("[1:]", "")),),
    ),
]

NOTHING = [
    (
        "nothing runs twice, and all is at the peak",
        "\ndef utilisation(shape, ranks, checkpointed, seconds, peak):\n    return 1.0, 1.0\n",
    ),
]

ACCEPTED = [
    (
        "product by product, in a list",
        """
def utilisation(shape, ranks, checkpointed, seconds, peak):
    n, d, f, k, s = (shape[name] for name in ("batch", "width", "hidden", "kv_width", "length"))
    n *= s
    products = [(d, d), (d, k), (d, k), (d, s), (s, d), (d, d), (d, f), (d, f), (f, d)]
    forward = [2.0 * n * a * b for a, b in products]
    model = shape["layers"] * sum(forward) + 2.0 * n * d * shape["vocab"]
    repeated = checkpointed * sum(forward[:-1])
    steps = len(seconds[0]) - 1
    total = sum(max(one[i] for one in seconds) for i in range(1, steps + 1))
    rate = steps / total / ranks / peak
    return [3 * model * rate, (3 * model + repeated) * rate]
""",
    ),
    (
        "in tensors",
        """
import torch


def utilisation(shape, ranks, checkpointed, seconds, peak):
    times = torch.tensor(seconds, dtype=torch.double)[:, 1:].amax(0).mean().item()
    d, tokens = shape["width"], shape["batch"] * shape["length"]
    mlp = d * shape["hidden"]
    per_token = 2 * (2 * d * (d + shape["kv_width"]) + 3 * mlp + 2 * shape["length"] * d)
    whole = shape["layers"] * per_token + 2 * d * shape["vocab"]
    again = checkpointed * (per_token - 2 * mlp)
    flops = torch.tensor([3 * whole, 3 * whole + again], dtype=torch.double) * tokens
    return tuple((flops / times / ranks / peak).tolist())
""",
    ),
]
