"""Write requirements.lock: the exact version of everything that pyproject.toml asks for, and no more.

It starts from pyproject's dependencies and extras and follows the requirements of each package that
is installed, for every platform that the course supports, so a package that only macOS needs is in
the lock although the lock was written on Linux. What is installed but asked for by nobody stays out.

    make lock                      # write it, from what is installed in .venv
    python tools/lock.py --check   # exit code 1 if what is installed asks for another one

A new dependency: add it to pyproject.toml, install it into .venv with pip, run `make lock`.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = (
    {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"},
    {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "aarch64"},
    {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64"},
)
PLATFORMS = [
    {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "os_name": "posix",
        **machine,
    }
    for python in PYTHONS
    for machine in MACHINES
]

# Pins that the machine which writes the lock may not have installed: name -> (version, marker).
ELSEWHERE = {
    "appnope": ("1.0.0", 'sys_platform == "darwin"'),  # ipykernel's, on macOS
    "aiohttp": ("3.14.5", 'python_version == "3.12"'),  # papermill's, and what that needs
    "aiohappyeyeballs": ("2.7.1", 'python_version == "3.12"'),
    "aiosignal": ("1.4.0", 'python_version == "3.12"'),
    "frozenlist": ("1.8.0", 'python_version == "3.12"'),
    "multidict": ("7.2.1", 'python_version == "3.12"'),
    "propcache": ("0.5.4", 'python_version == "3.12"'),
    "yarl": ("1.25.1", 'python_version == "3.12"'),
}

# torch chooses these itself: they differ between its builds for CPU, CUDA and ROCm.
TORCHS_OWN = ("nvidia-", "triton", "pytorch-triton", "cuda-")

# Each virtual environment brings its own.
INSTALLERS = {"pip", "setuptools", "wheel"}

HEADER = """\
# Exact versions of everything, for Python 3.11 to 3.14 on Linux and macOS. Written by `make lock`
# from pyproject.toml and what is installed; do not edit. torch is the first line because it is
# installed first, with PIP_ARGS; the libraries of its CUDA builds come with it and are not listed.
"""


def roots() -> Iterator[Requirement]:
    """What pyproject.toml asks for: dependencies, every extra, and what builds the package."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = pyproject["project"]
    lines = [*project["dependencies"], *pyproject["build-system"]["requires"]]
    for extra in project["optional-dependencies"].values():
        lines += extra
    for line in lines:
        requirement = Requirement(line)
        if requirement.name != project["name"]:
            yield requirement


def closure() -> dict[str, str]:
    """Every package that some platform needs: canonical name -> its line in the lock."""
    lines: dict[str, str] = {}
    missing: dict[str, str] = {}
    for platform in PLATFORMS:
        seen: set[tuple[str, str]] = set()
        todo = [(requirement, "", "pyproject.toml") for requirement in roots()]
        while todo:
            requirement, extra, asked_by = todo.pop()
            if requirement.marker and not requirement.marker.evaluate({**platform, "extra": extra}):
                continue
            name = canonicalize_name(requirement.name)
            if name in INSTALLERS or name.startswith(TORCHS_OWN):
                continue
            if name in ELSEWHERE:
                continue
            try:
                distribution = metadata.distribution(requirement.name)
            except metadata.PackageNotFoundError:
                missing[name] = f"{name} (for {asked_by}, {platform['sys_platform']})"
                continue
            version = distribution.version.partition("+")[0]  # 2.13.0+cpu is 2.13.0 for everybody
            lines[name] = f"{distribution.metadata['Name']}=={version}"
            for wanted in ("", *requirement.extras):
                if (name, wanted) not in seen:
                    seen.add((name, wanted))
                    children = (Requirement(line) for line in distribution.requires or ())
                    todo += [(child, wanted, requirement.name) for child in children]
    if missing:
        sys.exit(
            "These are needed and not installed, so no version can be written down: "
            f"{', '.join(sorted(missing.values()))}. Install them, or list them in ELSEWHERE."
        )
    for name, (version, marker) in ELSEWHERE.items():
        lines[name] = f"{name}=={version} ; {marker}"
    return lines


def text() -> str:
    """The whole file: torch first, then by name."""
    lines = closure()
    first = lines.pop("torch")
    return HEADER + "\n".join([first, *(lines[name] for name in sorted(lines))]) + "\n"


def main() -> None:
    """Write the lock, or with --check say what is out of date."""
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    wanted = text()
    if not sys.argv[1:]:
        LOCK.write_text(wanted)
        print(f"{LOCK.name}: {len(wanted.splitlines()) - 3} packages")
        return
    there = set(LOCK.read_text().splitlines())
    needed = set(wanted.splitlines())
    for line in sorted(needed - there):
        print(f"+ {line}")
    for line in sorted(there - needed):
        print(f"- {line}")
    if LOCK.read_text() != wanted:
        sys.exit("requirements.lock is not what pyproject.toml and .venv ask for: run `make lock`.")


if __name__ == "__main__":
    main()
