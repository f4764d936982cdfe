"""One step or two for an all-to-all, and how many chunks overlap with computing. Really run, under emulation."""

from __future__ import annotations

from dtcourse.course.checks.lesson_21b_expert_parallelism import exchanges
from dtcourse.course.judging import Answer, Exercise, require_near_best, trials
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork

CHOOSE = Exercise(
    "choose_exchange",
    lesson="21b",
    title="Choose an exchange",
    takes=("choose_exchange",),
    target="on 4 clusters a layer of at most 1.01 times the best choice's, measured; at most 7 of 12 choices tried",
    launches=True,
)

ROWS = 24  # of each rank for each rank
MOST = 7  # choices that an answer may try
CHUNKS = (1, 2, 3, 4, 6, 12)
CHOICES: list[trials.Choice] = [(way, n) for way in ("at once", "two steps") for n in CHUNKS]
# Hidden width; operations per second, bytes per second of memory; a message's own seconds, latency and bytes per second
# between nodes; bytes per second inside a node.
Cluster = tuple[int, float, float, float, float, float, float]
# With the best choice, which tests/course/test_choose_exchange.py finds by running every one.
COSTLY: dict[Cluster, trials.Choice] = {
    (64, 2e8, 1e9, 6e-4, 1e-4, 1e7, 1e8): ("two steps", 1),
    (32, 1e8, 1e8, 2e-4, 1e-5, 2e6, 1e8): ("two steps", 2),
}
CHEAP: dict[Cluster, trials.Choice] = {
    (32, 1e8, 1e9, 1e-5, 1e-5, 2e6, 1e7): ("at once", 4),
    (64, 5e7, 1e9, 2e-4, 1e-5, 5e6, 1e8): ("two steps", 6),
}


def case(cluster: Cluster) -> trials.Case:
    """A cluster, as an answer gets it."""
    hidden, flops, bandwidth, gap, latency, between, inside = cluster
    outer = EmulatedNetwork(latency, between, gap=gap)
    emulated = {
        "devices": EmulatedDevice(flops, bandwidth),
        "network": EmulatedNetwork(1e-6, inside, node_size=exchanges.PLACES, between=outer),
    }
    told = exchanges.NODES, exchanges.PLACES, CHUNKS
    return trials.Case(
        exchanges.step, exchanges.RANKS, CHOICES, (ROWS, hidden), told, MOST, emulated
    )


PRACTICE = case(next(iter(CHEAP)))


def _require(answer: Answer, cases: dict[Cluster, trials.Choice], hint: str) -> None:
    for cluster, best in cases.items():
        hidden, flops, _, gap, _, between, _ = cluster
        where = (
            f"Hidden width {hidden}, {flops:.3g} operations per second; between nodes {between:.3g} bytes per second "
            f"and {gap:.3g} s per message"
        )
        tried = case(cluster).tried(answer, exchanges.step, [best])
        ((least,),) = tried.probed
        (taken,) = trials.require_possible(
            where,
            tried,
            best,
            f"Possible are 'at once' and 'two steps', with one of {CHUNKS} chunks.",
        )
        require_near_best(where, tried.choice, taken * 1e3, least * 1e3, "ms", hint)


@CHOOSE.check("where a message costs much", points=4)
def check_costly(answer: Answer) -> None:
    """Whatever is in it."""
    _require(
        answer,
        COSTLY,
        "How many messages does each way send to the other node for every chunk, and was the other way measured with "
        "as many chunks?",
    )


@CHOOSE.check("where a chunk costs little", points=4)
def check_cheap(answer: Answer) -> None:
    """Beside what its computing hides."""
    _require(
        answer,
        CHEAP,
        "What of the exchange is hidden, and what not? Is what was measured with more chunks worse than your choice, "
        "and with fewer, too?",
    )
