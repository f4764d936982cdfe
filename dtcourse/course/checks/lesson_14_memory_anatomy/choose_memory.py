"""What to give up so that a step fits: a large micro-batch, activations, or the optimizer's states."""

from __future__ import annotations

from dtcourse.course.judging import Answer, Exercise, call_each, require, require_near_best

CHOOSE = Exercise(
    "choose_memory",
    lesson="14",
    title="Choose what to give up",
    takes=("choose_memory",),
    target="a step that fits, in at most 1.01 times the best one's time, on 8 devices",
)

GB = 10**9
# bytes of the device, parameters, ranks, samples, layers, bytes of a layer's activations and of its input per sample;
# seconds: per layer and pass, per layer and sample, to shard
Device = tuple[int, int, int, int, int, int, int, float, float, float]
ROOMY: tuple[Device, ...] = (
    (80 * GB, 10**9, 8, 16, 24, 120_000_000, 8_000_000, 100e-6, 2e-3, 0.04),
    (141 * GB, 2 * 10**9, 4, 12, 32, 150_000_000, 10_000_000, 50e-6, 4e-3, 0.1),
)
ACTIVATIONS: tuple[Device, ...] = (
    (40 * GB, 10**9, 8, 24, 24, 200_000_000, 8_000_000, 5e-3, 1e-3, 0.5),
    (80 * GB, 2 * 10**9, 16, 32, 48, 150_000_000, 6_000_000, 100e-6, 2e-3, 3.0),
    (24 * GB, 350_000_000, 2, 36, 24, 100_000_000, 4_000_000, 8e-3, 0.5e-3, 0.6),
)
STATES: tuple[Device, ...] = (
    (80 * GB, 4_500_000_000, 8, 16, 32, 160_000_000, 12_000_000, 2e-3, 4e-3, 0.3),
    (80 * GB, 7 * 10**9, 16, 12, 32, 200_000_000, 16_000_000, 1e-3, 8e-3, 0.4),
    (40 * GB, 2 * 10**9, 4, 20, 24, 120_000_000, 8_000_000, 6e-3, 1e-3, 0.15),
)
Choice = tuple[int, int, bool]


def needed(device: Device, choice: Choice) -> int:
    """Bytes, as the exercise counts them."""
    _, parameters, ranks, _, layers, kept, entry, *_ = device
    micro, recomputed, sharded = choice
    states = 4 * parameters + 12 * parameters // (ranks if sharded else 1)
    again = kept if recomputed else 0  # the layer that is recomputed just now
    return states + micro * ((layers - recomputed) * kept + recomputed * entry + again)


def seconds(device: Device, choice: Choice) -> float:
    """Of a step, as the exercise counts them."""
    _, _, _, samples, layers, _, _, launch, sample, gather = device
    micro, recomputed, sharded = choice
    forward = launch + micro * sample  # of a layer
    return samples // micro * (3 * layers + recomputed) * forward + (gather if sharded else 0)


def choices(device: Device) -> list[Choice]:
    """All that fit."""
    capacity, _, _, samples, layers, *_ = device
    found = [
        (micro, recomputed, sharded)
        for micro in range(1, samples + 1)
        if samples % micro == 0
        for recomputed in range(layers + 1)
        for sharded in (False, True)
    ]
    return [choice for choice in found if needed(device, choice) <= capacity]


def best(device: Device) -> tuple[float, Choice]:
    """The shortest time, and its choice."""
    return min((seconds(device, choice), choice) for choice in choices(device))


def _require(answer: Answer, devices: tuple[Device, ...], hint: str) -> None:
    for device, got in zip(devices, call_each(answer, devices), strict=True):
        capacity, parameters, ranks, samples, layers, *_ = device
        where = (
            f"{capacity / GB:g} GB, {parameters / 1e9:g} billion parameters, {ranks} ranks, {samples} samples, "
            f"{layers} layers"
        )
        right = isinstance(got, (list, tuple)) and [type(n) for n in got] == [int, int, bool]
        require(
            right,
            f"{where}: a choice is (micro, recomputed, sharded), such as (4, 2, True); got {got!r}.",
        )
        micro, recomputed, sharded = got
        require(
            micro > 0 and samples % micro == 0 and 0 <= recomputed <= layers,
            f"{where}: {tuple(got)!r} is not possible. Micro-batches are equal parts of the samples, and 0 to "
            f"{layers} layers are "
            "recomputed.",
        )
        need = needed(device, (micro, recomputed, sharded))
        require(
            need <= capacity,
            f"{where}: {tuple(got)!r} takes {need / GB:.2f} GB, which does not fit. Which states does every rank "
            "still hold in full, and what does the layer that is recomputed just now take?",
        )
        taken, (least, _) = seconds(device, (micro, recomputed, sharded)), best(device)
        require_near_best(where, got, taken * 1e3, least * 1e3, "ms", hint)


@CHOOSE.check("where there is room", points=2)
def check_roomy(answer: Answer) -> None:
    """All fits: nothing has to be given up."""
    _require(answer, ROOMY, "What has to be given up here at all, and what does it cost?")


@CHOOSE.check("where activations count", points=3)
def check_activations(answer: Answer) -> None:
    """A smaller micro-batch, or some layers computed again."""
    _require(
        answer,
        ACTIVATIONS,
        "What do more launches cost, and what do some layers computed again? Must all of them be?",
    )


@CHOOSE.check("where states count", points=3)
def check_states(answer: Answer) -> None:
    """Sharding pays for itself."""
    _require(
        answer,
        STATES,
        "What does sharding make room for, and is that worth its seconds?",
    )
