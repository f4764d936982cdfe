"""What the package offers at its root."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from dtcourse import pipeline_parallel

FILES = sorted(p.stem for p in Path(pipeline_parallel.__file__).parent.glob("[!_]*.py"))


@pytest.mark.parametrize("name", pipeline_parallel.__all__)
def test_each_name_is_there_whatever_has_been_imported(name):
    """Also one that is a file's name: its attribute must not become the module."""
    for file in FILES:
        importlib.import_module(f"dtcourse.pipeline_parallel.{file}")
    assert callable(getattr(pipeline_parallel, name))


def test_all_files_are_in_the_reading_order():
    for file in FILES:
        assert f"\n{file}.py " in pipeline_parallel.__doc__, file


def test_schedules_need_no_torch():
    code = "from dtcourse.pipeline_parallel import gpipe, simulate, Times; import sys; print('torch' in sys.modules)"
    code += "; from dtcourse.pipeline_parallel import Pipeline, split; print(Pipeline.__name__, split.__name__)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "Pipeline", "split"]


def test_what_is_not_there_is_said():
    with pytest.raises(AttributeError, match="has no attribute 'Pipelines'"):
        _ = pipeline_parallel.Pipelines
