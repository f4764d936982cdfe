"""The monitor names what a step's time goes into: each kind of time is made on purpose and must be found."""

from __future__ import annotations

import json
import statistics
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import launch
from dtcourse.profiling import Monitor, Report, Step, kernels

STEPS, WARM_UP = 8, 2
SLEEP = 0.03


def spin(seconds):
    """Computes for so long on this thread, whatever others do to the machine."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def slow_loader():
    for _ in range(STEPS):
        time.sleep(SLEEP)
        yield torch.zeros(5, 3), torch.zeros(5)


def ready(count=STEPS):
    return [torch.zeros(5, 3)] * count


def monitored(kind):
    monitor = Monitor(WARM_UP)
    for _ in monitor.steps(slow_loader() if kind == "data" else ready(), tokens=lambda _: 7):
        if kind == "compute":
            spin(SLEEP)
        if kind == "communication":
            if dist.get_rank() == 0:
                time.sleep(SLEEP)  # a straggler: everyone else waits for it
            dist.all_reduce(torch.zeros(1))
        monitor.log(loss=1.0)
    return monitor.report()


@pytest.mark.parametrize("kind", ["data", "compute", "communication"])
def test_time_is_found_where_it_was_spent(kind):
    report = launch(monitored, 2, kind)[1]
    spent = [getattr(step, kind) for step in report.steps]
    assert len(spent) == STEPS - WARM_UP
    # A core that others keep busy shows as queueing, so these hold on a loaded machine too; there the rank that waits
    # may come late itself in a step or two.
    assert statistics.median(spent) > 0.6 * SLEEP
    others = {"data", "compute", "communication"} - {kind}
    for other in others:
        assert report.percentile(50, other) < 0.3 * SLEEP, other


def test_parts_add_up_and_the_first_steps_stay_out():
    def train():
        monitor = Monitor(WARM_UP)
        warm_up = [torch.zeros(3, 3)] * WARM_UP  # of another size, which tells the steps apart
        for _ in monitor.steps(warm_up + ready(STEPS - WARM_UP)):
            pass
        return monitor.report()

    report = Report.join(launch(train, 2))
    assert report.ranks == [0, 1]
    assert len(report.steps) == 2 * (STEPS - WARM_UP)
    for step in report.steps:
        parts = step.data + step.compute + step.communication + step.queueing
        assert parts == pytest.approx(step.seconds, abs=1e-6)
        assert step.samples == 5
    assert sum(
        report.share(p) for p in ("data", "compute", "communication", "queueing")
    ) == pytest.approx(1)


def test_throughput_counts_all_ranks_and_tokens():
    steps = [Step(0.5, 0.1, 0.2, 0.1, 0.1, samples=10, tokens=100)] * 4
    one = Report(steps, [0], 0)
    both = Report.join([one, Report(steps, [1], 0)])
    assert one.samples_per_second == pytest.approx(20)
    assert both.samples_per_second == pytest.approx(40)
    assert both.tokens_per_second == pytest.approx(400)


def test_percentiles_are_measured_values():
    report = Report([Step(s, 0, s, 0, 0, 1, 0) for s in (4.0, 1.0, 3.0, 2.0)], [0], 0)
    assert [report.percentile(p) for p in (25, 50, 75, 99, 100)] == [1, 2, 3, 4, 4]
    with pytest.raises(ValueError, match="percentile"):
        report.percentile(0)
    with pytest.raises(ValueError, match="step has seconds"):
        report.percentile(50, "sleep")


def test_a_report_survives_json_and_says_itself_as_text(tmp_path):
    def alone():
        monitor = Monitor(0)
        for _ in monitor.steps(ready(3)):
            monitor.log(loss=2.5)
        return monitor.report()

    report = launch(alone, 1)[0]
    report.save(tmp_path / "run.json", batch=5)
    content = json.loads((tmp_path / "run.json").read_text())
    assert content["batch"] == 5
    assert content["date"].startswith("20")
    assert Report.load(tmp_path / "run.json") == report
    assert report.logged("loss") == [2.5] * 3
    text = str(report)
    assert "communication" in text
    assert "3 steps after 0 of warm-up" in text
    assert not list(tmp_path.glob("*.partial"))


def test_alone_there_is_nobody_to_wait_for():
    monitor = Monitor(0)
    for _ in monitor.steps(ready(2)):
        time.sleep(0.01)
    assert monitor.report().share("communication") == 0


def test_nothing_but_warm_up_is_an_error_that_says_so():
    monitor = Monitor(warm_up=3)
    for _ in monitor.steps(ready(2)):
        pass
    with pytest.raises(ValueError, match="2 steps taken, and the first 3 are warm-up"):
        monitor.report()
    with pytest.raises(ValueError, match="0 or more"):
        Monitor(-1)
    with pytest.raises(ValueError, match="no reports"):
        Report.join([])
    with pytest.raises(ValueError, match="a rank returned a NoneType"):
        Report.join([None])


def test_an_endless_loader_and_one_that_raises():
    def batches():
        yield torch.zeros(2)
        raise OSError("disk gone")

    monitor = Monitor(0)
    with pytest.raises(OSError, match="disk gone"):
        for _ in monitor.steps(batches()):
            pass
    assert len(monitor.report().steps) == 1


def test_messages_reach_the_notebook_while_ranks_train():
    seen = []

    def train():
        monitor = Monitor(0)
        for _ in monitor.steps(ready(4), samples=lambda _: 9):
            monitor.log(loss=0.5)
            time.sleep(0.25)

    launch(train, 2, on_message=lambda rank, message: seen.append((rank, message["monitor"])))
    for rank in (0, 1):
        mine = [m for r, m in seen if r == rank]
        assert [m["steps"] for m in mine] == sorted(m["steps"] for m in mine)
        assert len(mine) >= 3
        assert mine[-1]["final"]
        assert mine[-1]["total"] == 4
        assert mine[-1]["samples"] == 36
        assert mine[0]["logged"] == {"loss": 0.5}


def test_a_profile_becomes_a_timeline():
    def profiled():
        model = nn.Linear(64, 64)
        with torch.profiler.profile() as profiler:
            y = model(torch.ones(8, 64))
            dist.all_reduce(y.detach())
        return kernels.timeline_of(profiler)

    timeline = launch(profiled, 2)[1]
    assert timeline.ranks == [1]
    assert "aten::linear" in timeline.order(1, "compute")
    assert any("all_reduce" in name or "allreduce" in name for name in timeline.order(1, "communication"))  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("Memcpy HtoD (Pinned -> Device)", "memory"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32", "compute"),
    ],
)  # fmt: skip
def test_kernels_are_told_apart_by_name(name, kind):
    assert kernels.kind_of(name) == kind


@pytest.mark.gpu
def test_on_a_gpu_the_split_comes_from_kernels():
    def train():
        from dtcourse import device

        model = nn.Linear(2048, 2048).to(device.current())
        monitor = Monitor(2)
        for x in monitor.steps([torch.ones(256, 2048, device=device.current())] * 8):
            model(x).sum().backward()
            dist.all_reduce(model.weight.grad)
        return monitor.report()

    for report in launch(train, 2):
        assert 0 < report.share("communication") < 1
        assert report.share("queueing") == 0
