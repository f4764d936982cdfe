"""Every picture: nothing overlaps, nothing is cut off, nothing is too small; it draws what it was given; and mistakes
are refused. Boxes of text are asked of the renderer; no pixels are compared."""

import itertools
import re
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.text import Annotation, Text

from dtcourse import plots
from dtcourse.collectives.terms import Link
from dtcourse.events import Event, Timeline
from dtcourse.plots import style
from dtcourse.profiling.operators import Counted, Operator
from dtcourse.profiling.roofline import Machine
from dtcourse.profiling.roofline import roofline as on_roofline

GIB = 2**30


@dataclass
class Chosen:
    """What a search has found."""

    seconds: float
    nbytes: float


CHOICES = [Chosen(17.5 * 1.1**i, 66e9 * 0.9**i) for i in range(20)]


def steps(ranks: int = 4, lanes: bool = True, n: int = 2) -> Timeline:
    """Two training steps: load, forward, three parts of backward with an all-reduce each, wait."""
    events = []
    for rank in range(ranks):
        t = 100.0 + 0.001 * rank
        for _ in range(n):
            begin = t
            events.append(Event("load", "data", rank, t, t + 0.003))
            t += 0.003
            events.append(Event("forward", "compute", rank, t, t + 0.010))
            t += 0.010
            for k in range(3):
                events.append(Event(f"backward {2 - k}", "compute", rank, t, t + 0.006))
                t += 0.006
                if lanes:
                    events.append(
                        Event(f"reduce {k}", "communication", rank, t, t + 0.008, lane="network")
                    )
            events.append(Event("wait", "wait", rank, t, t + 0.008))
            t += 0.008
            events.append(Event("step", "step", rank, begin, t))
        events.append(Event("saved", "memory", rank, t, t))
    return Timeline(events)


def ring(p: int) -> tuple[list[plots.Message], list]:
    """A ring all-reduce of p ranks, worked out by hand with powers of ten."""
    held = [[10**r] * p for r in range(p)]
    states, messages = [held], []
    for phase, s in itertools.product((0, 1), range(p - 1)):
        new = [row[:] for row in held]
        for r in range(p):
            c, dst = (r - s + phase) % p, (r + 1) % p
            new[dst][c] = held[dst][c] + held[r][c] if phase == 0 else held[r][c]
            messages.append(plots.Message(phase * (p - 1) + s, r, dst, bytes=4096, chunk=c))
        held = new
        states.append(held)
    return messages, [
        [[plots.Chunk.from_powers(v) for v in row] for row in state] for state in states
    ]


def pipeline(ranks: int, micro_batches: int, chunks: int = 1) -> Timeline:
    """Forwards along a diagonal, then both backwards, then the optimizer."""
    events, n = [], ranks + micro_batches * chunks
    for rank in range(ranks):
        for i, chunk in itertools.product(range(micro_batches), range(chunks)):
            for at, action in ((0, "forward"), (n, "backward-input"), (2 * n, "backward-weight")):
                t = at + rank + i + micro_batches * chunk
                detail = {"action": action, "micro_batch": i, "stage": rank + chunk * ranks}
                events.append(Event(action, "compute", rank, t, t + 1, detail=detail))
        events.append(Event("optimizer", "compute", rank, 3 * n, 3 * n + 1))
    return Timeline(events)


