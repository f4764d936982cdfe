import sys
from pathlib import Path

import pytest

from dtcourse.course.judging import sandbox

# The samples' steps are imported by name in another process, as a lesson's checks are.
ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))


@pytest.fixture(autouse=True)
def samples_are_shown(monkeypatch):
    """An answer's process sees the package alone; for these tests, the samples too."""
    monkeypatch.setitem(sandbox.MODULES, SAMPLES, ROOT / SAMPLES)


SAMPLES = "tests/course/samples.py"
