"""Which Ray is installed: nowhere one below 2.52.0, whose job API runs what any web page sends it (CVE-2025-62593)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.version import Version

from dtcourse.launch.cluster import ray_connection

LOWEST = Version("2.52.0")
PIN = re.compile(
    r"(?<![\w.-])ray(?:\[[\w, -]*\])?[ \\]*(?:===?|~=|>=)[ \\]*v?(\d+(?:\.\d+)*)", re.I
)
WHERE = (
    "*.toml",
    "*.lock",
    "*.md",
    "*.yml",
    "docs/*.md",
    "frameworks/**/*",
    "containers/**/*",
    "lessons/*.ipynb",
)
CODE = ("dtcourse/**/*.py", "tests/**/*.py", "tools/**/*.py", "benchmarks/**/*.py")
ANOTHERS = {"frameworks/pins/flower.txt"}  # flwr[simulation] itself asks for one exact Ray


def pinned(root: Path) -> dict[str, set[Version]]:
    """{file: the versions of Ray that it names to be installed}."""
    found = {}
    for path in sorted({path for pattern in WHERE + CODE for path in root.glob(pattern)}):
        if path.is_file() and path != Path(__file__).resolve():
            versions = set(map(Version, PIN.findall(path.read_text(errors="replace"))))
            if versions:
                found[path.relative_to(root).as_posix()] = versions
    return found


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('ray = ["ray==2.51.1"]', "2.51.1"),
        ('pip install "ray[default] >= 2.9"', "2.9"),
        ("ray~=2.51", "2.51"),
        ("x-ray==1.0, array==2.0, ray_lightning==3.0, ray = 5", None),
    ],
)
def test_a_pin_is_found_however_it_is_written(tmp_path, text, version):
    (tmp_path / "pyproject.toml").write_text(text)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "ray.md").write_text(text)
    files = {"pyproject.toml", "docs/ray.md"} if version else set()
    assert pinned(tmp_path) == {name: {Version(version)} for name in files}


def test_no_ray_that_is_named_anywhere_is_below_the_one_that_is_mended(root):
    found = pinned(root)
    assert {"pyproject.toml", "docs/ray.md", "frameworks/pins/ray.txt", *ANOTHERS} <= set(found)
    low = {name: versions for name, versions in found.items() if min(versions) < LOWEST}
    assert not low


def test_one_version_is_named_everywhere(root):
    """What a student installs is what the tests try, and what the frameworks' runs were measured with."""
    ours = {Version(ray_connection.PACKAGE.removeprefix("ray=="))}
    others = {name: versions for name, versions in pinned(root).items() if name not in ANOTHERS}
    assert {name: versions for name, versions in others.items() if versions != ours} == {}
