"""Studies of plans, drawn anew each time: which plan is wrong, and how."""

from __future__ import annotations

import random
from typing import Any

from dtcourse.course.judging import Answer, Exercise, place, require_kind
from dtcourse.plural import plural
from dtcourse.simulator.states import model_states

DIAGNOSE = Exercise(
    "diagnose_plan",
    lesson="30",
    title="Which plan is wrong, and how?",
    takes=("diagnose_plan",),
    target="30 of 30 studies of 3 to 6 plans, drawn anew each time, and shuffled",
    forbidden=("dtcourse.planner", "dtcourse.simulator", "dtcourse.fault_tolerance"),
)

EACH = 3  # studies of a kind, and as many healthy ones beside them
NODE = 8
# A study is called with a model, and with its plans.
Study = tuple[dict[str, float], list[dict[str, Any]]]
KINDS = ("batch of a rank", "counted twice", "other peak", "other stage", "failures of a node")


def rounded(value: float) -> float:
    """To four digits, as a study prints it."""
    return float(f"{value:.4g}")


def states(parameters: float, plan: dict[str, Any], stage: int) -> float:
    """Bytes on a device."""
    held = model_states(
        round(parameters / (plan["stages"] * plan["tensor"])),
        precision="bf16 + master", optimizer="adam", stage=stage, ranks=plan["data"],
    )  # fmt: skip
    return sum(held.values())


def drawn_model() -> dict[str, float]:
    """Sizes as models have them."""
    layers, width = random.choice([(32, 4096), (40, 5120), (48, 7168), (80, 8192), (96, 12288)])
    return {
        "parameters": rounded(12.3 * layers * width**2), "layers": layers, "width": width,
        "length": random.choice([2048, 4096, 8192]), "peak": random.choice([312e12, 989e12]),
        "lifetime": rounded(random.uniform(2e4, 8e4)),
    }  # fmt: skip


def planned(model: dict[str, float], kind: str) -> dict[str, Any]:
    """A plan of this model, with this mistake."""
    # Of a rank's batch an MFU above 1 would tell: few ranks, so that it stays below.
    data = random.choice([2, 4] if kind == "batch of a rank" else [2, 4, 8, 16, 32, 64])
    stages = random.choice([1, 2, 4, 8])
    tensor, stage = random.choice([1, 2, 4, 8]), random.choice([0, 1, 2, 3])
    devices = data * stages * tensor
    sequences = data * random.choice([4, 8, 16, 32])
    recomputed = kind == "counted twice" or random.random() < 0.5
    plan = {
        "devices": devices, "data": data, "stages": stages, "tensor": tensor, "zero": stage,
        "sequences": sequences, "recomputed": recomputed,
    }  # fmt: skip
    tokens = sequences * model["length"]
    each = (
        6 * model["parameters"] + 12 * model["layers"] * model["width"] * model["length"]
    )  # operations
    # So that half of it, and twice it, are as plausible as this: the size of an MFU tells nothing.
    share = random.uniform(0.15, min(0.55, 0.95 / data) if kind == "batch of a rank" else 0.55)
    seconds = rounded(tokens * each / (devices * model["peak"] * share))
    believed = tokens * (data if kind == "batch of a rank" else 1)
    mfu = believed * each / (seconds * devices * model["peak"])
    mfu *= {"counted twice": 4 / 3, "other peak": 1 / 2}.get(kind, 1.0)
    other = random.choice([one for one in range(4) if one != stage])
    hours = model["lifetime"] / devices
    if kind == "failures of a node":
        hours *= random.choice([NODE, 1 / NODE])
    return plan | {
        "seconds": seconds, "tokens per second": rounded(believed / seconds), "mfu": rounded(mfu),
        "states": rounded(states(model["parameters"], plan, other if kind == "other stage" else stage)),
        "hours between failures": rounded(hours),
    }  # fmt: skip


def drawn(kind: str, turn: int) -> tuple[Study, tuple[str, int | None]]:
    """A study of this kind, and what is wrong with it."""
    model, length = drawn_model(), random.randint(3, 6)
    plans = [planned(model, "healthy") for _ in range(length)]
    # A healthy study has plans that recompute, too: that alone is no mistake.
    if kind == "healthy":
        return (model, plans), ("healthy", None)
    at = place(turn, 0, length - 1)
    plans[at] = planned(model, kind)
    return (model, plans), (kind, at)


def _described(model: dict[str, float], plans: list[dict[str, Any]]) -> str:
    size = model["parameters"] / 1e9
    return f"A study of {plural(len(plans), 'plan')} for {size:.0f} billion parameters"


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_kind(
        answer,
        kind,
        hint,
        drawn=drawn,
        each=EACH,
        describe=_described,
        healthy="Each of its numbers follows from what was chosen and from the seconds, to four digits.",
        example=("other stage", 2),
        all_healthy="You call every study healthy: how far from what follows is a number allowed to be?",
    )


@DIAGNOSE.check("a batch that is not the step's", points=2)
def check_batch(answer: Answer) -> None:
    """Two numbers are wrong, by one factor."""
    _require(
        answer,
        "batch of a rank",
        "How many tokens does a step have, and how many per second is that?",
    )


@DIAGNOSE.check("work that is counted twice", points=2)
def check_twice(answer: Answer) -> None:
    """Hardware FLOPs, which recomputation raises."""
    _require(
        answer,
        "counted twice",
        "Which operations does this plan do, and which of them count for an MFU?",
    )


@DIAGNOSE.check("another peak", points=2)
def check_peak(answer: Answer) -> None:
    """Data sheets print more than one."""
    _require(answer, "other peak", "Which peak do tokens per second and this MFU make?")


@DIAGNOSE.check("states of another stage", points=2)
def check_stage(answer: Answer) -> None:
    """What is shared over data ranks."""
    _require(
        answer,
        "other stage",
        "Which states does this stage share over the data ranks, and how many bytes are left?",
    )


@DIAGNOSE.check("failures of another size", points=2)
def check_failures(answer: Answer) -> None:
    """Of a device, a node, a job."""
    _require(answer, "failures of a node", "How often does one of so many devices fail?")
