"""A study's results file: every run by its name, with the settings, the machine, the date and the versions.

It is written after each run, all of it or nothing; a study that is called again goes on where it stopped.
"""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch


def load(path: Path, what: str, **fixed: Any) -> dict[str, Any]:
    """The results so far, none if there is no file.

    what:  the study in a line
    fixed: what the runs depend on, by name: the file's format, settings, ...

    Raises ValueError where the file was made with others.
    """
    if not path.exists():
        return {"what": what, **fixed, "runs": {}}
    found = json.loads(path.read_text())
    for part, now in fixed.items():
        if found.get(part) != now:
            raise ValueError(
                f"{path} was measured with {part} {found.get(part)}, and this run has {now}: "
                "give the same ones to go on with it, or another --out"
            )
    return found


def save(results: dict[str, Any], path: Path, seeds: int) -> None:
    """All of it or nothing: a reader never sees half a file. Each run has its `seconds`."""
    results |= {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count(), "threads": torch.get_num_threads()},
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "seeds": seeds,
        "seconds": round(sum(run["seconds"] for run in results["runs"].values()), 1),
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    # One run a line, so that a diff reads.
    runs = ",\n".join(
        f"  {json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in results["runs"].items()
    )
    head = json.dumps({k: v for k, v in results.items() if k != "runs"}, indent=1, allow_nan=False)
    partial.write_text(head.removesuffix("\n}") + ',\n "runs": {\n' + runs + "\n }\n}\n")
    partial.replace(path)
