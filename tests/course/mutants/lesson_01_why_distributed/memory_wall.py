"""Answers to memory_wall: see test_exercises.py."""

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

MUTANTS = [
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
]

NOTHING = [
    (
        "refuses everything",
        """
def states_bytes(parameters, optimizer='adam', precision='mixed'):
    return {}


def devices_needed(states, device_bytes, activations=0):
    raise ValueError
""",
    ),
]

_ROUNDED_UP = (
    "return -(-states // left)  # rounded up, in integers: floats would be wrong in the last byte"
)
ACCEPTED = [
    (
        "a division with its rest",
        ((_ROUNDED_UP, "whole, rest = divmod(states, left)\n    return whole + (rest > 0)"),),
    ),
    (
        "an exact fraction, and the keys in another order",
        (
            (
                "    left = device",
                "    import math\n    from fractions import Fraction\n\n    left = device",
            ),
            (_ROUNDED_UP, "return math.ceil(Fraction(states, left))"),
            ('        "parameters": low * parameters,\n', ""),
            (
                "(master + 4 * kept) * parameters,\n",
                '(master + 4 * kept) * parameters,\n        "parameters": parameters * low,\n',
            ),
        ),
    ),
]
