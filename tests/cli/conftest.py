import sys
from pathlib import Path

# tests.course.samples is imported by name.
ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from tests.course.conftest import samples_are_shown  # noqa: E402, F401 - a fixture
