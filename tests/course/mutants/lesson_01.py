"""Plausible wrong answers to the exercises of lesson 01: (what is wrong, what the check says, the code)."""

_STATES = """
def states_bytes(parameters, optimizer="adam", precision="mixed"):
    low = 2 if precision == "mixed" else 4
    kept = {"sgd": 0, "momentum": 4, "adam": 8}[optimizer] + (4 if precision == "mixed" else 0)
    return {
        "parameters": low * parameters,
        "gradients": low * parameters,
        "optimizer states": kept * parameters,
    }
"""
_DEVICES = """
def devices_needed(states, device_bytes, activations=0):
    left = device_bytes - activations
    if left <= 0:
        raise ValueError("activations alone fill the device")
    return -(-states // left)
"""
_FIT = """
def serial_fraction(seconds):
    a, b = _line(seconds)
    return a / (a + b)


def _line(seconds):
    n = len(seconds)
    x = [1 / w for w in seconds]
    y = list(seconds.values())
    mx, my = sum(x) / n, sum(y) / n
    b = sum((p - mx) * (q - my) for p, q in zip(x, y)) / sum((p - mx) ** 2 for p in x)
    return my - b * mx, b
"""
_PREDICT = """
def predict_seconds(seconds, ranks):
    a, b = _line(seconds)
    return a + b / ranks
"""
_MOST = """
def most_ranks(seconds, efficiency):
    import math
    return math.floor(1 + (1 / efficiency - 1) / serial_fraction(seconds))
"""
_UNEVEN = """
def average_uneven(model, samples):
    import torch
    import torch.distributed as dist
    from torch.nn.utils import parameters_to_vector, vector_to_parameters
    parameters = [p for p in model.parameters() if p.requires_grad]
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    gradients = [p.grad for p in parameters]
    flat = parameters_to_vector(gradients) * samples
    flat = torch.cat([flat, flat.new_tensor([samples])])
    dist.all_reduce(flat)
    vector_to_parameters(flat[:-1] / flat[-1], gradients)
"""

MUTANTS = {
    "memory_wall": [
        (
            "forgets the master copy of mixed precision",
            "the weights that it really updates",
            _STATES.replace('(4 if precision == "mixed" else 0)', "0") + _DEVICES,
        ),
        (
            "keeps Adam's states in 16 bits",
            "in 32 bits each",
            _STATES.replace('"adam": 8', '"adam": 4 if precision == "mixed" else 8') + _DEVICES,
        ),
        (
            "keeps gradients in 32 bits",
            "precision of the weight",
            _STATES.replace('"gradients": low', '"gradients": 4') + _DEVICES,
        ),
        (
            "gives plain SGD a momentum",
            "sgd in fp32",
            _STATES.replace('"sgd": 0', '"sgd": 4') + _DEVICES,
        ),
        (
            "divides the activations as well",
            "all of its activations",
            _STATES
            + _DEVICES.replace("-(-states // left)", "-(-(states + activations) // device_bytes)"),
        ),
        (
            "one device too many where it fits exactly",
            "where it fits exactly",
            _STATES + _DEVICES.replace("-(-states // left)", "states // left + 1"),
        ),
        (
            "rounds to the nearest number of devices",
            "each would then hold",
            _STATES + _DEVICES.replace("-(-states // left)", "max(1, states // left)"),
        ),
        (
            "does not notice that it cannot work",
            "raise a ValueError",
            _STATES + "\ndef devices_needed(states, device_bytes, activations=0):\n"
            "    return -(-states // max(1, device_bytes - activations))\n",
        ),
    ],
    "amdahl": [
        (
            "solves for one measurement only",
            "Does every measurement count",
            _FIT.replace(
                "n = len(seconds)", "seconds = {w: seconds[w] for w in sorted(seconds)[:2]}; n = 2"
            )
            + _PREDICT
            + _MOST,
        ),
        (
            "takes the first measurement for one rank's",
            "a + b / W",
            """
def serial_fraction(seconds):
    first, last = min(seconds), max(seconds)
    speedup = seconds[first] / seconds[last]
    return (1 / speedup - 1 / last) / (1 - 1 / last)


def predict_seconds(seconds, ranks):
    s = serial_fraction(seconds)
    return seconds[min(seconds)] * (s + (1 - s) / ranks)
"""
            + _MOST,
        ),
        (
            "divides the serial part too",
            "only the rest is divided",
            _FIT + _PREDICT.replace("a + b / ranks", "(a + b) / ranks") + _MOST,
        ),
        (
            "Gustafson's law for work that stays the same",
            "only the rest is divided",
            _FIT + _PREDICT.replace("a + b / ranks", "(a + b) ** 2 / (a + b * ranks)") + _MOST,
        ),
        (
            "rounds up",
            "which way do you round",
            _FIT + _PREDICT + _MOST.replace("math.floor", "math.ceil"),
        ),
        (
            "forgets the rank that was there already",
            "speed-up divided by ranks",
            _FIT + _PREDICT + _MOST.replace("1 + (1 /", "(1 /"),
        ),
    ],
    "average_uneven": [
        (
            "the mean of the ranks, unweighted",
            "count more than one on a rank with many",
            """
def average_uneven(model, samples):
    import torch
    import torch.distributed as dist
    from torch.nn.utils import parameters_to_vector, vector_to_parameters
    gradients = []
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            gradients.append(p.grad)
    flat = parameters_to_vector(gradients)
    dist.all_reduce(flat)
    vector_to_parameters(flat / dist.get_world_size(), gradients)
""",
        ),
        (
            "weights, but never divides",
            "what should the sum be divided by",
            _UNEVEN.replace("flat[:-1] / flat[-1]", "flat[:-1]"),
        ),
        (
            "divides by its own number of images",
            "what should the sum be divided by",
            _UNEVEN.replace("flat[:-1] / flat[-1]", "flat[:-1] / max(samples, 1)"),
        ),
        (
            "a rank without images stays at home",
            "waiting",
            _UNEVEN.replace(
                "    parameters = [", "    if samples == 0:\n        return\n    parameters = ["
            ),
        ),
        (
            "one collective for each parameter",
            "travel in one vector",
            """
def average_uneven(model, samples):
    import torch
    import torch.distributed as dist
    total = torch.tensor(float(samples))
    dist.all_reduce(total)
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad * samples
            dist.all_reduce(p.grad)
            p.grad /= total
""",
        ),
        (
            "gives frozen parameters a gradient",
            "frozen",
            _UNEVEN.replace(" if p.requires_grad]", "]"),
        ),
    ],
}
