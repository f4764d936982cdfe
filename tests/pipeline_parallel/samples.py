"""The schedules that the engine performs, by name: each takes ranks and micro-batches."""

from dtcourse.pipeline_parallel import schedules, zero_bubble

MAKE = {
    "sequential": schedules.sequential,
    "GPipe": schedules.gpipe,
    "1F1B": schedules.one_f_one_b,
    "interleaved": lambda p, m: schedules.interleaved_1f1b(p, m, 2),
    "breadth-first": lambda p, m: schedules.breadth_first(p, m, 2),
    "ZB-H1": zero_bubble.zb_h1,
    "ZB-H2": zero_bubble.zb_h2,
    "ZB-V": zero_bubble.zb_v,
    "DualPipe-V": zero_bubble.dualpipe_v,
}
