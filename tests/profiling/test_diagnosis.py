"""What costs a run its time is planted on the virtual clock, and has to be named. The table: studies/diagnosis.py.

Here are two launches for all that is asked of a recording: the fault's place, names that say nothing, missing ranks.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from dtcourse import emulation, events, launch
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork
from dtcourse.events import Event, Timeline
from dtcourse.profiling.diagnosis import diagnose

SLOW, FACTOR = 2, 2.0
DEVICE = EmulatedDevice(flops=1e9)
LINK = EmulatedNetwork(latency=1e-6, bandwidth=60e6)


def train() -> float:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*[nn.Linear(48, 48) for _ in range(3)]))
    x = torch.ones(16, 48)
    for _ in range(2):
        with events.span("step", "step"):
            model(x).sum().backward()
    return emulation.now()


def trained(slow: bool, backend: str = "ring"):
    """Three ranks, of which one may be slow."""
    devices = [DEVICE.slower(FACTOR if slow and rank == SLOW else 1.0) for rank in range(3)]
    return launch(
        train, 3, backend=backend, device="cpu", record=True, devices=devices, network=LINK
    )


@pytest.fixture(scope="module")
def slow_run():
    return trained(slow=True)


def test_a_slow_rank_is_named_with_its_factor_and_what_it_costs(slow_run):
    found = diagnose(slow_run)
    (cause,) = found.causes
    assert (cause.kind, cause.ranks) == ("slow rank", (SLOW,))
    assert f"takes {FACTOR:.1f} times" in found.sentence
    # Half of what it computes on the path is lost; all of that is in the two steps.
    computed = slow_run.accounts[SLOW].computed
    assert 0.4 * computed < cause.seconds <= 0.5 * computed
    assert found.unknown == []


def test_the_path_covers_the_window_without_a_gap_and_runs_along_the_slow_rank(slow_run):
    found = diagnose(slow_run)
    for before, after in zip(found.path, found.path[1:], strict=False):
        assert before.end == pytest.approx(after.start, abs=1e-12)
    assert sum(s.seconds for s in found.path) == pytest.approx(found.seconds)
    computing = {s.rank for s in found.path if s.kind == "compute" and s.seconds > 1e-5}
    assert computing == {SLOW}
    assert "rank 2 computing" in found.path_sentence


def test_neither_names_nor_numbers_of_ranks_say_anything(slow_run):
    """The same events under other names, and with the ranks' numbers turned round."""
    turned = {0: 2, 1: 0, 2: 1}

    def other(event: Event) -> Event:
        detail = dict(event.detail)
        if "peer" in detail:
            detail["peer"] = turned[detail["peer"]]
        name = event.name if event.lane == "messages" else f"x{len(event.name)}"
        return replace(event, rank=turned[event.rank], name=name, detail=detail)

    class Renamed:
        timeline = Timeline(map(other, slow_run.timeline))
        accounts = [slow_run.accounts[old] for old in (1, 2, 0)]  # noqa: RUF012

    cause = diagnose(Renamed).causes[0]
    assert (cause.kind, cause.ranks) == ("slow rank", (turned[SLOW],))


def test_a_rank_that_is_missing_and_a_recording_that_breaks_off_are_said(slow_run):
    timeline = slow_run.timeline
    without = diagnose(Timeline(e for e in timeline if e.rank != 1))
    assert "Nothing is recorded of rank 1" in " ".join(without.unknown)
    assert "lack their other end" in " ".join(without.unknown)
    # One rank's recording ends in the middle of the first step.
    middle = timeline.start + timeline.span / 2
    cut = diagnose(Timeline(e for e in timeline if e.rank != 0 or e.end < middle))
    assert "lack their other end" in " ".join(cut.unknown)
    assert "cannot be told apart" in " ".join(cut.unknown)
    with pytest.raises(ValueError, match="nothing is recorded"):
        diagnose(Timeline())


def test_a_healthy_run_has_nothing_and_the_backends_limits_are_said():
    found = diagnose(trained(slow=False, backend="gloo"))
    assert found.causes == []
    assert found.sentence.startswith("Nothing found")
    assert "no single link" in " ".join(found.unknown)


def ring(slow: tuple[int, int], factor: float) -> Timeline:
    """Three ranks compute 8 s and pass a block round in 1 s: made by hand, so what the path is is known."""
    made = []
    for sender in range(3):
        to = (sender + 1) % 3
        end = 8 + (factor if (sender, to) == slow else 1.0)
        detail = {"tag": 0, "elements": 8}
        sent = detail | {"peer": to, "operation": "send", "since": end}
        came = detail | {"peer": sender, "operation": "recv", "since": 8.0}
        made += [
            Event("send", "communication", sender, 8.0, end, 32, "messages", sent),
            Event("recv", "communication", to, 8.0, end, 32, "messages", came),
            Event("s", "step", to, 0.0, end),
        ]
    return Timeline(made)


def test_a_slow_link_is_named_from_events_alone():
    found = diagnose(ring((1, 2), 2.0))
    assert [(c.kind, c.ranks) for c in found.causes] == [("slow link", (1, 2))]
    assert found.causes[0].seconds == pytest.approx(1.0)  # of the message's two
    assert [(s.kind, s.rank, s.seconds) for s in found.path] == [
        ("compute", 1, 8.0),
        ("message", 1, 2.0),
    ]
    assert diagnose(ring((1, 2), 1.0)).causes == []


