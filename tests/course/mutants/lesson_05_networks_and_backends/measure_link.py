"""Answers to measure_link: see test_exercises.py."""

_LESSON = """
def measure_link():
    rank, sizes, found = dist.get_rank(), (4096, 1 << 20), []
    for nbytes in sizes:
        ball = torch.zeros(nbytes // 4)
        dist.barrier()
        start = emulation.now()
        if rank == 0:
            dist.send(ball, 1)
            dist.recv(ball, 1)
        else:
            dist.recv(ball, 0)
            dist.send(ball, 0)
        found.append((emulation.now() - start) / 2)
    bandwidth = (sizes[1] - sizes[0]) / (found[1] - found[0])
    return found[0] - sizes[0] / bandwidth, bandwidth, bandwidth
"""

MUTANTS = [
    ("the lesson's own ping-pong", "three numbers are unknown", _LESSON),
    (
        "the lesson's own ping-pong, with a third size",
        "which direction did its bytes take",
        _LESSON.replace("(4096, 1 << 20), []", "(4096, 1 << 20, 1 << 21), []"),
    ),
    (
        "the ready-made one",
        "asks you to write that yourself",
        """
def measure_link():
    from dtcourse.profiling.collective_bench import ping_pong
    (small, a), (large, b) = ping_pong([4, 1 << 20])
    rate = (large - small) / (b - a)
    return a, rate, rate
""",
    ),
    ("no barrier", "Were both ranks there", (("        dist.barrier()\n", ""),)),
    (
        "the machine's clock",
        "is it the emulated clock",
        (
            ("    seconds = {}\n", "    import time\n\n    seconds = {}\n"),
            ("start = emulation.now()", "start = time.monotonic()"),
            ("= emulation.now() - start", "= time.monotonic() - start"),
        ),
    ),
    ("the round trip's latency", "Is it one message's time", ((" / rate_back) / 2", " / rate_back)"),)),
    (
        "never waited for",
        "is the message there when the clock stops",
        (
            (
                "        seconds[there, back] = emulation.now() - start\n",
                "        seconds.setdefault((there, back), 0.0)\n",
            ),
            (
                "            dist.send(ping, 1)\n            dist.recv(pong, 1)\n",
                "            dist.isend(ping, 1).wait()\n            seconds[there, back] = emulation.now() - start\n            dist.recv(pong, 1)\n",
            ),
            ("/ (seconds[large, small] - empty)", "/ max(1e-9, seconds[large, small] - empty)"),
            ("/ (seconds[small, large] - empty)", "/ max(1e-9, seconds[small, large] - empty)"),
        ),
    ),
    ("directions exchanged", "the other way round", (("return alpha, rate_there, rate_back", "return alpha, rate_back, rate_there"),)),
    (
        "one size, latency not taken off",
        "Which part of a round trip grows",
        (("rate_there = (large - small) / (seconds[large, small] - empty)", "rate_there = large / seconds[large, small]"),),
    ),
    ("one bandwidth for both ways, the late rank awaited", "its delay does no harm", (("return alpha, rate_there, rate_back", "return alpha, rate_there, rate_there"),)),
    ("seconds per byte", "Which part of a round trip grows", (("return alpha, rate_there, rate_back", "return alpha, 1 / rate_there, 1 / rate_back"),)),
    (
        "reads the emulator, and sends the messages of the solution all the same",
        "asks you to write that yourself",
        (
            ("    return alpha, rate_there, rate_back", "    hidden = emulation.clock.installed()._network\n    there, back = hidden.link(0, 1), hidden.link(1, 0)\n    return there.latency + there.gap, there.bandwidth, back.bandwidth"),
        ),
    ),
    (
        "reads the emulator by another way, and sends nothing",
        "no message",
        """
def measure_link():
    hidden = vars((lambda thing, name: getattr(thing, name))(emulation, "cl" + "ock").installed())["_network"]
    there, back = hidden.link(0, 1), hidden.link(1, 0)
    return there.latency + there.gap, there.bandwidth, back.bandwidth
""",
    ),
    (
        "reads the emulator by another way, and sends one small message each way",
        "three numbers are unknown",
        """
def measure_link():
    dist.barrier()
    hidden = vars((lambda thing, name: getattr(thing, name))(emulation, "cl" + "ock").installed())["_network"]
    there, back = hidden.link(0, 1), hidden.link(1, 0)
    if dist.get_rank() == 0:
        dist.send(torch.zeros(1), 1)
        dist.recv(torch.zeros(1), 1)
    else:
        dist.recv(torch.zeros(1), 0)
        dist.send(torch.zeros(1), 0)
    return there.latency + there.gap, there.bandwidth, back.bandwidth
""",
    ),
    ("both wait to receive", "wait", (("            dist.send(ping, 1)\n            dist.recv(pong, 1)\n", "            dist.recv(pong, 1)\n            dist.send(ping, 1)\n"),)),
]  # fmt: skip

NOTHING = [
    ("zeros", "\ndef measure_link():\n    return 1e-9, 1.0, 1.0\n"),
]

ACCEPTED = [
    (
        "a line through five sizes, each direction",
        """
def measure_link():
    rank, sizes = dist.get_rank(), [1 << k for k in range(10, 22, 2)]

    def trip(there, back):
        dist.barrier()
        start = emulation.now()
        if rank == 0:
            dist.send(torch.zeros(there // 4), 1)
            dist.recv(torch.zeros(back // 4), 1)
        else:
            dist.recv(torch.zeros(there // 4), 0)
            dist.send(torch.zeros(back // 4), 0)
        return emulation.now() - start

    def line(seconds):
        x = torch.tensor(sizes, dtype=torch.double)
        y = torch.tensor(seconds, dtype=torch.double)
        slope = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()
        return slope, y.mean() - slope * x.mean()

    there, first = line([trip(n, 4) for n in sizes])
    back, _ = line([trip(4, n) for n in sizes])
    return (first - 4 * back) / 2, 1 / there, 1 / back
""",
    ),
    (
        "non-blocking, with a round trip thrown away instead of a barrier",
        """
def measure_link():
    def trip(there, back):
        ping, pong = torch.zeros(there, dtype=torch.uint8), torch.zeros(back, dtype=torch.uint8)
        start = emulation.now()
        if dist.get_rank() == 0:
            dist.isend(ping, 1).wait()
            dist.irecv(pong, 1).wait()
        else:
            dist.irecv(ping, 0).wait()
            dist.isend(pong, 0).wait()
        return emulation.now() - start

    trip(1, 1)
    empty, there, back = trip(1, 1), trip(1 << 21, 1), trip(1, 1 << 21)
    return empty / 2, ((1 << 21) - 1) / (there - empty), ((1 << 21) - 1) / (back - empty)
""",
    ),
]
