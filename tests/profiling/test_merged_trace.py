"""Traces of all ranks on one clock: planted offsets are found back, Perfetto can read the file, and what is cut off,
missing or of another run is said.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

from dtcourse import events
from dtcourse.events import Event, Timeline
from dtcourse.profiling.merged_trace import merge
from dtcourse.profiling.torch_trace import MARK, TorchTrace, mark

UNIX = 1_790_000_000.0  # what a machine's Unix clock might say when ours says 0


def written(
    folder: Path, rank: int, *, ahead: float = 0.0, size: int = 3, marks: int = 0, name: str = ""
) -> Path:
    """A file as torch.profiler writes it: a step with a collective every 10 ms, on a clock that is `ahead` seconds."""
    made = [
        {"ph": "M", "name": "process_name", "pid": 77, "tid": 0, "ts": 0.0, "args": {"name": "python"}},
        {"ph": "s", "id": 1, "pid": 77, "tid": 5, "ts": 1.0, "cat": "fwdbwd", "name": "fwdbwd"},
    ]  # fmt: skip

    def span(what: str, cat: str, start: float, end: float) -> None:
        at = (start + ahead) * 1e6
        made.append({"ph": "X", "cat": cat, "name": what, "pid": 77, "tid": 5, "ts": at,
                     "dur": (end - start) * 1e6, "args": {}})  # fmt: skip

    for number in range(marks):
        span(f"{MARK}{number * 0.01:.9f}", "user_annotation", number * 0.01, number * 0.01 + 1e-5)
    for step in range(4):
        start = step * 0.01
        span("aten::mm", "cpu_op", start, start + 0.004 + 0.001 * rank)
        # All end together, when the last rank has come.
        span("gloo:all_reduce", "user_annotation", start + 0.004 + 0.001 * rank, start + 0.008)
    content = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": size},
        "baseTimeNanoseconds": int(UNIX * 1e9),
        "traceEvents": made,
    }
    path = folder / (name or f"rank-{rank}.json")
    path.write_text(json.dumps(content))
    return path


def products(timeline: Timeline, rank: int) -> list[float]:
    return [e.start for e in timeline.of(rank=rank, name="aten::mm")]


def test_marks_find_a_planted_offset_back(tmp_path):
    files = [written(tmp_path, rank, ahead=0.7 * rank, marks=3) for rank in range(3)]
    merged = merge(files=files)
    for rank in range(3):
        assert merged.offsets[rank] == pytest.approx(-UNIX - 0.7 * rank, abs=1e-6)
        assert products(merged.timeline, rank) == pytest.approx([0.0, 0.01, 0.02, 0.03], abs=1e-6)
    assert "3 marks" in merged.says[0]


def test_collectives_find_a_planted_offset_back_where_one_rank_has_marks(tmp_path):
    files = [written(tmp_path, 0, marks=2), *(written(tmp_path, r, ahead=-0.3 * r) for r in (1, 2))]
    merged = merge(files=files)
    for rank in range(3):
        assert products(merged.timeline, rank)[1] == pytest.approx(0.01, abs=1e-6)
    assert "the ends of 4 collectives" in merged.says[1]


def test_a_profile_of_this_process_lies_on_our_clock(tmp_path):
    """torch's own file, by a mark and by Unix time: the two agree, and the span is where our clock saw it."""
    with torch.profiler.profile() as profiler:
        mark()
        before = events.now()
        with torch.profiler.record_function("planted"):
            time.sleep(0.01)
        after = events.now()
    path = tmp_path / "own.json"
    profiler.export_chrome_trace(str(path))
    merged = merge(files=[path])
    (planted,) = merged.timeline.of(name="planted")
    # The mark's own name is made before the trace's clock is read: what lies between moves the span a little later.
    assert before - 0.05 < planted.start < planted.end < after + 0.05
    assert "taken for rank 0" in merged.says[0]
    trace = TorchTrace.load(path)
    (own, theirs) = trace.marks[0]
    assert own - theirs == pytest.approx(time.monotonic() - time.time(), abs=0.5)


