"""Answers to choose_quantiser: see test_exercises.py."""

_EVERYONE = "everyone = (p - 1) * (latency + nbytes / bandwidth) + (1 + p) * 4 * n / memory"
_RING = "found = [(2 * (p - 1) * (latency + 4 * n / p / bandwidth), (32, None, "
_PARTS = 'found += [(everyone, (bits, block, "everyone")), (parts, (bits, block, "parts"))]'

MUTANTS = [
    (
        "the error is never looked at",
        "Quantise the sample and look",
        (("            if lost > error:\n                continue\n", ""),),
    ),
    (
        "the error of the whole sample's scale",
        "the best choice within the error",
        (
            (
                "rows.abs().amax(1, keepdim=True) / (2",
                "sample.abs().max().expand(len(rows), 1) / (2",
            ),
        ),
    ),
    (
        "one code too many",
        "Quantise the sample and look",
        (("(2 ** (bits - 1) - 1)", "2**bits"),),
    ),
    (
        "scales are free",
        "How many bytes is a number with its share of a scale",
        (("(bits / 8 + 4 / block)", "bits / 8"),),
    ),
    (
        "a scale of one byte per number",
        "How many bytes is a number with its share of a scale",
        (("(bits / 8 + 4 / block)", "(bits / 8 + 1)"),),
    ),
    (
        "parts only",
        "How many messages does each way wait for",
        ((_PARTS, 'found.append((parts, (bits, block, "parts")))'),),
    ),
    (
        "everyone's messages counted once",
        "how often does each way send it",
        (
            (
                _EVERYONE,
                "everyone = latency + nbytes / bandwidth + (1 + p) * 4 * n / memory",
            ),
        ),
    ),
    (
        "compressing is free",
        "What does compressing itself take",
        (
            (_EVERYONE, "everyone = (p - 1) * (latency + nbytes / bandwidth)"),
            ("            parts += (3 + 1 / p) * 4 * n / memory\n", ""),
        ),
    ),
    (
        "always compressed",
        "choice",
        ((_RING, "found = [(float('inf'), (32, None, "),),
    ),
    (
        "the slowest choice",
        "the best choice within the error",
        (("return min(found", "return max(found"),),
    ),
    (
        "bits alone",
        "a choice is such as",
        (("key=lambda one: one[0])[1]", "key=lambda one: one[0])[1][0]"),),
    ),
]

ACCEPTED = [
    (
        "ways first, largest blocks first, and what is out of the question left out early",
        """
import math

import torch


def choose_quantiser(sample, n, p, bandwidth, latency, memory, error):
    def lost(bits, block):
        blocks = sample.double().reshape(-1, block)
        codes = 2 ** (bits - 1) - 1
        largest = blocks.abs().max(dim=1).values[:, None]
        back = torch.round(blocks / largest * codes) * largest / codes
        return float(torch.linalg.vector_norm(back - blocks) / torch.linalg.vector_norm(blocks))

    best, choice = 2 * (p - 1) * (latency + 4 * n / (p * bandwidth)), (32, None, "ring")
    for way in ("everyone", "parts"):
        for block in (1024, 256, 64, 16):
            for bits in (2, 4, 8):
                whole = n * bits / 8 + 4 * n / block
                if way == "everyone":
                    took = (p - 1) * (latency + whole / bandwidth) + (p + 1) * 4 * n / memory
                else:
                    took = 2 * (p - 1) * (latency + whole / p / bandwidth) + (3 * p + 1) * 4 * n / p / memory
                if took < best and lost(bits, block) <= error:
                    best, choice = took, (bits, block, way)
    return choice
""",
    ),
    (
        "a list in place of a tuple",
        (
            ("key=lambda one: one[0])[1]", "key=lambda one: one[0])[1]\n    return list(choice)"),
            ("    return min(found", "    choice = min(found"),
        ),
    ),
    (
        "errors in a table first",
        (
            (
                "            if lost > error:\n",
                "            lost = ((rows / scale).round().mul(scale) - rows).square().sum().sqrt() / rows.square().sum().sqrt()\n"
                "            if float(lost) > error:\n",
            ),
        ),
    ),
]

NOTHING = [
    (
        "8 bits by parts, always",
        '\ndef choose_quantiser(sample, n, p, bandwidth, latency, memory, error):\n    return 8, 1024, "parts"\n',
    ),
    (
        "fp32, always",
        '\ndef choose_quantiser(sample, n, p, bandwidth, latency, memory, error):\n    return 32, None, "ring"\n',
    ),
]
