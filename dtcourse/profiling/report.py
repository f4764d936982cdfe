"""What a monitor measured: throughput, percentiles, the split of the step, as a table and as JSON."""

from __future__ import annotations

import json
import math
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dtcourse.plural import plural

PARTS = ("compute", "communication", "data", "queueing")
"""What a step's seconds are split into; see dtcourse.profiling.monitor."""


@dataclass(frozen=True)
class Step:
    """One step of one rank, in seconds; the four parts add up to `seconds`."""

    seconds: float
    data: float
    compute: float
    communication: float
    queueing: float
    samples: int
    tokens: int
    logged: dict[str, float] = field(default_factory=dict)

    def with_communication(self, share: float) -> Step:
        """The same step, with `share` of its time outside the loader counted as exposed communication."""
        busy = self.seconds - self.data
        return replace(self, communication=share * busy, compute=(1 - share) * busy, queueing=0.0)


@dataclass(frozen=True)
class Report:
    """Steps of one rank, or of several (`Report.join`): then `steps` has one rank's after the other's.

    All ranks take the same number of steps, since each step ends with an exchange; a rank that ran out of data
    early (Join) has fewer.
    """

    steps: list[Step]
    ranks: list[int]
    warm_up: int

    @classmethod
    def join(cls, reports: Iterable[Report]) -> Report:
        """One report of all ranks: Report.join(run), where each rank returned its own."""
        reports = list(reports)
        if not reports:
            raise ValueError("there are no reports to join: return monitor.report() from each rank")
        for report in reports:
            if not isinstance(report, Report):
                raise ValueError(
                    f"a rank returned a {type(report).__name__}, not a Report: return monitor.report()"
                )
        return cls(
            [step for report in reports for step in report.steps],
            [rank for report in reports for rank in report.ranks],
            reports[0].warm_up,
        )

    @property
    def seconds(self) -> float:
        """Time of the measured steps: the mean over the ranks, which take them side by side."""
        return sum(step.seconds for step in self.steps) / len(self.ranks)

    @property
    def samples_per_second(self) -> float:
        """Of all ranks in the report together."""
        return sum(step.samples for step in self.steps) / self.seconds

    @property
    def tokens_per_second(self) -> float:
        """Of all ranks in the report together; 0 where nobody counted tokens."""
        return sum(step.tokens for step in self.steps) / self.seconds

    def percentile(self, percent: float, part: str = "seconds") -> float:
        """Seconds that `percent` of the steps (of all ranks) did not exceed: the nearest rank,
        always a measured one.
        """
        if not 0 < percent <= 100:
            raise ValueError(f"a percentile is above 0 and at most 100; got {percent}")
        values = sorted(self._of(part))
        return values[math.ceil(percent / 100 * len(values)) - 1]

    def share(self, part: str) -> float:
        """The part of all steps' time that went into `part` ("compute", "communication", "data" or "queueing")."""
        return sum(self._of(part)) / sum(self._of("seconds"))

    def logged(self, name: str) -> list[float]:
        """What was logged under `name`, step by step."""
        return [step.logged[name] for step in self.steps if name in step.logged]

    def rows(self) -> list[dict[str, Any]]:
        """For plots.table: one row a part, in seconds, with its share."""
        return [
            {
                "part": name,
                "median": self.percentile(50, part),
                "p90": self.percentile(90, part),
                "p99": self.percentile(99, part),
                "share": self.share(part),
            }
            for name, part in [("step", "seconds"), *((part, part) for part in PARTS)]
        ]

    def __str__(self) -> str:
        lines = [f"{'':<14}{'median':>10}{'p90':>10}{'p99':>10}{'share':>8}"]
        for row in self.rows():
            times = "".join(f"{row[name] * 1e3:>7.1f} ms" for name in ("median", "p90", "p99"))
            lines.append(f"{row['part']:<14}{times}{row['share']:>8.0%}")
        speed = f"{self.samples_per_second:,.0f} samples/s"
        if self.tokens_per_second:
            speed += f", {self.tokens_per_second:,.0f} tokens/s"
        count = len(self.steps) // len(self.ranks)
        ranks = f"{plural(len(self.ranks), 'rank')}"
        return "\n".join(
            [*lines, f"{speed} on {ranks}; {plural(count, 'step')} after {self.warm_up} of warm-up"]
        )

    def save(self, path: str | Path, **about: Any) -> None:
        """Writes the summary and every step as JSON, with date and machine, all or nothing.

        about: anything to keep beside them (the arguments of the run)
        """
        import torch

        content = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": {"system": platform.platform(), "torch": torch.__version__},
            **about,
            "ranks": self.ranks,
            "warm_up": self.warm_up,
            "summary": {
                "samples_per_second": self.samples_per_second,
                "tokens_per_second": self.tokens_per_second,
                "step_seconds_mean": statistics.fmean(self._of("seconds")),
                "parts": self.rows(),
            },
            "steps": [asdict(step) for step in self.steps],
        }
        path = Path(path)
        partial = path.with_name(path.name + ".partial")
        partial.write_text(json.dumps(content, indent=1))
        partial.replace(path)

    @classmethod
    def load(cls, path: str | Path) -> Report:
        """Reads what `save` wrote."""
        content = json.loads(Path(path).read_text())
        return cls(
            [Step(**step) for step in content["steps"]], content["ranks"], content["warm_up"]
        )

    def _of(self, part: str) -> Sequence[float]:
        if part not in ("seconds", *PARTS):
            raise ValueError(f"a step has seconds, {', '.join(PARTS)}; got {part!r}")
        return [getattr(step, part) for step in self.steps]
