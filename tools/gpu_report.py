"""Everything that needs a GPU, run and written down in one report: `python tools/gpu_report.py`.

Runs the tests marked `gpu` and the benchmarks, and writes build/reports/gpu.md and gpu.json: which GPUs, driver and
versions, each test's result, time and measured figures (what tests give to pytest's record_property), each benchmark's
output.

    python tools/gpu_report.py                     # tests and benchmarks
    python tools/gpu_report.py --no-benchmarks     # tests alone
    python tools/gpu_report.py --limit 300         # seconds for each benchmark (600)

Exit code: 0 all passed, 1 something failed, 2 there is no GPU, so nothing was run and nothing written.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "reports"
NO_GPU = 2


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    import torch

    from dtcourse import device

    nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "commit": output_of(["git", "rev-parse", "--short", "HEAD"]),
        "changed files": len(output_of(["git", "status", "--porcelain", "-uno"]).splitlines()),
        "GPUs": device.names(),
        "driver": output_of(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]),
        "torch": torch.__version__,
        "CUDA": torch.version.cuda or torch.version.hip,
        "NCCL": ".".join(map(str, nccl)) if nccl else "",
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def output_of(command: list[str]) -> str:
    """What a command prints; empty where it is missing or fails."""
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def run_tests(selection: list[str]) -> list[dict[str, Any]]:
    """Each gpu test: its name, result, seconds, message if it did not pass, and the figures that it recorded."""
    report = REPORTS / "gpu.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", f"--junitxml={report}"]
    subprocess.run([*command, *selection], cwd=ROOT, check=False)
    if not report.exists():
        return [{"name": "pytest", "result": "failed", "seconds": 0.0, "why": "it wrote no report"}]
    return [read_case(case) for case in ElementTree.parse(report).getroot().iter("testcase")]


def read_case(case: ElementTree.Element) -> dict[str, Any]:
    """One test of pytest's XML."""
    found: dict[str, Any] = {
        "name": f"{case.get('classname')}::{case.get('name')}",
        "result": "passed",
        "seconds": float(case.get("time", 0)),
    }
    for tag, result in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        problem = case.find(tag)
        if problem is not None:
            found |= {"result": result, "why": (problem.get("message") or "").splitlines()[0]}
    figures = {p.get("name"): p.get("value") for p in case.iter("property")}
    return found | ({"figures": figures} if figures else {})


def run_benchmarks(limit: float) -> list[dict[str, Any]]:
    """Each script in benchmarks/: its result, seconds and what it printed."""
    found = []
    for script in sorted((ROOT / "benchmarks").glob("*.py")):
        print(f"== {script.name}", flush=True)
        start = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, str(script)], cwd=ROOT, capture_output=True, text=True,
                timeout=limit, check=False,
            )  # fmt: skip
            result = "passed" if done.returncode == 0 else "failed"
            text = done.stdout if done.returncode == 0 else done.stdout + done.stderr
        except subprocess.TimeoutExpired as late:
            result, text = "failed", f"{_decoded(late.stdout)}\nended after {limit:g} s"
        seconds = time.monotonic() - start
        found.append({"name": script.name, "result": result, "seconds": seconds, "output": text})
    return found


def _decoded(text: str | bytes | None) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else text or ""


def as_markdown(report: dict[str, Any]) -> str:
    """The report for a person: what failed first, then everything."""
    tests, benchmarks = report["tests"], report["benchmarks"]
    count = {r: sum(t["result"] == r for t in tests) for r in ("passed", "failed", "skipped")}
    lines = ["# What ran on the GPU", ""]
    lines += [
        f"- {key}: {', '.join(value) if isinstance(value, list) else value}"
        for key, value in report["machine"].items()
    ]
    lines += ["", f"## Tests: {', '.join(f'{n} {r}' for r, n in count.items())}", ""]
    lines += ["| test | result | seconds | measured |", "| :-- | :-- | --: | :-- |"]
    for test in sorted(tests, key=lambda t: t["result"] != "failed"):
        figures = "; ".join(f"{k} {v}" for k, v in test.get("figures", {}).items())
        note = test.get("why", figures).replace("|", "\\|")
        lines.append(f"| {test['name']} | {test['result']} | {test['seconds']:.2f} | {note} |")
    for benchmark in benchmarks:
        lines += [
            "",
            f"## {benchmark['name']}: {benchmark['result']}, {benchmark['seconds']:.0f} s",
        ]
        lines += ["", "```text", benchmark["output"].rstrip(), "```"]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Run, write, and say where."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tests", nargs="*", default=["tests"], help="files or folders of tests")
    parser.add_argument("--no-benchmarks", action="store_true")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for each benchmark")
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(ROOT))
    from dtcourse import device

    if device.count() == 0:
        print(
            "There is no GPU that torch can use on this machine, so nothing was run and no report was written.\n"
            "On a machine with one: install torch for it (make env PIP_ARGS=..., see README), then run this again.",
            file=sys.stderr,
        )
        return NO_GPU
    REPORTS.mkdir(parents=True, exist_ok=True)
    report = {
        "machine": machine(),
        "tests": run_tests(options.tests),
        "benchmarks": [] if options.no_benchmarks else run_benchmarks(options.limit),
    }
    (REPORTS / "gpu.json").write_text(json.dumps(report, indent=1) + "\n")
    (REPORTS / "gpu.md").write_text(as_markdown(report))
    failed = [
        r["name"] for r in [*report["tests"], *report["benchmarks"]] if r["result"] == "failed"
    ]
    print(
        f"{len(report['tests'])} tests, {len(report['benchmarks'])} benchmarks, {len(failed)} failed"
    )
    print(f"report: {(REPORTS / 'gpu.md').relative_to(ROOT)} and gpu.json")
    return 1 if failed or not report["tests"] else 0


if __name__ == "__main__":
    sys.exit(main())
