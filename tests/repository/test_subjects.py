"""What a test or a lesson is about (tests/subjects.py), which CI's choice stands on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import rotation, subjects

ROOT = Path(__file__).resolve().parents[2]


def uses(name: str, path: str) -> bool:
    """The same of what it uses."""
    return rotation.touch([path], subjects.used(name))


def about(name: str, path: str) -> bool:
    """Whether a change of this path is one that this test, or lesson, is about."""
    return rotation.touch([path], subjects.subjects(name))


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("tests/sharding/test_fully_shard.py", "tests/sharding/test_fully_shard.py"),
        ("tests/sharding/test_fully_shard.py", "dtcourse/sharding/gathers.py"),
        ("tests/sharding/test_fully_shard.py", "tests/sharding/conftest.py"),
        ("tests/sharding/test_fully_shard.py", "requirements.lock"),
        ("tests/launch/cluster/test_two_networks.py", "dtcourse/launch/rank.py"),
        ("tests/test_device.py", "dtcourse/device.py"),
        ("tests/frameworks/test_scripts.py", "frameworks/plain.py"),
        ("tests/repository/test_rules.py", "dtcourse/nobody/knows.py"),
        ("tests/notebooks/test_committed.py", "lessons/01-why-distributed.ipynb"),
        ("lessons/28-federated.ipynb", "lessons/28-federated.ipynb"),
        (
            "lessons/28-federated.ipynb",
            "dtcourse/course/checks/lesson_28_federated/choose_method.py",
        ),
    ],
)
def test_what_is_about_a_change(name, path):
    assert about(name, path)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("tests/sharding/test_fully_shard.py", "dtcourse/launch/rank.py"),
        ("tests/sharding/test_fully_shard.py", "dtcourse/asynchronous/local_updates.py"),
        ("tests/sharding/test_fully_shard.py", "README.md"),
        ("lessons/28-federated.ipynb", "lessons/27-heterogeneous.ipynb"),
        ("lessons/28-federated.ipynb", "dtcourse/launch/rank.py"),
        ("lessons/28-federated.ipynb", "dtcourse/course/checks/lesson_25_fault_tolerance/finds.py"),
    ],
)
def test_what_is_not(name, path):
    assert not about(name, path)


def test_what_is_imported_is_used():
    assert uses("lessons/28-federated.ipynb", "dtcourse/federated/rounds.py")
    assert not uses("lessons/28-federated.ipynb", "dtcourse/launch/rank.py")
    assert uses("tests/sharding/test_fully_shard.py", "dtcourse/tensor_parallel/linear.py") == (
        "tensor_parallel" in (ROOT / "tests/sharding/test_fully_shard.py").read_text("utf-8")
    )


def test_a_helper_in_tests_counts_with_what_it_imports():
    """tests/pairs/test_equal.py does not import the pipelines itself."""
    own = subjects.modules((ROOT / "tests/pairs/test_equal.py").read_text("utf-8"))
    assert "dtcourse/expert_parallel/" not in own
    assert uses("tests/pairs/test_equal.py", "dtcourse/expert_parallel/layer.py")


def test_each_file_has_its_subjects_and_what_is_everyones_is_a_package():
    tests = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    notebooks = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("lessons/*.ipynb")]
    assert len(tests) > 400 and len(notebooks) > 40
    for name in [*tests, *notebooks]:
        assert about(name, name), name
    for name in subjects.EVERYONES:
        assert (ROOT / "dtcourse" / name).is_dir() or (ROOT / "dtcourse" / f"{name}.py").is_file()
    # What each package proves is tried in full when the package changes.
    for package in (path.name for path in (ROOT / "dtcourse").iterdir() if path.is_dir()):
        path = f"dtcourse/{package}/new.py"
        if (ROOT / "tests" / package).is_dir():
            assert all(about(name, path) for name in tests if name.startswith(f"tests/{package}/"))
