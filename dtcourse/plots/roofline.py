"""A roofline: what a machine allows an operator of so many FLOPs per byte, and what a step's operators reach."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.lines import Line2D

from dtcourse.plots.style import FAINT, INK, MARKERS, RANK_COLORS, Picture, figure, legend_below
from dtcourse.plots.unit_axes import unit_axis
from dtcourse.plots.units import flops_text

if TYPE_CHECKING:
    from dtcourse.profiling.roofline import Placed, Roofline

NAMED = 5  # operators with a marker of their own


def roofline(placed: Roofline, *, title: str | None = None) -> Picture:
    """Operators on the roofs of their machine, both axes logarithmic; a point's area grows with its share of the time.

    Operators without products have no place over FLOPs per byte, since theirs are 0: the legend says what part of the
    time they take. The link's roof has the whole step on it, over the FLOPs per byte that it sends.

    placed: of profiling.roofline

    Raises ValueError where no operator has FLOPs.
    """
    groups: dict[str, list[Placed]] = defaultdict(list)
    for each in placed.operators:
        if each.operator.flops:
            groups[each.operator.name].append(each)
    if not groups:
        raise ValueError("nothing to draw: none of these operators has FLOPs")
    names = sorted(groups, key=lambda name: -_seconds(groups[name]))
    picture, ax = figure(
        title=title,
        description=title or "FLOPs per second against FLOPs per byte: " + ", ".join(names),
        height=4.2,
    )
    for name in names[NAMED:]:
        groups["other products"] += groups.pop(name)
    handles: list[Any] = []
    for i, (name, several) in enumerate(
        sorted(groups.items(), key=lambda each: -_seconds(each[1]))
    ):
        color, marker = RANK_COLORS[i % 7], MARKERS[i % len(MARKERS)]
        ax.scatter(
            [each.operator.intensity for each in several],
            [each.flops_per_second for each in several],
            s=[20 + 180 * each.operator.seconds / placed.seconds for each in several],
            color=color, marker=marker, alpha=0.85, zorder=4,
        )  # fmt: skip
        share = _seconds(several) / placed.seconds
        handles.append(_handle(color, marker, f"{_short(name)}, {share:.0%}"))
    without = 1 - sum(map(_seconds, groups.values())) / placed.seconds
    if without > 0.0005:
        handles.append(_handle("none", "", f"without products, {without:.0%}"))
    machine = placed.machine
    places = [e.operator.intensity for several in groups.values() for e in several]
    places.append(machine.ridge)
    if placed.sent and machine.link is not None:
        step = placed.flops / placed.sent
        ax.scatter([step], [placed.flops / placed.seconds], color=INK, marker="X", s=60, zorder=5)
        handles.append(_handle(INK, "X", "the step, per byte sent"))
        places += [step, machine.flops * machine.link.beta]
    x = np.geomspace(min(places) / 3, max(places) * 3, 200)
    ax.plot(x, np.minimum(machine.flops, x * machine.bandwidth), color=INK, lw=1.8, marker="")
    handles.append(Line2D([], [], color=INK, label=f"memory, then {flops_text(machine.flops)}/s"))
    if placed.sent and machine.link is not None:
        roof = np.minimum(machine.flops, x * machine.link.bandwidth)
        ax.plot(x, roof, color=FAINT, lw=1.6, ls="--", marker="")
        handles.append(Line2D([], [], color=FAINT, ls="--", label="link"))
    ax.set_xscale("log")
    ax.set_yscale("log")
    unit_axis(ax, "x", None, True)
    unit_axis(ax, "y", "flops", True)
    ax.set_xlabel("FLOPs per byte")
    ax.set_ylabel("FLOPs per second")
    legend_below(picture, handles, inches_each=2.6)
    return picture


def _seconds(several: list[Placed]) -> float:
    return sum(each.operator.seconds for each in several)


def _handle(color: str, marker: str, label: str) -> Line2D:
    return Line2D([], [], color=color, marker=marker, ls="", label=label)


def _short(name: str) -> str:
    """PyTorch's names of kernels say more than a legend has room for."""
    for part in ("aten.", "_scaled_dot_product_", "_for_cpu"):
        name = name.replace(part, "")
    return name if len(name) <= 26 else name[:25] + "…"