def ours() -> Timeline:
    """Two ranks, one message, on our clock."""
    sent = {"tag": 0, "elements": 8, "peer": 1, "operation": "send"}
    return Timeline([
        Event("forward", "compute", 0, 0.0, 0.01),
        Event("send", "communication", 0, 0.01, 0.012, 32, "messages", sent),
        Event("recv", "communication", 1, 0.005, 0.013, 32, "messages", sent | {"peer": 0, "operation": "recv"}),
    ])  # fmt: skip


def check(trace: dict) -> None:
    """The rules of the Trace Event Format that Perfetto needs of what is in here."""
    assert trace.keys() >= {"traceEvents"}
    arrows: dict[int, dict[str, dict]] = {}
    named = set()
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name")
            named.add((event["name"], event["pid"], event["tid"]))
            continue
        assert event["ph"] in ("X", "s", "f")
        assert event["ts"] >= 0
        assert ("process_name", event["pid"], 0) in named
        assert ("thread_name", event["pid"], event["tid"]) in named
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert isinstance(event["args"], dict)
        else:
            arrows.setdefault(event["id"], {})[event["ph"]] = event
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    for ends in arrows.values():
        assert ends["s"]["ts"] <= ends["f"]["ts"]
        assert ends["f"]["bp"] == "e"  # else Perfetto binds the arrow to the next span
        for end in ends.values():  # an arrow begins and ends inside a span of its thread
            assert any(
                (s["pid"], s["tid"]) == (end["pid"], end["tid"])
                and s["ts"] - 1e-6 <= end["ts"] <= s["ts"] + s["dur"] + 1e-6
                for s in spans
            )


def test_the_file_is_one_that_perfetto_reads(tmp_path):
    files = [written(tmp_path, rank, size=2, marks=2) for rank in range(2)]
    merged = merge(ours(), files)
    merged.save(tmp_path / "all.json")
    trace = json.loads((tmp_path / "all.json").read_text())
    check(trace)
    by_phase = [e["ph"] for e in trace["traceEvents"]]
    assert by_phase.count("s") == by_phase.count("f") == 1
    threads = {
        e["args"]["name"]
        for e in trace["traceEvents"]
        if e["name"] == "thread_name" and e["pid"] == 0
    }
    assert threads == {"main", "messages", "torch thread 5"}
    forward = next(e for e in trace["traceEvents"] if e["name"] == "forward")
    product = next(e for e in trace["traceEvents"] if e["name"] == "aten::mm")
    assert forward["ts"] == pytest.approx(product["ts"], abs=1.0)


def test_a_file_that_is_cut_off_gives_what_came_before(tmp_path):
    path = written(tmp_path, 0, size=1, marks=1)
    whole = path.read_text()
    path.write_text(whole[: int(len(whole) * 0.7)])
    merged = merge(files=[path])
    assert "is cut off" in merged.says[0]
    assert 0 < len(products(merged.timeline, 0)) < 4


def test_what_is_missing_or_of_another_run_is_said(tmp_path):
    files = [written(tmp_path, 0, marks=1), written(tmp_path, 2, marks=1),
             written(tmp_path, 1, size=8, marks=1)]  # fmt: skip
    merged = merge(files=files)
    said = " ".join(merged.says)
    assert "rank-1.json is left out: it is of a run with 8 ranks" in said
    assert "Of rank 1 nothing is here; the run had 3 ranks" in said
    late = written(tmp_path, 1, ahead=9000.0, name="late.json")
    text = late.read_text().replace('"gloo:all_reduce"', '"aten::add"')
    late.write_text(text)  # nothing ties it to the others
    assert "late.json is left out: it lies over an hour" in " ".join(
        merge(files=[*files[:2], late]).says
    )
    with pytest.raises(ValueError, match="second file of rank 0"):
        merge(files=[files[0], written(tmp_path, 0, marks=1, name="again.json")])
    with pytest.raises(ValueError, match="nothing to merge"):
        merge()
    (tmp_path / "none.json").write_text("{}")
    with pytest.raises(ValueError, match="has no traceEvents"):
        merge(files=[tmp_path / "none.json"])
