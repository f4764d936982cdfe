from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

STUDIES = Path(__file__).parents[2] / "studies"


@pytest.fixture(scope="package")
def study():
    """study("name") is the script of that name as a module, loaded as lesson 08 does: its folder is on no path."""
    made = []

    def load(name):
        spec = importlib.util.spec_from_file_location(name, STUDIES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look their module up
        made.append(name)
        spec.loader.exec_module(module)
        return module

    yield load
    for name in made:
        del sys.modules[name]
