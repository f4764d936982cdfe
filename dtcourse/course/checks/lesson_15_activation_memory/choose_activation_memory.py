"""Micro-batch, what to recompute and what to offload: the fastest step that fits."""

from __future__ import annotations

from dtcourse.course.judging import Answer, Exercise, call_each, require, require_near_best

CHOOSE = Exercise(
    "choose_activation_memory",
    lesson="15",
    title="Choose the micro-batch, what to recompute and what to offload",
    takes=("choose_activation_memory",),
    target="a step that fits in at most 1.01 times the best one's time, on 9 devices",
)

# samples, blocks, bytes per sample and block: of the input, of attention's core, of the rest; bytes that are free;
# seconds of a block's forward: per micro-batch, per sample; the core's share of the
# latter; bytes per second of the link
Device = tuple[int, int, float, float, float, float, float, float, float, float]
MiB = float(1 << 20)
LARGE: tuple[Device, ...] = (
    (32, 24, 8 * MiB, 40 * MiB, 120 * MiB, 80_000 * MiB, 1e-3, 2e-3, 0.2, 1e10),
    (16, 12, 4 * MiB, 100 * MiB, 60 * MiB, 24_000 * MiB, 0.5e-3, 1e-3, 0.3, 1e10),
    (64, 24, 2 * MiB, 30 * MiB, 30 * MiB, 30_000 * MiB, 4e-3, 0.5e-3, 0.4, 5e9),
)
SHORT: tuple[Device, ...] = (
    (32, 48, 16 * MiB, 60 * MiB, 240 * MiB, 3_000 * MiB, 1e-3, 4e-3, 0.2, 2e9),
    (16, 96, 24 * MiB, 300 * MiB, 300 * MiB, 5_000 * MiB, 5e-3, 10e-3, 0.15, 1e9),
    (24, 32, 8 * MiB, 100 * MiB, 120 * MiB, 1_200 * MiB, 3e-3, 2e-3, 0.25, 0.5e9),
)
LINK: tuple[Device, ...] = (
    (32, 48, 16 * MiB, 60 * MiB, 240 * MiB, 12_000 * MiB, 1e-3, 20e-3, 0.2, 5e10),
    (16, 64, 24 * MiB, 200 * MiB, 300 * MiB, 8_000 * MiB, 8e-3, 30e-3, 0.1, 2.5e10),
    (48, 40, 12 * MiB, 40 * MiB, 150 * MiB, 9_000 * MiB, 4e-3, 12e-3, 0.3, 2e10),
)
Choice = tuple[int, str, int]
WAYS = ("keep", "core", "block")


def bytes_and_seconds(device: Device, choice: Choice) -> tuple[float, float]:
    """Of a step: its peak, and its time, as the exercise counts them."""
    samples, blocks, inputs, core, rest, _, launch, sample, share, link = device
    micro, way, moved = choice
    kept = {"keep": inputs + core + rest, "core": inputs + rest, "block": inputs}[way]
    made = {"keep": 0.0, "core": core, "block": core + rest}[way]
    forward = launch + micro * sample
    again = {"keep": 0.0, "core": share * micro * sample, "block": forward}[way]
    peak = micro * ((blocks - moved + min(moved, 2)) * kept + made)
    copies = moved * kept * micro / link
    step = max(blocks * forward, copies) + max(blocks * (2 * forward + again), copies)
    return peak, samples // micro * step


def choices(device: Device) -> list[Choice]:
    """All that is allowed, whether it fits or not."""
    samples, blocks, *_ = device
    return [
        (micro, way, moved)
        for micro in range(1, samples + 1)
        if samples % micro == 0
        for way in WAYS
        for moved in range(blocks + 1)
    ]


def best(device: Device) -> tuple[float, Choice]:
    """The shortest time of what fits, and its choice."""
    tried = [(*bytes_and_seconds(device, choice), choice) for choice in choices(device)]
    return min((taken, choice) for peak, taken, choice in tried if peak <= device[5])


def _require(answer: Answer, devices: tuple[Device, ...], hint: str) -> None:
    for device, got in zip(devices, call_each(answer, devices), strict=True):
        samples, blocks, inputs, core, rest, free, launch, sample, share, link = device
        where = (
            f"{samples} samples, {blocks} blocks that keep {inputs / MiB:g} + {core / MiB:g} + {rest / MiB:g} MiB, "
            f"{free / MiB:,g} MiB free, {launch:g} s per micro-batch and {sample:g} s per sample ({share:g} of it "
            f"the core), {link / 1e9:g} GB/s"
        )
        require(
            isinstance(got, (list, tuple)) and [type(n) for n in got] == [int, str, int],
            f"{where}: a choice is (micro, way, moved), such as (4, 'core', 0); got {got!r}.",
        )
        require(
            tuple(got) in choices(device),
            f"{where}: {tuple(got)!r} is not possible. micro divides {samples}, the way is 'keep', 'core' or "
            f"'block', and 0 to {blocks} "
            "blocks are moved.",
        )
        peak, taken = bytes_and_seconds(device, tuple(got))
        require(
            peak <= free,
            f"{where}: {tuple(got)!r} takes {peak / MiB:,.0f} MiB. What does a block hold while it is run again, "
            "and how many moved blocks are still under way?",
        )
        require_near_best(where, got, taken, best(device)[0], "s", hint)


@CHOOSE.check("where there is much memory", points=2)
def check_large(answer: Answer) -> None:
    """Large micro-batches, and little that runs twice."""
    _require(
        answer,
        LARGE,
        "What does a micro-batch cost besides its samples, and what does running twice cost? Which of the two is less?",
    )


@CHOOSE.check("where there is little", points=3)
def check_short(answer: Answer) -> None:
    """A slow link: recompute, and take fewer samples."""
    _require(
        answer,
        SHORT,
        "Have you compared all micro-batches, each with all that may be recomputed and a few blocks moved?",
    )


@CHOOSE.check("where copies hide", points=3)
def check_link(answer: Answer) -> None:
    """A fast link: as many blocks as hide."""
    _require(
        answer,
        LINK,
        "How many blocks' copies hide behind the forward pass, and what does that save in recomputing?",
    )
