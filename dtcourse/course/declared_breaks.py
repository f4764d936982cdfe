"""Cells of lessons in which a tool of dtcourse.debugging rightly speaks, and which say so in their text alone.

What stands under "Break it", or is to raise (expect_error), needs no line here.
"""

from __future__ import annotations

# (lesson, cell): {tool: what goes wrong there on purpose}
DECLARED: dict[tuple[str, str], dict[str, str]] = {
    ("10", "count"): {
        "replicas": "local steps: replicas differ until they meet, which is the method"
    },
    ("10", "apart"): {"replicas": "local steps: the cell measures how far apart they are"},
    ("10", "live-run"): {"replicas": "local steps, with a period that changes"},
    ("10", "islands-run"): {"replicas": "each island takes steps of its own"},
    ("10", "torch-run"): {"replicas": "post-local SGD, PyTorch's and ours: local steps"},
    ("10b", "torch-levels"): {"replicas": "PyTorch's averager of two levels: local steps"},
    ("24", "flip"): {"replicas": "a bit of one weight flips on rank 1, for the replicas to find"},
    ("24b", "gallery"): {"seeds": "a script of the gallery runs there, with its mistake"},
    ("25b", "watch-course-run"): {
        "hang": "a rank is killed, and one reads without an end: for the watcher to name"
    },
    ("25c", "guard-run"): {"numbers": "a batch of NaN, which the guard is to keep out"},
    ("25c", "jumps-run"): {"replicas": "a row of rank 1's weights is overwritten in memory"},
    ("27", "ways-run"): {
        "replicas": "one way leaves a rank out, so what is the second model elsewhere is its first"
    },
}
