"""Answers to one_bit_that_arrives: see test_exercises.py."""

_STEP = "return self.lr * (torch.where(signs, -1.0, 1.0) * scales[:, None]).mean(0)"
_AFTER = """self.velocity = 0.9 * self.velocity + (torch.where(signs, -1.0, 1.0) * scales[:, None]).mean(0)
        return 0.02 * self.velocity"""
_LEFT = "self.left = wanted - torch.where(signs, -scale, scale)"

MUTANTS = [
    (
        "momentum after the signs",
        "Where does momentum stand",
        (
            ("self.left = torch.zeros(n)", "self.left, self.velocity = torch.zeros(n), 0.0"),
            (_STEP, _AFTER),
        ),
    ),
    (
        "momentum after the signs, at the learning rate that is right without it",
        "Where does momentum stand",
        (
            ("self.left = torch.zeros(n)", "self.left, self.velocity = torch.zeros(n), 0.0"),
            (_STEP, _AFTER.replace("0.02 *", "0.5 *")),
        ),
    ),
    ("a small learning rate", "which learning rate", (("self.lr = 0.5", "self.lr = 0.02"),)),
    ("what is left out is lost", "What has a rank kept", ((_LEFT, "pass"),)),
    (
        "what is left of this gradient alone",
        "What has a rank kept",
        ((_LEFT, "self.left = g - torch.where(signs, -scale, scale)"),),
    ),
    (
        "the other sign is kept",
        "What has a rank kept",
        ((_LEFT, "self.left = torch.where(signs, -scale, scale) - wanted"),),
    ),
    (
        "whole numbers travel",
        "one bit per number",
        (("return signs, scale", "return wanted, scale"),),
    ),
    (
        "a rank's own scale",
        "not the same on all ranks",
        (
            ("return signs, scale", "self.scale = scale\n        return signs, scale"),
            (_STEP, _STEP.replace("scales[:, None]", "self.scale")),
        ),
    ),
    (
        "the course's compressor",
        "dtcourse.compression",
        """
from dtcourse.compression import ScaledSign


class OneBit:
    def __init__(self, n, p):
        self.compressor = ScaledSign()

    def send(self, g):
        scale, _ = self.compressor.compress(g).wire
        return g < 0, scale

    def receive(self, signs, scales):
        return 0.5 * (torch.where(signs, -1.0, 1.0) * scales[:, None]).mean(0)
""",
    ),
]

ACCEPTED = [
    (
        "momentum on each rank, before the signs",
        """
class OneBit:
    def __init__(self, n, p):
        self.left, self.velocity = torch.zeros(n), torch.zeros(n)

    def send(self, g):
        self.velocity = 0.9 * self.velocity + g
        wanted = self.left + self.velocity
        size = float(wanted.abs().mean())
        below = wanted < 0
        self.left = wanted + torch.where(below, size, -size)
        return below, size

    def receive(self, signs, scales):
        total = torch.zeros(signs.shape[1])
        for below, size in zip(signs, scales):
            total += torch.where(below, -size, size)
        return 0.05 / len(signs) * total
""",
    ),
    (
        "a larger learning rate, and the sum over the ranks",
        """
class OneBit:
    def __init__(self, n, p):
        self.rest, self.lr = torch.zeros(n), 0.8 / p

    def send(self, g):
        self.rest += g
        scale = self.rest.abs().mean()
        signs = self.rest < 0
        self.rest -= scale * (1 - 2 * signs.float())
        return [signs, scale]

    def receive(self, signs, scales):
        return self.lr * (scales @ (1 - 2 * signs.float()))
""",
    ),
]

NOTHING = [
    (
        "zeros",
        """
class OneBit:
    def __init__(self, n, p):
        pass

    def send(self, g):
        return g < 0, 0.0

    def receive(self, signs, scales):
        return torch.zeros(signs.shape[1])
""",
    ),
]