def test_what_a_checkpoint_repeats_is_counted_and_named():
    from torch.utils.checkpoint import checkpoint

    def step(again: bool) -> None:
        layers = [nn.Linear(64, 64) for _ in range(4)]
        x = torch.ones(32, 64, requires_grad=True)
        with events.span("step", "step"):
            for layer in layers:
                x = checkpoint(layer, x, use_reentrant=True) if again else layer(x)
            x.sum().backward()

    run = launch(step, 1, True, device="cpu", record=True, devices=DEVICE)
    (account,) = run.accounts
    # Four products of 2 x 32 x 64 x 64 FLOPs, each once in forward, twice in backward, and once again.
    product = 2 * 32 * 64 * 64
    assert account.flops == pytest.approx(16 * product, rel=0.02)
    assert account.recomputed == pytest.approx(4 * product / DEVICE.flops, rel=0.02)
    assert diagnose(run).first == "recomputing"


def test_a_loader_on_the_path_is_named_and_one_beside_it_is_not():
    def loading(lane: str) -> Timeline:
        steps = [Event("s", "step", 0, 0.0, 10.0)]
        batch = Event("any name", "data", 0, 2.0, 6.0, lane=lane)
        return Timeline([*steps, batch])

    (cause,) = diagnose(loading("main")).causes
    assert (cause.kind, cause.seconds) == ("waiting for data", pytest.approx(4.0))
    assert diagnose(loading("prefetch")).causes == []


def test_a_log_on_the_path_is_named_with_its_rank_and_bytes_and_does_not_make_its_rank_slow():
    """Rank 1 writes 4 MB in each of two steps, and rank 0 waits for it in the collective at the end of the step."""
    made = []
    for step in (0.0, 10.0):
        for rank in range(2):
            computed = step + 6.0
            arrives = computed + 3.0 * rank
            made.append(Event("s", "step", rank, step, step + 10.0))
            made.append(
                Event("x", "communication", rank, arrives, step + 10.0, 4096, "collectives")
            )
            made.append(Event("y", "wait", rank, arrives, step + 10.0))
            line = Event("any name", "log", rank, computed, arrives, 4_000_000)
            made += [line] * rank

    class Run:
        timeline = Timeline(made)
        accounts = [  # noqa: RUF012
            emulation.Account(20.0, 12.0, 8.0 - 6.0 * rank, 6.0 * rank, flops=1e9, moved=1e9)
            for rank in range(2)
        ]

    for run in (Run, Run.timeline):  # with counters, and without them
        found = diagnose(run)
        assert (found.first, found.causes[0].ranks) == ("writing its log", (1,))
        assert found.causes[0].seconds == pytest.approx(6.0)
        assert "2 lines of log, 8,000,000 bytes in 2 steps" in found.sentence
        assert "slow rank" not in {cause.kind for cause in found.causes}
    aside = Timeline(replace(e, lane="logger") if e.kind == "log" else e for e in made)
    assert "writing its log" not in {cause.kind for cause in diagnose(aside).causes}


def test_seconds_in_the_loader_do_not_make_a_slow_rank_look_less_slow():
    class Run:
        timeline = Timeline(
            event
            for rank, end in enumerate((5.0, 5.0, 5.5))
            for event in (
                Event("s", "step", rank, 0.0, end),
                Event("load", "data", rank, 0.0, 4.0),
                Event("forward", "compute", rank, 4.0, end),
            )
        )
        accounts = [  # noqa: RUF012
            emulation.Account(5.5, 1.5 if rank == SLOW else 1.0, 0.0, 4.0, flops=1e9, moved=1e9)
            for rank in range(3)
        ]

    loader, slow = diagnose(Run).causes
    assert (loader.kind, loader.seconds) == ("waiting for data", pytest.approx(4.0))
    assert (slow.kind, slow.seconds) == ("slow rank", pytest.approx(0.5))
    assert "rank 2 takes 1.5 times as long" in slow.says


def test_a_collective_of_nothing_between_two_pieces_of_work_is_a_synchronisation():
    """Rank 1 comes late to the first, rank 0 to the second: neither is slow, and each waits for the other.

    The two take 1 s. Without them rank 0 would compute for 8 s on end, and rank 1 for 8.5.
    """
    late = {0: (4.0, 9.0), 1: (5.0, 8.5)}
    made = []
    for rank, calls in late.items():
        made.append(Event("s", "step", rank, 0.0, 10.0))
        for called, ended in zip(calls, (5.5, 9.5), strict=True):
            made.append(Event("x", "communication", rank, called, ended, 0, "collectives"))
            made.append(Event("y", "wait", rank, called, ended))
    found = diagnose(Timeline(made))
    assert found.first == "synchronisation"
    assert found.causes[0].seconds == pytest.approx(10 - 8.5)
    assert [(s.kind, s.rank) for s in found.path] == [
        ("compute", 1), ("collective", 1), ("compute", 0), ("collective", 0), ("compute", 0),
    ]  # fmt: skip
