"""Pictures in one style, and widgets to play with. Every function takes plain data and knows no technique.

    from dtcourse import plots
    plots.speedup({1: 8.1, 2: 4.4, 4: 2.9})      # last expression of a cell: shows once

Importing this package gives the course's style to all of matplotlib, and lets a Timeline draw itself where IPython is
loaded. Every function returns a `Picture` (a matplotlib Figure on opaque paper, readable in a light and in a dark
JupyterLab and in print), a `Table` or an `Interactive`; none of them shows anything by itself.
"""

from dtcourse.plots import notebook as _notebook
from dtcourse.plots.axis_pictures import traffic_by_axis
from dtcourse.plots.bar_pictures import bars, bytes_by_rank
from dtcourse.plots.exchange import message_grid, message_step, message_stepper
from dtcourse.plots.frontier import frontier, frontier_explorer
from dtcourse.plots.graph_pictures import graphs
from dtcourse.plots.grid_pictures import heatmap, held_numbers, images
from dtcourse.plots.interaction import Interactive, interactive, timeline_explorer
from dtcourse.plots.line_pictures import curves, loss_curves
from dtcourse.plots.live import LiveMonitor, live_monitor
from dtcourse.plots.memory_pictures import live_bytes, memory_bars, segments
from dtcourse.plots.message_data import Chunk, Message, from_replay
from dtcourse.plots.roofline import roofline
from dtcourse.plots.scaling import amdahl, efficiency, fit_serial_fraction, gustafson, speedup
from dtcourse.plots.schedule_explorer import schedule_explorer
from dtcourse.plots.schedule_pictures import schedules
from dtcourse.plots.storage_pictures import stored_over_time
from dtcourse.plots.style import (
    INK,
    KIND_COLORS,
    MEMORY_COLORS,
    PAPER,
    RANK_COLORS,
    Picture,
    apply_style,
    figure,
    kind_color,
    label_lines,
    rank_color,
)
from dtcourse.plots.tables import Table, table
from dtcourse.plots.timelines import timeline, timelines
from dtcourse.plots.units import bytes_text, count_text, flops_text, seconds_text

__all__ = [
    "INK",
    "KIND_COLORS",
    "MEMORY_COLORS",
    "PAPER",
    "RANK_COLORS",
    "Chunk",
    "Interactive",
    "LiveMonitor",
    "Message",
    "Picture",
    "Table",
    "amdahl",
    "apply_style",
    "bars",
    "bytes_by_rank",
    "bytes_text",
    "count_text",
    "curves",
    "efficiency",
    "figure",
    "fit_serial_fraction",
    "flops_text",
    "from_replay",
    "frontier",
    "frontier_explorer",
    "graphs",
    "gustafson",
    "heatmap",
    "held_numbers",
    "images",
    "interactive",
    "kind_color",
    "label_lines",
    "live_bytes",
    "live_monitor",
    "loss_curves",
    "memory_bars",
    "message_grid",
    "message_step",
    "message_stepper",
    "rank_color",
    "roofline",
    "schedule_explorer",
    "schedules",
    "seconds_text",
    "segments",
    "speedup",
    "stored_over_time",
    "table",
    "timeline",
    "timeline_explorer",
    "timelines",
    "traffic_by_axis",
]

apply_style()
_notebook.register()