def ring_matrix(ranks: int, size: int, nbytes: int) -> np.ndarray:
    """Rings of `size` neighbours."""
    sent = np.zeros((ranks, ranks), dtype=int)
    for rank in range(ranks):
        sent[rank, rank // size * size + (rank + 1) % size] = nbytes
    return sent


x = np.arange(100)
noise = np.random.default_rng(0).normal(size=(4, 100))
sizes = 2.0 ** np.arange(4, 27, 2)
MANY = {f"layout number {i}": {"parameters": i * GIB, "activations": 3 * GIB} for i in range(1, 9)}


def placed(*operators, link=None, sent=0):
    """A machine of 100 GFLOP/s and 10 GB/s, and operators (name, FLOPs, bytes, seconds) on its roofline."""
    made = [
        Operator(name, ((8, 8),), 1, flops, 0, nbytes, seconds)
        for name, flops, nbytes, seconds in operators
    ]
    return on_roofline(Counted(tuple(made)), Machine(1e11, 1e10, link), sent=sent)


PRODUCTS = [(f"aten.product_{i}", 10 ** (5 + i), 10**5, 10.0 ** (i - 5)) for i in range(7)]


PICTURES = {
    "roofline": lambda: plots.roofline(placed(("aten.mm", 10**9, 10**7, 0.02), ("aten.mm", 10**6, 10**6, 0.001), ("aten._scaled_dot_product_flash_attention_for_cpu_backward", 10**8, 10**8, 0.03), ("aten.add", 0, 10**8, 0.02), link=Link(1e-5, 1e-8), sent=10**6), title="On the roof"),
    "frontier": lambda: plots.frontier(CHOICES, limit=80e9, asked=Chosen(60.0, 95e9), title="What if"),
    "frontier, alone": lambda: plots.frontier(CHOICES[:1]),
    "roofline, many": lambda: plots.roofline(placed(*PRODUCTS)),
    "timeline": lambda: plots.timeline(steps(), title="A title long enough that it has to be broken into two lines, since it says so much"),
    "timeline of one event": lambda: plots.timeline(Timeline([Event("all", "compute", 0, 1, 2)])),
    "timeline of an instant": lambda: plots.timeline(Timeline([Event("now", "step", 0, 1, 1)])),
    "timeline, part": lambda: plots.timeline(steps(), start=0.01, end=0.02, ranks=[1, 2]),
    "timeline, 32 ranks": lambda: plots.timeline(steps(32, lanes=False, n=1)),
    "timeline, empty": lambda: plots.timeline(Timeline()),
    "timelines": lambda: plots.timelines({"measured": steps(2), "predicted": steps(2, n=1)}, title="Two"),
    "schedule": lambda: plots.schedules(pipeline(4, 8), title="One step"),
    "schedule, 8 ranks, 24 micro-batches": lambda: plots.schedules(pipeline(8, 24)),
    "schedule, 2 stages a rank": lambda: plots.schedules(pipeline(4, 8, 2)),
    "schedule, one box": lambda: plots.schedules(pipeline(1, 1)),
    "schedules": lambda: plots.schedules({"one": pipeline(4, 8), "two": pipeline(2, 12), "three": pipeline(4, 4, 2)}, title="Three"),
    "live": lambda: plots.live_bytes({"parameters": [GIB] * 8, "other": [0, 1, 0, 0, GIB, 0, 0, 0], "activations": [0, GIB, 2 * GIB, 3 * GIB, 3 * GIB, 2 * GIB, GIB, 0]}, range(0, 80, 10), phases={"forward": 0, "backward": 40}, title="A step"),
    "segments": lambda: plots.segments({"two freed": [[(5 * GIB, None), (5 * GIB, 1), (5 * GIB, None), (5 * GIB, 3)]], "one more": [[(5 * GIB, None), (15 * GIB, 1)], [(10 * GIB, 4)]]}, title="Blocks"),
    "stored": lambda: plots.stored_over_time({"one": [[(0, 3 * GIB), (5, GIB)]] * 4, "two": [[(0, GIB), (3, 2 * GIB)]] * 3}, limit=2 * GIB, unit="bytes", title="Stored"),
    "stored, 8 ranks": lambda: plots.stored_over_time([[(i, i % 7) for i in range(30)]] * 8, unit="micro-batches", time="forwards"),
    "speedup": lambda: plots.speedup({1: [8.1, 8.3], 2: [4.4, 4.9, 4.3], 4: [2.9, 3.1]}, title="Faster"),
    "speedup, none": lambda: plots.speedup({1: 1.0, 2: 1.1, 4: 1.3}),
    "speedup, 64": lambda: plots.speedup({2**i: 64 / 2**i + 1 for i in range(7)}),
    "speedup, one rank": lambda: plots.speedup({1: 1.0}),
    "efficiency": lambda: plots.efficiency({"digits": {1: 8, 2: 4.4, 4: 2.9}, "text": {1: 8, 2: 4.4, 4: 2.8}}, title="E"),
    "efficiency, weak": lambda: plots.efficiency({1: [8, 8.5], 2: [8.2, 9], 4: [10, 11]}, weak=True),
    "memory": lambda: plots.memory_bars({"small": {"parameters": GIB, "mine": GIB}, "XL": {"parameters": 6 * GIB, "gradients": 6 * GIB, "optimizer states": 12 * GIB, "activations": 35 * GIB, "buffers": GIB, "other": GIB}}, capacity={"laptop 16 GB": 16e9, "RTX 4090 24 GB": 24e9, "A100 40 GB": 40e9, "H100 80 GB": 80e9}, title="What fits"),
    "memory, many": lambda: plots.memory_bars(MANY, capacity=16e9),
    "memory, log": lambda: plots.memory_bars({"GPT-2 small": {"p": 2 * GIB}, "GPT-3 175B": {"p": 2800 * GIB}}, capacity={"laptop 16 GB": 16e9, "H100 80 GB": 80e9}, log=True),
    "losses": lambda: plots.loss_curves({"1 rank": np.exp(-x / 60) + 0.02 * noise, "4 ranks": np.exp(-x / 59) + 0.02 * noise, "wrong": np.exp(-x / 160)}, title="Losses"),
    "losses, five ends in one place": lambda: plots.loss_curves({f"curve {i}": np.exp(-x / 30) for i in range(5)}, log=True),
    "losses, one value": lambda: plots.loss_curves({"a": [1.0]}),
    "bytes": lambda: plots.bytes_by_rank({"naive": [6 << 20, 2 << 20, 2 << 20, 2 << 20], "ring": [3 << 20] * 4}, expected={"ring": 3 << 20}, title="Sent"),
    "bytes, 16 ranks": lambda: plots.bytes_by_rank({"a": [3 << 20] * 16, "b": [1 << 20] * 16, "c": [2 << 20] * 16}),
    "messages": lambda: plots.bytes_by_rank({"ring": [6] * 4}, expected=6, unit="count"),
    "curves": lambda: plots.curves({"ring": (sizes, sizes / 1e9 + 1e-4), "tree": (sizes, sizes / 3e8 + 5e-5)}, points={"ring": (sizes, sizes / 1e9 + 1e-4)}, xlabel="size", ylabel="time", log_x=True, log_y=True, x_unit="bytes", y_unit="seconds"),
    "curves, counts": lambda: plots.curves(points={"GPT": ([1e8, 1e11], [1e20, 3e23])}, xlabel="parameters", ylabel="work", log_x=True, log_y=True, x_unit="count", y_unit="flops"),
    "curves, plain": lambda: plots.curves({"a": ([1, 2, 3], [1, 4, 9]), "b": ([1, 2, 3], [1, 4, 8.9])}, xlabel="x", ylabel="y"),
    "bars": lambda: plots.bars({"ours": [0.15, 0.16, 0.2], "torch.multiprocessing.spawn": [8, 9, 14], "other": 17}, unit="seconds", highlight="ours", reference=1.0, xlabel="launch"),
    "bars, logarithmic": lambda: plots.bars({"slow": 1.4, "middle": 0.11, "fast": 0.00194}, unit="seconds", log=True, reference=0.01, reference_label="a step", title="A factor of hundreds"),
    "bars, below zero": lambda: plots.bars({"a": -2.0, "b": 1.0}, errors={"a": 0.3}),
    "heatmap": lambda: plots.heatmap(np.arange(16).reshape(4, 4) << 20, xlabel="to", ylabel="from", unit="bytes", title="Who sends to whom"),
    "heatmap, 12": lambda: plots.heatmap(noise[:, :12], diverging=True, fmt="{:.2f}", yticks=list("abcd")),
    "heatmap, holes": lambda: plots.heatmap([[1.0, np.nan], [2.0, 3.0]], unit="GB/s"),
    "held numbers": lambda: plots.held_numbers(np.arange(6).reshape(2, 3), {"rows": [[0] * 3, [1] * 3], "flat": [[0, 0, 0], [0, 1, np.nan]]}, title="Flat against rows"),
    "held numbers, one row": lambda: plots.held_numbers([list(range(13))], {"saved": [[0] * 13], "loaded": [[0] * 7 + [1] * 6]}),
    "heatmap, 32": lambda: plots.heatmap(np.eye(32), xlabel="to rank", ylabel="from rank"),
    "axes": lambda: plots.traffic_by_axis({"tp": ring_matrix(4, 2, 6 << 20), "pp": ring_matrix(4, 4, 1 << 20)}, node_size=2, title="Who sends to whom"),
    "axes, 8, three in a cell": lambda: plots.traffic_by_axis({name: ring_matrix(8, 8, 10**i) for i, name in enumerate(("tp", "dp_shard x cp", "my own"), 4)}),
    "axes, 32": lambda: plots.traffic_by_axis({name: ring_matrix(32, 2**i, 1 << i) for i, name in enumerate(("tp", "cp", "dp_shard", "dp_replicate", "pp"), 1)}, node_size=8),
    "axes, two ranks": lambda: plots.traffic_by_axis({"pp": [[0, 32], [32, 0]]}),
    "graph": lambda: plots.graphs({"a pair": ({"0": (0, 0), "switch": (1, 1)}, [("0", "switch", 10.0, 0.0)])}),
    "graphs without names": lambda: plots.graphs({"a tree": ({"0": (0, 0), "1": (1, 0), "switch": (0.5, 1)}, [("0", "switch", 10.0, 1.0), ("1", "switch", 10.0, 0.0)])}, switches={"switch"}),
    "graphs": lambda: plots.graphs({f"graph {n}": ({str(i): (i % 4, i // 4) for i in range(n)}, [(str(i), str(i + 1), i + 1, i) for i in range(n - 1)]) for n in (2, 4, 8)}, title="Three"),
    "images": lambda: plots.images(torch.rand(11, 1, 8, 8), torch.arange(11), predictions=[0] * 11, title="Digits"),
    "images, colour": lambda: plots.images(torch.rand(2, 3, 8, 8)),
    "ring of 2": lambda: plots.message_grid(*ring(2), title="Two ranks"),
    "ring of 4": lambda: plots.message_grid(*ring(4), title="Ring"),
    "ring of 8": lambda: plots.message_grid(*ring(8)),
    "one step": lambda: plots.message_step(*ring(4), 2, title="Ring"),
}  # fmt: skip


@cache
def drawn(name: str) -> plots.Picture:
    return PICTURES[name]()


def texts(picture: plots.Picture) -> list[tuple[Text, object]]:
    """Every text that is drawn, with its box."""
    picture.draw_without_rendering()
    renderer = picture.canvas.get_renderer()
    not_drawn = {text for axes in picture.axes for text in undrawn(axes)}
    found = []
    for text in picture.findobj(Text):
        if text in not_drawn or not text.get_visible() or not text.get_text().strip():
            continue
        box = Text.get_window_extent(text, renderer)
        clip = text.get_clip_box() if text.get_clip_on() else None
        if clip is None or clip.overlaps(box):
            found.append((text, box))
    return found


def undrawn(axes) -> list[Text]:
    """Labels of ticks outside the limits, which matplotlib keeps and does not draw, and of axes that are off."""
    labels = []
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        low, high = min(limits), max(limits)
        margin = 1e-6 * (high - low)
        labels += [] if axes.axison else [axis.label]
        for tick in axis.get_major_ticks() + axis.get_minor_ticks():
            if not axes.axison or not low - margin <= tick.get_loc() <= high + margin:
                labels += [tick.label1, tick.label2]
    return labels


@pytest.mark.parametrize("name", PICTURES)
def test_text_is_readable(name):
    picture = drawn(name)
    found = texts(picture)
    assert found or "colour" in name
    for (a, box_a), (b, box_b) in itertools.combinations(found, 2):
        across = min(box_a.x1, box_b.x1) - max(box_a.x0, box_b.x0)
        down = min(box_a.y1, box_b.y1) - max(box_a.y0, box_b.y0)
        assert min(across, down) <= 1.5, (
            f"{a.get_text()!r} and {b.get_text()!r} overlap by {across:.1f} x {down:.1f}"
        )
    for text, box in found:
        cut = max(-box.x0, -box.y0, box.x1 - picture.bbox.x1, box.y1 - picture.bbox.y1)
        assert cut <= 1, f"{text.get_text()!r} is cut off by {cut:.1f} pixels"
        assert text.get_fontsize() >= 6, f"{text.get_text()!r} is {text.get_fontsize()} points"
        if isinstance(text, Annotation) or text.get_bbox_patch() is None:
            continue
        face = style.mpl.colors.to_hex(text.get_bbox_patch().get_facecolor())
        assert style.contrast(style.mpl.colors.to_hex(text.get_color()), face) >= 4.5


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_says_what_it_is_without_a_measured_number(name):
    picture = drawn(name)
    assert picture.description
    assert repr(picture) == f"<Picture: {picture.description}>"
    assert not re.search(r"\d\.\d|\d %|\dms", picture.description)


# --- what is drawn is what was given


def test_timeline_draws_every_event_in_its_kinds_colour_and_place():
    events = steps(2, n=1)
    ax = plots.timeline(events).axes[0]
    drawn = sorted(
        (round(p.get_x(), 6), round(p.get_width(), 6), style.mpl.colors.to_hex(p.get_facecolor()).upper())
        for p in ax.patches
    )  # fmt: skip
    expected = sorted(
        (
            round((e.start - events.start) * 1e3, 6),
            round(e.seconds * 1e3, 6),
            plots.kind_color(e.kind).upper(),
        )
        for e in events
        if e.seconds
    )
    assert np.allclose([d[:2] for d in drawn], [e[:2] for e in expected])
    assert [d[2] for d in drawn] == [e[2] for e in expected]
    assert ax.get_xlabel() == "time (ms)"
    names = [t.get_text() for t in ax.get_yticklabels()]
    assert names == [f"rank {r}: {lane}" for r in (0, 1) for lane in ("main", "network")]


def test_events_at_the_same_time_in_one_lane_do_not_hide_each_other():
    events = [Event("outer", "compute", 0, 0, 10), Event("inner", "communication", 0, 2, 4)]
    events += [Event("next", "communication", 0, 5, 6), Event("after", "compute", 0, 10, 11)]
    ax = plots.timeline(Timeline(events)).axes[0]
    boxes = [p.get_bbox() for p in ax.patches]
    for a, b in itertools.combinations(boxes, 2):
        assert min(a.x1, b.x1) - max(a.x0, b.x0) <= 0 or min(a.y1, b.y1) <= max(a.y0, b.y0)
    assert len({round(b.y0, 3) for b in boxes}) == 2  # no more rows than are needed


def test_timeline_keeps_to_its_window_and_selection():
    ax = plots.timeline(steps(), start=0.010, end=0.020, ranks=[1], kinds=["compute"]).axes[0]
    low, high = ax.get_xlim()
    assert 9.5 < low <= 10
    assert 20 <= high < 20.5
    colors = {style.mpl.colors.to_hex(p.get_facecolor()).upper() for p in ax.patches}
    assert colors == {plots.kind_color("compute").upper()}
    assert [t.get_text() for t in ax.get_yticklabels()] == ["rank 1"]


def test_speedup_numbers():
    ax = plots.speedup({1: [8.0, 8.0, 20.0], 2: [4.0, 5.0, 4.5], 4: 2.0}, serial_fraction=0.25).axes[0]  # fmt: skip
    lines = {line.get_label(): line for line in ax.get_lines()}
    assert list(lines["measured"].get_ydata()) == pytest.approx([1, 8 / 4.5, 4])
    assert lines["ideal"].get_ydata()[-1] == 4
    assert lines["Amdahl, 25% serial"].get_ydata()[-1] == pytest.approx(1 / (0.25 + 0.75 / 4))
    assert lines["Gustafson, 25% serial"].get_ydata()[-1] == pytest.approx(0.25 + 0.75 * 4)


@given(st.floats(0, 1), st.integers(2, 6))
def test_the_fit_finds_the_serial_fraction_that_made_the_times(s, n):
    measured = {p: 10 * (s + (1 - s) / p) for p in range(1, n + 1)}
    assert plots.fit_serial_fraction(measured) == pytest.approx(s, abs=1e-9)
    assert plots.amdahl(4, s) == pytest.approx(1 / (s + (1 - s) / 4))


def test_efficiency_numbers():
    times = {1: 8.0, 2: 5.0, 4: 4.0}
    strong = plots.efficiency(times).axes[0].get_lines()[0].get_ydata()
    weak = plots.efficiency(times, weak=True).axes[0].get_lines()[0].get_ydata()
    assert list(strong) == pytest.approx([100, 80, 50])
    assert list(weak) == pytest.approx([100, 160, 200])


def test_live_bytes_name_the_peak_of_the_sum():
    picture = plots.live_bytes({"activations": [0, 3, 1], "parameters": [2, 2, 4]}, [0, 1, 2])
    assert "peak 5 B" in [text.get_text() for text in picture.axes[0].texts]
    with pytest.raises(ValueError, match="3 events and 2 operators"):
        plots.live_bytes({"parameters": [1, 1, 1]}, [0, 1])


def test_segments_stand_side_by_side_with_a_gap():
    picture = plots.segments({"now": [[(4, None), (2, "a")], [(4, "b")]]})
    boxes = [(box.get_x(), box.get_width()) for box in picture.axes[0].patches]
    assert boxes == [(0, 4), (4, 2), (pytest.approx(6.4), 4)]


def test_memory_bars_stack_to_the_totals():
    picture = drawn("memory")
    ax = picture.axes[0]
    right = max(p.get_x() + p.get_width() for p in ax.patches)
    assert right == 61 * GIB
    words = {t.get_text() for t in picture.findobj(Text)}
    assert {"61 GiB", "2 GiB", "H100 80 GB"} <= words
    mine = next(p for p in picture.legends[0].get_patches() if p.get_label() == "parameters")
    assert style.mpl.colors.to_hex(mine.get_facecolor()).upper() == plots.MEMORY_COLORS["parameters"]  # fmt: skip


def test_memory_bars_tell_all_parts_apart_and_write_no_total_on_a_line():
    parts = ("parameters", "gradients", "optimizer states", "activations", "logits", "cache")
    picture = plots.memory_bars({"XL": dict.fromkeys(parts, 10.0)}, capacity={"one": 61, "two": 66})
    colors = [
        style.mpl.colors.to_hex(patch.get_facecolor()) for patch in picture.legends[0].get_patches()
    ]
    assert len(set(colors)) == len(parts)
    ax = picture.axes[0]
    (total,) = (t for t in ax.texts if t.get_text() == "60 B")
    box = Text.get_window_extent(total, picture.canvas.get_renderer())
    for value in (61, 66):
        x = ax.transData.transform((value, 0))[0]
        assert not box.x0 <= x <= box.x1


def test_loss_curves_show_the_median_and_smooth_without_bias():
    runs = [[1.0, 2.0, 3.0], [2.0, 2.0, 9.0], [3.0, 8.0, 1.0]]
    line = plots.loss_curves({"a": runs}).axes[0].get_lines()[0]
    assert list(line.get_ydata()) == [2, 2, 3]
    flat = plots.loss_curves({"a": [5.0] * 20}, smooth=0.9).axes[0].get_lines()[-1]
    assert list(flat.get_ydata()) == pytest.approx([5.0] * 20)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=7))
def test_labels_at_line_ends_never_overlap(ends):
    picture, ax = plots.figure()
    for i, end in enumerate(ends):
        ax.plot([0, 1], [0.5, end], label=f"line {i}")
    plots.label_lines(ax)
    picture.draw_without_rendering()
    renderer = picture.canvas.get_renderer()
    boxes = [Text.get_window_extent(t, renderer) for t in ax.texts]
    assert len(boxes) == len(ends)
    for a, b in itertools.combinations(boxes, 2):
        assert min(a.y1, b.y1) - max(a.y0, b.y0) <= 1.5
    assert all(style.contrast(t.get_color(), plots.PAPER) >= 4.5 for t in ax.texts)


def test_graphs_draw_a_line_per_link_redder_where_it_is_busier():
    places = {"0": (0, 0), "1": (1, 0), "2": (2, 0)}
    links = [("0", "1", 1.0, 0.0), ("1", "2", 8.0, 2.0)]
    idle, busy = plots.graphs({"line": (places, links)}).axes[0].get_lines()
    assert list(idle.get_xdata()) == [0, 1] and list(busy.get_xdata()) == [1, 2]
    assert busy.get_linewidth() > idle.get_linewidth()
    assert style.mpl.colors.to_hex(busy.get_color()).upper() == style.VERMILION
    assert busy.get_color() != idle.get_color()


# --- messages


def test_chunks_say_who_is_in_them():
    assert plots.Chunk.from_powers(1101) == plots.Chunk("1101", (0, 2, 3))
    assert plots.Chunk.from_powers(21) == plots.Chunk("21", (0, 1, 1))
    assert plots.Chunk.from_powers(0) == plots.Chunk("0", ())
    assert plots.Chunk.from_powers(torch.tensor(5.0), base=2).ranks == (0, 2)


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([2, 64], [2, 5, 10, 20, 50]),  # ranks: powers of ten alone would be one tick
        ([0.13, 0.76], [0.2, 0.5]),  # or none
        ([1, 1e4], [1, 10, 100, 1e3, 1e4]),
    ],
)
def test_a_logarithmic_axis_of_few_values_can_be_read(values, ticks):
    picture = plots.curves({"a": (values, values)}, xlabel="x", ylabel="y", log_x=True, log_y=True)
    ax = picture.axes[0]
    for axis, (low, high) in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
        shown = [tick for tick in axis.get_majorticklocs() if low <= tick <= high]
        assert shown == pytest.approx(ticks)


def test_a_logarithmic_scale_has_dots_at_the_values_and_a_labelled_line():
    values = {"slow": 1.4, "fast": 0.002}
    picture = plots.bars(values, unit="seconds", log=True, reference=0.01, reference_label="a step")
    ax = picture.axes[0]
    assert not ax.patches
    (dots,) = (one for one in ax.collections if len(one.get_offsets()) == 2)
    assert dots.get_offsets().tolist() == [[1.4, 0], [0.002, 1]]
    assert "a step" in [text.get_text() for text in ax.texts]
    # A bar's length is its value, so without the logarithm it begins at 0.
    assert [bar.get_x() for bar in plots.bars(values).axes[0].patches] == [0, 0]


def test_message_grid_has_a_panel_a_step_and_an_arrow_a_message():
    messages, states = ring(4)
    panels = [ax for ax in plots.message_grid(messages, states).axes if ax.get_title(loc="left")]
    assert [ax.get_title(loc="left") for ax in panels] == ["start", *(f"step {i}" for i in range(1, 7))]  # fmt: skip
    for t, ax in enumerate(panels):
        arrows = [p for p in ax.patches if hasattr(p, "get_connectionstyle")]
        assert len(arrows) == sum(m.step == t - 1 for m in messages)
        cells = sorted(s.get_text() for s in ax.texts if s.get_fontweight() != "bold")
        assert cells == sorted(c.text for rank in states[t] for c in rank)
        outlined = [p for p in ax.patches if p.get_linewidth() == 2.0]
        assert len(outlined) == (4 if t else 0)


def test_long_texts_become_the_number_of_contributions():
    panel = plots.message_grid(*ring(8)).axes[14]
    assert {t.get_text() for t in panel.texts if t.get_fontweight() != "bold"} == {"8"}


def test_a_step_writes_what_travels():
    words = [t.get_text() for t in plots.message_step(*ring(4), 1).axes[0].texts]
    assert words.count("4 KiB") == 4


# --- mistakes

MISTAKES = {
    "rank 7": lambda: plots.timeline(steps(), ranks=[7]),
    "'sleep'": lambda: plots.timeline(steps(), kinds=["sleep"]),
    "start=2 and end=1": lambda: plots.timeline(steps(), start=2, end=1),
    "one rank's, which is missing": lambda: plots.speedup({2: 1.0}),
    "positive; got -1": lambda: plots.efficiency({1: 1.0, 2: -1}),
    "at least two world sizes": lambda: plots.fit_serial_fraction({1: 2.0}),
    "nothing to draw": lambda: plots.memory_bars({}),
    "needs positive bytes": lambda: plots.memory_bars({"a": {"parameters": 0}}, log=True),
    "smooth .* got 1": lambda: plots.loss_curves({"a": [1.0]}, smooth=1),
    r"'a' have \[1, 2\] values": lambda: plots.loss_curves({"a": [[1.0], [1.0, 2.0]]}),
    "'a' has 2 values, and x has 3": lambda: plots.loss_curves({"a": [1.0, 2.0]}, x=[1, 2, 3]),
    r"lengths \[1, 2\]": lambda: plots.bytes_by_rank({"a": [1], "b": [1, 2]}),
    "as many x as y": lambda: plots.curves({"a": ([1, 2], [1])}, xlabel="", ylabel=""),
    r"shape \(3,\)": lambda: plots.heatmap([1, 2, 3]),
    "no place for 0": lambda: plots.bars({"a": 0.0, "b": 1.0}, log=True),
    "at least one panel": lambda: plots.graphs({}),
    "leave out a link that is broken": lambda: plots.graphs(
        {"a": ({"0": (0, 0), "1": (1, 0)}, [("0", "1", 0.0, 0.0)])}
    ),
    r"one shape; got \(1, 2\) and, for 'rows', \(2, 1\)": lambda: plots.held_numbers(
        [[1, 2]], {"rows": [[0], [1]]}
    ),
    "xticks has 1 entries for 2": lambda: plots.heatmap([[1, 2]], xticks=["a"]),
    "3 images, and 2 labels": lambda: plots.images(torch.rand(3, 8, 8), [1, 2]),
    "its step has no state after it": lambda: plots.message_grid(
        [plots.Message(1, 0, 1)], [[["a"], ["b"]]] * 2
    ),
    "two of the 2 ranks": lambda: plots.message_grid(
        [plots.Message(0, 0, 2)], [[["a"], ["b"]]] * 2
    ),
    r"states\[1\] has 1 rank": lambda: plots.message_grid([], [[["a"], ["b"]], [["a"]]]),
    "step is 0 .* to 1; got 5": lambda: plots.message_step([], [[["a"], ["b"]]] * 2, 5),
    "1 step_names for 2": lambda: plots.message_grid([], [[["a"]]] * 3, step_names=["x"]),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_named(message):
    with pytest.raises(ValueError, match=message):
        MISTAKES[message]()


def test_a_replayed_run_becomes_messages_and_states():
    from dtcourse.profiling.replay import Move, Replay

    replay = Replay(
        [[Move(0, 1, 1, (1.0, 1.0), 8)]],
        [[[1.0, 1.0, 1.0], [10.0, None, 10.0]], [[1.0, 1.0, 1.0], [10.0, 1.0, 11.0]]],
    )
    messages, states = plots.from_replay(replay)
    assert messages == [plots.Message(0, 0, 1, bytes=8, chunk=range(1, 3))]
    assert states[0][1] == [plots.Chunk("10", (1,)), None, plots.Chunk("10", (1,))]
    assert states[1][1][2] == plots.Chunk("11", (0, 1))
    panel = plots.message_step(messages, states, 1).axes[0]
    assert len([p for p in panel.patches if p.get_linewidth() == 2.0]) == 2
    assert plots.from_replay(replay, powers=False)[1] == replay.states


def test_a_lane_keeps_its_name_and_loses_the_rows_that_show_nothing():
    events = [Event("a", "compute", 0, 0, 10), Event("b", "compute", 0, 8, 9)]
    events.append(Event("c", "communication", 0, 8, 9, lane="network"))
    ax = plots.timeline(Timeline(events), end=5).axes[0]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["rank 0: main", "rank 0: network"]
    assert ax.get_ylim()[0] == pytest.approx(1.55)  # two rows
