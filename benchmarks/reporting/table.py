"""All results against PyTorch's, in one table: what `make bench` ends with.

python benchmarks/reporting/table.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "results"


def ratios(report: dict[str, Any], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(what is measured, where its ratio is), however deep it lies."""
    for key, value in report.items():
        if not isinstance(value, dict):
            continue
        inner = f"{name}, {key}" if name else key
        if "ratio" in value:
            yield inner, value
        # benchmarks/launch.py: how much longer the others take
        elif "times_as_long_as_dtcourse" in value:
            yield f"against {key}", {"ratio": 1 / value["times_as_long_as_dtcourse"]}
        yield from ratios(value, inner)


def main() -> None:
    """Prints it."""
    print("time, or memory where it says so, divided by PyTorch's: below 1.00 ours needs less")
    print(f"{'':17s} {'':44s} ratio  quartiles      load")
    for file in sorted(RESULTS.glob("*.json")):
        report = json.loads(file.read_text())
        load = report["machine"].get("load_before", "")
        for name, found in ratios(report, ""):
            low, high = found.get("quartiles", ("", ""))
            spread = f"{low:.2f} to {high:.2f}" if "quartiles" in found else ""
            busy = found.get("load_before", load)
            print(f"{file.stem:17s} {name:44s} {found['ratio']:5.2f}  {spread:13s}  {busy}")


if __name__ == "__main__":
    main()
