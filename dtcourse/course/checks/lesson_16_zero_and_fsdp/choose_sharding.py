"""Units, kept or gathered again, over all ranks or inside a node: the job is run with the answer's choice."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple

from dtcourse.course.judging import Answer, Exercise, call_each, require, require_near_best
from dtcourse.emulation import EmulatedNetwork

WIDTH = 24  # its rows divide among 2, 4 and 6 ranks
BLOCK_BYTES = 4 * WIDTH**2
Choice = tuple[int, bool, str]


class Cluster(NamedTuple):
    """What a case gives to the answer. Seconds and bytes per second; room in bytes."""

    blocks: int
    block_bytes: int
    forward: float  # of a block; backward takes twice as long
    nodes: int
    per_node: int
    latency: float
    gap: float
    inside: float
    between: float
    room: float


def cluster(
    nodes: int, latency: float, gap: float, inside: float, between: float, room: float
) -> Cluster:
    """A case of 12 blocks on nodes of two ranks. room: in blocks."""
    return Cluster(
        12, BLOCK_BYTES, 1e-3, nodes, 2, latency, gap, inside, between, room * BLOCK_BYTES
    )


CHOOSE = Exercise(
    "choose_sharding",
    lesson="16",
    title="Choose",
    takes=("choose_sharding",),
    launches=True,
    target="the job fits, and its step takes at most 1.01 times the best choice's, both run on 6 emulated clusters",
    forbidden=(
        "dtcourse.launch",
        "dtcourse.emulation",
        "dtcourse.simulator",
        "dtcourse.course.checks",
    ),
)


def choices(case: Cluster) -> list[Choice]:
    """All that can be chosen."""
    units = [n for n in range(1, case.blocks + 1) if case.blocks % n == 0]
    return [(n, keep, over) for n in units for keep in (False, True) for over in ("all", "node")]


def step(_: Any, given: tuple[Any, ...], choice: Choice) -> tuple[float, int]:
    """In each rank: seconds of a step's forward and backward on the emulated clock, and bytes of states after it.

    Of two steps the second one counts: in the first the order of the units is learnt.
    """
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh

    from dtcourse import emulation
    from dtcourse.profiling.memory import held
    from dtcourse.sharding import fully_shard

    class Compute(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            emulation.sleep(case.forward)
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            emulation.sleep(2 * case.forward)
            return grad

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Compute.apply(torch.tanh(x @ self.weight.T))  # type: ignore[no-any-return]

    case = Cluster(*given)
    per_unit, keep, over = choice
    mesh = None
    if over == "node":
        axes = ("replicate", "shard")
        mesh = init_device_mesh("cpu", (case.nodes, case.per_node), mesh_dim_names=axes)
    units = (
        nn.Sequential(*(Block() for _ in range(per_unit))) for _ in range(case.blocks // per_unit)
    )
    model = nn.Sequential(*units)
    for module in (*model, model):
        fully_shard(module, mesh=mesh, reshard_after_forward=not keep)
    optimizer = torch.optim.AdamW(model.parameters())
    x, took = torch.randn(2, WIDTH, requires_grad=True), 0.0
    for start in (1.0, 2.0):
        model.zero_grad()
        # All ranks begin at one moment of the virtual clock, when no message is under way.
        emulation.sleep(start - emulation.now())
        model(x).square().mean().backward()
        took = emulation.now() - start
        optimizer.step()
    return took, sum(held(model, optimizer).values())


def options(case: Cluster) -> dict[str, Any]:
    """Of a launch: the emulated cluster."""
    between = EmulatedNetwork(case.latency, case.between, gap=case.gap)
    network = EmulatedNetwork(
        case.latency, case.inside, gap=case.gap, node_size=case.per_node, between=between
    )
    return {"backend": "ring", "network": network, "clock": "virtual", "record": True}


def cost(run: Any, case: Cluster) -> tuple[float, float]:
    """Of a run of `step`: seconds of the slowest rank, and bytes of the fullest: states and what is gathered."""
    ranks = range(case.nodes * case.per_node)
    peak = 0.0
    for rank in ranks:
        memory = run.timeline.of(rank=rank, kind="memory")
        gathered = accumulate(e.bytes if e.name.startswith("gather") else -e.bytes for e in memory)
        peak = max(peak, run[rank][1] + max(gathered))
    return max(run[rank][0] for rank in ranks), peak


def measure(case: tuple[Any, ...], choice: Choice) -> tuple[float, float]:
    """(seconds of a step, bytes on the fullest rank) of the job of the exercise: to try a choice in the notebook."""
    from dtcourse import launch

    given = Cluster(*case)
    run = launch(step, given.nodes * given.per_node, None, tuple(given), choice, **options(given))
    return cost(run, given)


# Each with the best choice, which tests/course/test_choose_sharding.py finds by running every choice.
TIGHT: tuple[tuple[Cluster, Choice], ...] = (
    (cluster(2, 1e-5, 5e-4, 1e7, 1e7, room=20.5), (2, False, "all")),
    (cluster(3, 1e-5, 4e-4, 1e7, 1.5e6, room=19), (4, False, "all")),
)
KEPT: tuple[tuple[Cluster, Choice], ...] = (
    (cluster(3, 1e-5, 4e-4, 1e7, 1.5e6, room=21), (3, True, "all")),
    (cluster(2, 5e-5, 1e-3, 1e8, 1e8, room=25), (4, True, "all")),
)
ACROSS: tuple[tuple[Cluster, Choice], ...] = (
    (cluster(2, 2e-5, 1e-4, 2e7, 1e6, room=31), (1, False, "node")),
    (cluster(3, 1e-5, 4e-4, 1e7, 1.5e6, room=31), (2, False, "node")),
)


def _require(answer: Answer, cases: tuple[tuple[Cluster, Choice], ...], hint: str) -> None:
    given = [tuple(case) for case, _ in cases]
    for (case, best), got in zip(cases, call_each(answer, given), strict=True):
        where = (
            f"{case.nodes} nodes of {case.per_node}, a message costs {case.latency:g} s and {case.gap:g} s of its "
            f"port, {case.inside:g} bytes/s inside and {case.between:g} between nodes, room {case.room:,.0f} bytes"
        )
        right = isinstance(got, (list, tuple)) and len(got) == 3
        require(
            right and type(got[1]) is bool and tuple(got) in choices(case),
            f"{where}: a choice is (per_unit, keep, over), such as (2, False, 'all'), and per_unit divides "
            f"{case.blocks}; got {got!r}.",
        )
        (least, _), (taken, held) = (
            cost(
                answer.run(step, case.nodes * case.per_node, tuple(case), choice, **options(case)),
                case,
            )
            for choice in (best, tuple(got))
        )
        require(
            held <= case.room,
            f"{where}: with {tuple(got)!r} the fullest rank holds {held:,.0f} bytes. What has a rank of each "
            "parameter all the time, and how many units are whole at once?",
        )
        require_near_best(where, got, 1e3 * taken, 1e3 * least, "ms", hint)


@CHOOSE.check("where little is whole", points=3)
def check_tight(answer: Answer) -> None:
    """How many blocks are a unit."""
    _require(
        answer,
        TIGHT,
        "What does a collective cost besides its bytes, and which of a step's gathers does nothing hide?",
    )


@CHOOSE.check("where the model may stay whole", points=3)
def check_kept(answer: Answer) -> None:
    """And is not sharded inside a node, which takes more."""
    _require(answer, KEPT, "Which collectives fall away, and how large is the best unit without them?")  # fmt: skip


@CHOOSE.check("where a node holds the states", points=3)
def check_across(answer: Answer) -> None:
    """Slow links between nodes."""
    _require(
        answer,
        ACROSS,
        "What must cross between the nodes in each choice, and what of it hides behind backward?",
    )
