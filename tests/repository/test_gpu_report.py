"""The report of what needs a GPU: what it says without one, and what it makes of tests and benchmarks."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dtcourse import device


@pytest.fixture
def gpu_report(root: Path):
    spec = importlib.util.spec_from_file_location("gpu_report", root / "tools" / "gpu_report.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_a_gpu_it_says_so_runs_nothing_and_writes_nothing(root, tmp_path):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    report = root / "build" / "reports" / "gpu.json"
    before = report.stat().st_mtime if report.exists() else None
    done = subprocess.run(
        [sys.executable, root / "tools" / "gpu_report.py"], cwd=tmp_path, env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("There is no GPU that torch can use on this machine")
    assert done.stdout == ""
    assert before == (report.stat().st_mtime if report.exists() else None)


@pytest.mark.stands_on("tools/", "benchmarks/reporting/")
def test_it_reports_tests_figures_and_benchmarks(gpu_report, monkeypatch, tmp_path, capsys):
    """With a GPU pretended, and a project of one test file and two benchmarks."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "fast.py").write_text("print('ratio 0.98')")
    (tmp_path / "benchmarks" / "slow.py").write_text("import time; time.sleep(60)")
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "pytestmark = pytest.mark.gpu\n"
        "def test_good(record_property): record_property('peak', '3.2 GB')\n"
        "def test_bad(): assert 1 == 2, 'not | equal'\n"
        "def test_later(): pytest.skip('needs two GPUs')\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: needs a GPU\n")
    monkeypatch.setattr(gpu_report, "ROOT", tmp_path)
    monkeypatch.setattr(gpu_report, "REPORTS", tmp_path / "build" / "reports")
    monkeypatch.setattr(gpu_report, "machine", lambda: {"GPUs": ["Pretended 80 GB"], "torch": "x"})
    monkeypatch.setattr(device, "count", lambda: 1)
    assert gpu_report.main(["--limit", "5", "test_it.py"]) == 1
    report = json.loads((tmp_path / "build" / "reports" / "gpu.json").read_text())
    results = {t["name"].partition("::")[2]: t for t in report["tests"]}
    assert {name: t["result"] for name, t in results.items()} == {
        "test_good": "passed", "test_bad": "failed", "test_later": "skipped",
    }  # fmt: skip
    assert results["test_good"]["figures"] == {"peak": "3.2 GB"}
    assert [b["result"] for b in report["benchmarks"]] == ["passed", "failed"]
    text = (tmp_path / "build" / "reports" / "gpu.md").read_text()
    assert "## Tests: 1 passed, 1 failed, 1 skipped" in text
    assert "peak 3.2 GB" in text
    assert "ratio 0.98" in text
    assert "ended after 5 s" in text
    assert "Pretended 80 GB" in text
    assert "2 failed" in capsys.readouterr().out


@pytest.mark.gpu
def test_the_machine_is_described(gpu_report):
    described = gpu_report.machine()
    assert described["GPUs"] == device.names() != []
    assert described["CUDA"]
