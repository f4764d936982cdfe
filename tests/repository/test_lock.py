"""One source of truth for versions: the lock, which pyproject.toml, conda and .venv agree with."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent.parent


def pins() -> list[Requirement]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_torch_is_first_and_exact():
    first = pins()[0]
    assert (first.name, str(first.specifier)) == ("torch", "==2.13.0")


def test_every_line_is_one_exact_version_without_a_local_part():
    for pin in pins():
        assert re.fullmatch(r"==[0-9][0-9a-z.]*", str(pin.specifier)), pin
    names = [canonicalize_name(pin.name) for pin in pins()]
    assert len(names) == len(set(names))


def test_every_dependency_of_pyproject_is_pinned_within_its_bounds():
    locked = {canonicalize_name(pin.name): str(pin.specifier)[2:] for pin in pins()}
    project = pyproject()["project"]
    lines = [*project["dependencies"], *pyproject()["build-system"]["requires"]]
    for extra in project["optional-dependencies"].values():
        lines += extra
    for line in lines:
        requirement = Requirement(line)
        if requirement.name == "dtcourse":
            assert requirement.extras <= set(project["optional-dependencies"])
            continue
        version = locked.get(canonicalize_name(requirement.name))
        assert version, f"{line} is not in requirements.lock: run `make lock`"
        assert requirement.specifier.contains(version), f"{line}, but the lock has {version}"


@pytest.mark.stands_on("tools/lock.py", "pyproject.toml")
def test_the_lock_is_what_tools_lock_would_write():
    done = subprocess.run(
        [sys.executable, "tools/lock.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_installed_is_what_is_locked():
    here = default_environment()
    for pin in pins():
        if pin.marker is None or pin.marker.evaluate(here):
            installed = metadata.version(pin.name).partition("+")[0]
            assert f"=={installed}" == str(pin.specifier), pin.name


@pytest.mark.parametrize("python", ["3.11.0", "3.14.0"])
def test_every_locked_version_admits_the_oldest_and_the_newest_python(python):
    """Debian 12's own Python is 3.11.2, for one, and some packages want a later 3.11."""
    for pin in pins():
        if pin.marker is None:
            wanted = metadata.metadata(pin.name)["Requires-Python"]
            assert not wanted or SpecifierSet(wanted).contains(python), f"{pin} wants {wanted}"


# conda's match specification, in its short form: name, or name=version, or name with comparisons.
CONDA_SPEC = re.compile(
    r"(?:[a-z0-9-]+::)?[a-z0-9_.-]+"
    r"(?:=[0-9][0-9a-z.*]*(?:=[0-9a-z_*]+)?"
    r"|(?:[<>=!]=|[<>])[0-9][0-9a-z.*]*(?:,(?:[<>=!]=|[<>])[0-9][0-9a-z.*]*)*)?"
)


def conda() -> tuple[list[str], list[str]]:
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    lines = [entry for entry in dependencies if isinstance(entry, str)]
    (pip,) = [entry["pip"] for entry in dependencies if isinstance(entry, dict)]
    return lines, pip


def test_every_conda_line_parses():
    lines, _ = conda()
    assert lines
    for line in lines:
        assert CONDA_SPEC.fullmatch(line), f"conda does not understand {line!r}"


@pytest.mark.parametrize("line", ["torch==2.13.0 ; extra", "python=", "pip >=", "numpy>=1,<"])
def test_a_conda_line_that_conda_refuses_would_be_noticed(line):
    assert not CONDA_SPEC.fullmatch(line)


def test_conda_installs_from_the_lock_and_nothing_else():
    lines, pip = conda()
    names = {re.split("[<>=!]", line)[0] for line in lines}
    assert names == {"python", "pip"}, "conda itself would choose other versions than the lock"
    assert pip == ["-r requirements.lock", "-e ."]


def test_conda_takes_a_python_that_the_course_supports():
    lines, _ = conda()
    (python,) = [line.partition("=")[2] for line in lines if line.startswith("python=")]
    assert Requirement(f"python{pyproject()['project']['requires-python']}").specifier.contains(
        python
    )
    assert python in (ROOT / "tools" / "setup").read_text()
