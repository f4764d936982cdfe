import sys
from pathlib import Path

# What a launch runs is imported by name in another process, as a lesson's checks are.
ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)
