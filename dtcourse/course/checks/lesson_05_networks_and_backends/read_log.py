"""NCCL's log of a job, drawn anew each time and shuffled: what is wrong, and on which node?"""

from __future__ import annotations

import random

from dtcourse.course.judging import Answer, Exercise, require_kind
from dtcourse.plural import plural

READ = Exercise(
    "read_log",
    lesson="05",
    title="Read NCCL's log",
    takes=("read_log",),
    target="32 of 32 logs of 3 to 5 nodes right, drawn anew each time",
)

HEALTHY = "Nodes are built alike: is what you blame the same on every node?"
EACH = 4  # logs of a kind, and as many healthy ones beside them
Diagnosis = tuple[str, str | None]


def log_of(kind: str, turn: int) -> tuple[list[str], Diagnosis]:
    """A job's lines, as NCCL 2.2x writes them, with one fault.

    turn: 0 to EACH - 1; over all of them nodes have one card and several, and GPUs below one processor and below two
    """
    nodes, gpus = random.randint(3, 5), random.choice((4, 8))
    cards = (1, 2, 4, 4)[turn] if kind != "one card" else (2, 4, 4, 2)[turn]
    channels = 4 if gpus == 4 else 8
    hosts = [f"gpu-{place:03d}" for place in random.sample(range(1, 400), nodes)]
    culprit = random.choice(hosts)
    direct = random.choice(("P2P/CUMEM", "P2P/IPC"))
    # Below two processors, hops from one half of the GPUs to the other go by memory, on every node.
    by_design = (gpus // 2 - 1, gpus - 1) if turn % 2 == 0 else ()
    pids = {(host, gpu): random.randint(2_000, 90_000) for host in hosts for gpu in range(gpus)}
    lines: list[str] = []

    def write(host: str, gpu: int, text: str) -> None:
        pid = pids[host, gpu]
        lines.append(f"{host}:{pid}:{pid + 61} [{gpu}] NCCL INFO {text}")

    def inside(host: str, gpu: int) -> str:
        by_memory = gpu in by_design or (kind == "no direct way" and host == culprit)
        return "SHM/direct/direct" if by_memory else direct

    def between(host: str, channel: int) -> str:
        if kind == "TCP":
            return f"NET/Socket/{channel % 2}"
        card = 0 if kind == "one card" and host == culprit else channel % cards
        without = kind == "no GPUDirect" and host == culprit
        return f"NET/IB/{card}" + ("" if without else "/GDRDMA")

    for channel in range(channels):
        # In each channel a node is entered, and left, at other GPUs; their order round the node is one.
        first = channel % gpus
        for n, host in enumerate(hosts):
            order = [(first + i) % gpus for i in range(gpus)]
            ranks = [n * gpus + gpu for gpu in order]
            for i in range(gpus - 1):
                way = inside(host, order[i])
                # NCCL's shm.cc prints the channel alone, p2p.cc and net.cc which of its connections, too.
                name = f"{channel:02d}" if way.startswith("SHM") else f"{channel:02d}/0"
                write(
                    host, order[i],
                    f"Channel {name} : {ranks[i]}[{order[i]}] -> {ranks[i + 1]}[{order[i + 1]}] via {way}",
                )  # fmt: skip
            there = (n + 1) % nodes
            hop = f"Channel {channel:02d}/0 : {ranks[-1]}[{order[-1]}] -> {there * gpus + first}[{first}]"
            write(host, order[-1], f"{hop} [send] via {between(host, channel)}")
            write(hosts[there], first, f"{hop} [receive] via {between(hosts[there], channel)}")
    for host, gpu in pids:
        write(host, gpu, "Using network " + ("Socket" if kind == "TCP" else "IB"))
        write(host, gpu, "Connected all rings")
    random.shuffle(lines)
    if kind == "healthy":
        return lines, ("healthy", None)
    return lines, (kind, None if kind == "TCP" else culprit)


def _described(lines: list[str]) -> str:
    hosts = {line.partition(":")[0] for line in lines}
    return f"A job on {plural(len(hosts), 'node')}, whose log has {len(lines)} lines"


def drawn(kind: str, turn: int) -> tuple[tuple[list[str]], Diagnosis]:
    """What an answer is given of one log, and what is right."""
    lines, right = log_of(kind, turn)
    return (lines,), right


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_kind(
        answer,
        kind,
        hint,
        drawn=drawn,
        each=EACH,
        describe=_described,
        healthy=HEALTHY,
        example=("one card", "gpu-017"),
    )


@READ.check("no InfiniBand", points=2)
def check_tcp(answer: Answer) -> None:
    """Every hop between nodes."""
    _require(answer, "TCP", "By what do its messages leave a node?")


@READ.check("a node without direct ways", points=2)
def check_memory(answer: Answer) -> None:
    """All its hops go by memory, where the others' do at most at one place."""
    _require(
        answer, "no direct way", "On which node do hops go by memory that are direct on the others?"
    )  # fmt: skip


@READ.check("a node without GPUDirect", points=3)
def check_gdr(answer: Answer) -> None:
    """What it sends, and what it receives."""
    _require(
        answer,
        "no GPUDirect",
        "A hop between nodes is in the log twice. Which of its two ends wrote this line, and whose card does it name?",
    )


@READ.check("a node with one card", points=3)
def check_card(answer: Answer) -> None:
    """Its channels share one, where the others' have several."""
    _require(
        answer,
        "one card",
        "How many cards does each node's log name, over all channels, and how many do the other nodes' logs?",
    )
