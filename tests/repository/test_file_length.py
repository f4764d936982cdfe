"""A file of dtcourse is one idea, read in one sitting: at most 250 lines."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
MOST = 250

# Files that were longer on 2026-11-23, with their lengths then. They may shrink; what has come down to 250 leaves the
# list. Nothing is added: what grows is split where a second subject begins.
LONGER = {
    "dtcourse/cli/lessons.py": 303,
    "dtcourse/collectives/double_tree.py": 315,
    "dtcourse/collectives/forms.py": 304,
    "dtcourse/collectives/halving_doubling.py": 336,
    "dtcourse/collectives/tree.py": 251,
    "dtcourse/course/checks/lesson_06_data_parallel/ddp_with_buckets.py": 299,
    "dtcourse/course/judging/limits.py": 269,
    "dtcourse/device.py": 255,
    "dtcourse/events.py": 289,
    "dtcourse/launch/cluster/throwaway.py": 347,
    "dtcourse/launch/processes.py": 290,
    "dtcourse/memory/allocator.py": 264,
    "dtcourse/memory/attention_triton.py": 322,
    "dtcourse/memory/checkpointing.py": 262,
    "dtcourse/memory/loss_scaling.py": 304,
    "dtcourse/memory/offload.py": 292,
    "dtcourse/memory/parameter_offload.py": 292,
    "dtcourse/models/transformer.py": 323,
    "dtcourse/parameters/reducer.py": 336,
    "dtcourse/pipeline_parallel/simulate.py": 280,
    "dtcourse/plots/exchange.py": 259,
    "dtcourse/plots/interaction.py": 296,
    "dtcourse/plots/schedule_pictures.py": 293,
    "dtcourse/plots/style.py": 328,
    "dtcourse/plots/timelines.py": 283,
    "dtcourse/sequence_parallel/ring_attention.py": 324,
    "dtcourse/sharding/schedule.py": 346,
    "dtcourse/sharding/zero1.py": 298,
}


def faults(lengths: dict[str, int], longer: dict[str, int]) -> list[str]:
    """What is wrong with these lengths by file, where those of `longer` may have as many lines as it says."""
    found = []
    for name, lines in lengths.items():
        if lines > longer.get(name, MOST):
            found.append(
                f"{name} has {lines} lines, and may have {longer.get(name, MOST)}: split it"
            )
    for name in longer:
        if lengths.get(name, 0) <= MOST:
            found.append(f"{name} has at most {MOST} lines, or is no more: take it out of LONGER")
    return found


def test_no_file_is_longer_than_one_sitting():
    files = sorted((ROOT / "dtcourse").rglob("*.py"))
    assert len(files) > 300, "the files are looked for in the wrong place"
    lengths = {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8").count("\n") for path in files
    }
    assert not faults(lengths, LONGER)


@pytest.mark.parametrize(
    ("lengths", "longer", "sentence"),
    [
        ({"a.py": 251}, {}, "a.py has 251 lines, and may have 250"),
        ({"a.py": 301}, {"a.py": 300}, "a.py has 301 lines, and may have 300"),
        ({"a.py": 250}, {"a.py": 300}, "take it out of LONGER"),
        ({}, {"a.py": 300}, "take it out of LONGER"),
    ],
)
def test_the_rule_notices(lengths, longer, sentence):
    (said,) = faults(lengths, longer)
    assert sentence in said


def test_the_rule_lets_pass_what_is_fine():
    assert not faults({"a.py": 250, "b.py": 299, "c.py": 1}, {"b.py": 300})
