"""Bytes against the memory wall."""

from __future__ import annotations

import math
import random
from typing import Any

from dtcourse.course.judging import Answer, Exercise, number, require

MEMORY = Exercise(
    "memory_wall",
    lesson="01",
    title="Bytes against the memory wall",
    takes=("states_bytes", "devices_needed"),
    target="exact to 1 byte and 1 device, for 3 optimizers and 2 precisions",
)

_STATES = {
    "sgd": 0,
    "momentum": 1,
    "adam": 2,
}  # numbers of 32 bits that the optimizer keeps a parameter


def _expected_states(n: int, optimizer: str, precision: str) -> dict[str, int]:
    low = 2 if precision == "mixed" else 4
    master = 4 if precision == "mixed" else 0
    return {
        "parameters": low * n,
        "gradients": low * n,
        "optimizer states": (master + 4 * _STATES[optimizer]) * n,
    }


def _states(states_bytes: Any, _: Any, cases: list[tuple[int, str, str]]) -> list[dict[str, int]]:
    return [states_bytes(*case) for case in cases]


def _devices(_: Any, devices_needed: Any, cases: list[tuple[int, int, int]]) -> list[int]:
    return [devices_needed(*case) for case in cases]


def _impossible(_: Any, devices_needed: Any, cases: list[tuple[int, int, int]]) -> list[str]:
    said = []
    for case in cases:
        try:
            said.append(f"returned {devices_needed(*case)!r}")
        except Exception as error:
            said.append(type(error).__name__)
    return said


@MEMORY.check("32-bit training: 4 bytes per number, and the optimizer decides how many", points=2)
def check_full_precision(answer: Answer) -> None:
    """SGD 8, momentum 12, Adam 16 bytes a parameter."""
    _compare_states(answer, "fp32")


@MEMORY.check("mixed precision: halves where they may be, and a master copy", points=2)
def check_mixed_precision(answer: Answer) -> None:
    """SGD 8, momentum 12, Adam 16 bytes a parameter as well, split in another way."""
    _compare_states(answer, "mixed")


def _compare_states(answer: Answer, precision: str) -> None:
    cases = [(random.randrange(10**6, 10**9), name, precision) for name in _STATES]
    came = answer.call(_states, cases)
    for case, got in zip(cases, came, strict=True):
        n, optimizer, _ = case
        right = _expected_states(*case)
        require(
            isinstance(got, dict) and set(got) == set(right),
            f"states_bytes should return a dict with the keys {sorted(right)}; got {got!r}.",
        )
        for part, value in right.items():
            hint = {
                "parameters": "How many bytes has a number in this precision?",
                "gradients": "A gradient has the precision of the weight that it belongs to.",
                "optimizer states": "Which numbers does this optimizer remember from step to step, in 32 bits each? "
                "In mixed precision there is one more: the weights that it really updates.",
            }[part]
            require(
                got[part] == value,
                f"{optimizer} in {precision}, {n:,} parameters: {part} should be {value / n:g} bytes a parameter, and "
                f"yours are {got[part] / n:g}. {hint}",
            )


@MEMORY.check("how many devices, when the states are divided and activations are not", points=3)
def check_devices(answer: Answer) -> None:
    """ceil(states / (device - activations)), exact where it fits exactly."""
    cases = [
        (random.randrange(10**11, 10**13), 80 * 10**9, random.randrange(70 * 10**9))
        for _ in range(4)
    ]
    cases += [
        (160 * 10**9, 80 * 10**9, 0),
        (60 * 10**9, 80 * 10**9, 20 * 10**9),
        (1, 80 * 10**9, 0),
    ]
    for (states, device, activations), got in zip(
        cases, map(number, answer.call(_devices, cases)), strict=True
    ):
        right = -(-states // (device - activations))
        share = states / got + activations if isinstance(got, int) and got > 0 else math.nan
        if isinstance(got, int) and got > 0 and got < right:
            why = f"each would then hold {share / 1e9:.4g} GB: its share of the states, and all of its activations."
        elif isinstance(got, int) and got == right + 1:
            why = "one fewer is enough. What does your rounding do where it fits exactly?"
        else:
            why = "which part of the memory becomes smaller with more devices, and which does not?"
        require(
            type(got) is int and got == right,
            f"{states / 1e9:.6g} GB of states and {activations / 1e9:.4g} GB of activations on devices of "
            f"{device / 1e9:g} GB: {right} devices are needed, and you say {got!r}: {why}",
        )


@MEMORY.check(
    "where no number of devices is enough, it says so", points=1, needs=("check_devices",)
)
def check_impossible(answer: Answer) -> None:
    """ValueError where the activations alone fill a device."""
    for said in answer.call(
        _impossible, [(10**9, 80 * 10**9, 80 * 10**9), (10**9, 80 * 10**9, 10**11)]
    ):
        require(
            said == "ValueError",
            f"If activations alone fill a device, dividing the states cannot help: raise a ValueError. Yours: {said}.",
        )
