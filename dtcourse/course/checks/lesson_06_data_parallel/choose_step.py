"""How many ranks, how large a micro-batch and how large a bucket: run on the emulated clock."""

from __future__ import annotations

from typing import Any

from dtcourse.course.judging import Answer, Exercise, call_each, require, require_near_best
from dtcourse.emulation import EmulatedNetwork

CHOOSE = Exercise(
    "choose_step",
    lesson="06",
    title="Choose ranks, micro-batches and buckets",
    takes=("choose_step",),
    target="on 6 clusters, run on the emulated clock, a step takes at most 1.01 times as long as with the best choice",
    forbidden=("dtcourse.emulation", "dtcourse.simulator", "dtcourse.launch"),
)

# samples, most ranks, what fits of them, layers, seconds: per launch, per sample, latency, a layer's bytes
Cluster = tuple[int, int, int, int, float, float, float, float]
COMPUTING: tuple[Cluster, ...] = (
    (192, 8, 24, 6, 20e-6, 1e-3, 10e-6, 2e-3),
    (240, 6, 40, 8, 50e-6, 0.5e-3, 20e-6, 5e-3),
)
NETWORK: tuple[Cluster, ...] = (
    (64, 8, 64, 12, 20e-6, 0.1e-3, 1e-3, 2e-3),
    (32, 8, 32, 6, 50e-6, 0.2e-3, 50e-6, 8e-3),
)
MEMORY: tuple[Cluster, ...] = (
    (48, 8, 3, 12, 100e-6, 0.3e-3, 30e-6, 3e-3),
    (60, 6, 4, 8, 200e-6, 0.1e-3, 300e-6, 2e-3),
)
Choice = tuple[int, int, int]
# Numbers of a layer; a ring of any number of ranks up to 8 cuts them, and any bucket of them, into equal blocks.
NUMBERS = 840


def seconds(cluster: Cluster, choice: Choice) -> float:
    """Of a step, without the emulator."""
    samples, _, _, layers, launch, sample, latency, nbytes = cluster
    ranks, micro, bucket = choice
    forward = launch + micro * sample  # of a layer
    backward, end = 2 * forward, 0.0
    for last in range(bucket, layers + 1, bucket):
        send = 2 * (ranks - 1) * (latency + bucket * nbytes / ranks)
        end = max(end, last * backward) + send
    before = samples // (ranks * micro) - 1  # micro-batches that send nothing
    return before * layers * (forward + backward) + layers * forward + end


def choices(cluster: Cluster) -> list[Choice]:
    """All that is allowed."""
    samples, most, fits, layers, *_ = cluster
    return [
        (ranks, micro, bucket)
        for ranks in range(1, most + 1)
        if samples % ranks == 0
        for micro in range(1, fits + 1)
        if samples // ranks % micro == 0
        for bucket in range(1, layers + 1)
        if layers % bucket == 0
    ]


def best(cluster: Cluster) -> Choice:
    """The choice with the shortest step."""
    return min(choices(cluster), key=lambda choice: seconds(cluster, choice))


def _trained(_: Any, cluster: Cluster, choice: Choice) -> float:
    """In a rank: seconds of the virtual clock for one step of DDP by hooks, with that many micro-batches."""
    import torch
    import torch.distributed as dist

    from dtcourse import emulation

    samples, _, _, layers, launch, sample, *_ = cluster
    ranks, micro, bucket = choice

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Any, weight: Any) -> Any:
            emulation.sleep(launch + micro * sample)
            return x.clone()

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            emulation.sleep(2 * (launch + micro * sample))
            return gradient, torch.ones(NUMBERS)

    weights = [torch.zeros(NUMBERS, requires_grad=True) for _ in range(layers)]
    sending: list[Any] = []
    missing: list[int] = []

    def ready(number: int) -> None:
        missing.append(number)
        if last and len(missing) == bucket:
            flat = torch.cat([weights[i].grad for i in missing])  # type: ignore[misc]
            sending.append(dist.all_reduce(flat, async_op=True))
            missing.clear()

    for i, weight in enumerate(weights):
        weight.register_post_accumulate_grad_hook(lambda _, i=i: ready(i))
    begun = emulation.now()
    for number in range(samples // (ranks * micro)):
        missing.clear()
        last = number == samples // (ranks * micro) - 1
        x = torch.ones(1, requires_grad=True)
        for weight in weights:
            x = Layer.apply(x, weight)
        x.sum().backward()
    for work in sending:
        work.wait()
    return emulation.now() - begun


def emulated(answer: Answer, cluster: Cluster, choice: Choice) -> float:
    """Seconds of a step, on as many ranks as were chosen."""
    *_, latency, nbytes = cluster
    network = EmulatedNetwork(latency=latency, bandwidth=4 * NUMBERS / nbytes)
    run = answer.run(
        _trained, choice[0], cluster, choice, backend="ring", network=network, clock="virtual"
    )
    return max(run[rank] for rank in range(choice[0]))


def _require(answer: Answer, clusters: tuple[Cluster, ...], hint: str) -> None:
    for cluster, got in zip(clusters, call_each(answer, clusters), strict=True):
        samples, most, fits, layers, launch, sample, latency, nbytes = cluster
        where = (
            f"{samples} samples, at most {most} ranks, {fits} samples fit, {layers} layers; seconds: {launch:g} per "
            f"launch, {sample:g} per sample, {latency:g} of latency, {nbytes:g} for a layer's bytes"
        )
        right = isinstance(got, (list, tuple)) and [type(n) for n in got] == [int] * 3
        require(
            right, f"{where}: a choice is (ranks, micro, bucket), such as (4, 2, 3); got {got!r}."
        )
        require(
            tuple(got) in choices(cluster),
            f"{where}: {tuple(got)!r} is not possible. What must ranks, their micro-batches and the layers of a "
            "bucket divide, and what fits?",
        )
        choice: Choice = (got[0], got[1], got[2])
        times = {one: emulated(answer, cluster, one) for one in {choice, best(cluster)}}
        require_near_best(where, got, 1e3 * times[choice], 1e3 * times[best(cluster)], "ms", hint)


@CHOOSE.check("where computing counts", points=2)
def check_computing(answer: Answer) -> None:
    """All ranks are worth their messages."""
    _require(answer, COMPUTING, "What does one rank more save, and what of its messages is hidden?")


@CHOOSE.check("where the network counts", points=3)
def check_network(answer: Answer) -> None:
    """With more ranks each has less to hide messages behind, and sends more of them."""
    _require(
        answer,
        NETWORK,
        "Would fewer ranks be faster? And what does a message cost, and what does the last bucket?",
    )


@CHOOSE.check("where memory counts", points=3)
def check_memory(answer: Answer) -> None:
    """Several micro-batches; the last one's backward alone can hide messages."""
    _require(
        answer,
        MEMORY,
        "Which micro-batch's backward hides the messages, and what does each launch cost?",
    )
