"""What a test or a lesson is about (tests/subjects.py), which CI's choice stands on."""

from __future__ import annotations

import ast
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
        # what a lesson shows, by a name in its code or through the library
        ("lessons/28-federated.ipynb", "studies/results/client_drift.json"),
        ("lessons/08-large-batch.ipynb", "studies/results/steps_to_loss.json"),
        ("lessons/12-sparse-gradients.ipynb", "benchmarks/results/selection.json"),
        ("lessons/26-clusters.ipynb", "lessons/recorded/26-clusters.json"),
        ("lessons/24b-quiet-mistakes.ipynb", "gallery/handles_kept.py"),
        ("lessons/29-frameworks.ipynb", "frameworks/job.py"),
        ("lessons/26-clusters.ipynb", "containers/Containerfile"),
        ("lessons/28-federated.ipynb", "tests/notebooks/sanitize.cfg"),
        ("tests/federated/test_accountant.py", "tests/federated/dp_accounting_values.json"),
        ("tests/pairs/test_table.py", "dtcourse/sharding/gathers.py"),
        ("tests/virtual/test_shapes.py", "dtcourse/torch_private/shapes.py"),
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
        ("lessons/28-federated.ipynb", "studies/results/loading.json"),
        ("lessons/28-federated.ipynb", "lessons/recorded/26-clusters.json"),
        ("tests/federated/test_accountant.py", "tests/pairs/table.py"),
        ("lessons/28-federated.ipynb", "dtcourse/course/checks/lesson_25_fault_tolerance/finds.py"),
    ],
)
def test_what_is_not(name, path):
    assert not about(name, path)


def test_what_is_imported_is_used():
    assert uses("lessons/28-federated.ipynb", "dtcourse/federated/rounds.py")
    assert not uses("lessons/28-federated.ipynb", "dtcourse/launch/rank.py")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("tests/launch/test_workers_of_notebooks.py", "lessons/07-data-loading.ipynb"),
        ("tests/launch/cluster/test_kubernetes.py", "docs/kubernetes.md"),
        ("tests/course/test_folding.py", "exercises/03-collectives.ipynb"),
        ("tests/debugging/test_gallery.py", "gallery/README.md"),
        ("tests/studies/test_client_drift.py", "dtcourse/federated/rounds.py"),  # by its script
        ("tests/cli/test_frameworks.py", "tests/course/conftest.py"),  # by its conftest
    ],
)
def test_what_is_read_by_its_name_is_used(name, path):
    assert uses(name, path) and not uses("tests/test_lookup.py", path)


def test_a_path_is_what_its_strings_tell():
    def named(code: str) -> set[str]:
        return subjects.named(ast.parse(code))

    assert named("ROOT / 'docs' / 'ray.md'") == {"docs/ray.md"}
    assert named("(ROOT / 'lessons').glob(f'{n}-*.ipynb')") == {"lessons/"}
    assert named("home() / 'studies/results' / f'{name}.json'") == {"studies/results/"}
    assert named("f'gallery/{name}.py', 'exercises', 'lessons/0*'") == {
        "gallery/",
        "exercises/",
        "lessons/0",
    }
    assert named("ROOT / kind / 'docs.py', 'docs of what', a / b, 'x/docs'") == set()
    assert subjects.modules("ROOT / 'docs' / 'ray.md'") == {"docs/ray.md"}


def test_what_a_package_imports_is_used_by_its_own_tests_and_its_users_and_no_step_further():
    imports = subjects.through("dtcourse/hybrid/")
    assert "dtcourse/sharding/" in imports
    name = "tests/hybrid/test_moving.py"
    assert "dtcourse/sharding/" not in subjects.imported(ROOT / name)
    assert uses(name, "dtcourse/sharding/gathers.py")
    # hybrid imports pipeline_parallel, and that imports events
    assert "dtcourse/events.py" in subjects.through("dtcourse/pipeline_parallel/") - imports


def test_a_helper_in_tests_counts_with_what_it_imports():
    """tests/pairs/test_equal.py does not import the pipelines itself."""
    own = subjects.modules((ROOT / "tests/pairs/test_equal.py").read_text("utf-8"))
    assert "dtcourse/expert_parallel/" not in own
    assert uses("tests/pairs/test_equal.py", "dtcourse/expert_parallel/layer.py")


def test_the_test_of_a_check_uses_what_the_check_imports():
    name = "tests/course/test_choose_patience.py"
    assert uses(name, "dtcourse/heterogeneous/shares.py")
    assert uses(name, "dtcourse/course/checks/lesson_27_heterogeneous/choose_patience.py")
    assert not uses(name, "dtcourse/course/checks/lesson_27_heterogeneous/two_means.py")


def test_a_topic_that_is_a_file_counts_with_what_it_imports():
    assert uses("tests/test_streams.py", "dtcourse/events.py")
    assert subjects.file_or_folder("benchmarks/reporting") == "benchmarks/reporting/"
    assert subjects.file_or_folder("dtcourse/streams") == "dtcourse/streams.py"


def test_each_file_has_its_subjects_and_what_is_everyones_is_a_package():
    tests = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    notebooks = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("lessons/*.ipynb")]
    assert len(tests) > 400 and len(notebooks) > 40
    for name in [*tests, *notebooks]:
        assert about(name, name), name
    for path in sum(subjects.SPREAD.values(), ()):
        assert (ROOT / path).exists(), path
    for name in subjects.EVERYONES:
        assert (ROOT / "dtcourse" / name).is_dir() or (ROOT / "dtcourse" / f"{name}.py").is_file()


def test_whatever_changes_in_the_course_some_test_is_about_it_or_uses_it():
    """What each package proves is tried in full when it changes; a file beside the packages may have others' tests."""
    tests = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    tests = [name for name in tests if not name.startswith(subjects.OF_EVERYTHING)]
    for package in (ROOT / "dtcourse").iterdir():
        if package.is_dir() and package.name != "__pycache__":
            path = f"dtcourse/{package.name}/new.py"
            assert any(about(name, path) for name in tests), path
        elif package.suffix == ".py" and package.stem not in ("__init__", "__main__", "plural"):
            path = f"dtcourse/{package.name}"
            assert any(about(name, path) or uses(name, path) for name in tests), path
