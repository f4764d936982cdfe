"""Names of the course that no answer has use for: those of its launching, of its books, and private ones.

forbidden.py follows each name of an answer to its full one. Modules import one another, so that has many forms
(dtcourse.collectives.p2p.traffic is dtcourse.collectives.traffic): it is followed on through the course's own files,
which are read and not imported. What a text does not show is seen where it runs (books.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from dtcourse.course.places import PACKAGE

_EMULATION = {"Account", "EmulatedDevice", "EmulatedNetwork", "account", "now", "sleep"}
_EVENTS = {"Event", "KINDS", "Timeline", "instant", "now", "span", "timeline_of"}
_MESSAGES = {
    *("batch", "exchange", "in_batches", "irecv", "isend"),
    *("rank", "recv", "send", "size", "wait_any"),
}
# Modules with all that an answer may use of them and of what lies inside. None: what the package exports.
_ALLOWED: dict[str, set[str] | None] = {
    "dtcourse.collectives.p2p": _MESSAGES,
    "dtcourse.collectives.traffic": {"counting", "phase"},
    "dtcourse.collectives.wire.arrivals": {"wait_any"},  # as p2p has it
    "dtcourse.collectives.wire": set(),
    "dtcourse.emulation": _EMULATION,
    "dtcourse.events": _EVENTS,
    "dtcourse.launch": None,
}


def refused(name: str) -> str:
    """A sentence for a full name (dtcourse.events.add) that an answer has no use for; empty for all others."""
    module, inside = followed(name)
    if private := [part for part in inside if part.startswith("_") and not _is_plain(part)]:
        return f"the answer uses {name}: {private[0]} is the course's own, and no answer's"
    for package, allowed in _ALLOWED.items():
        if inside and f"{module}.".startswith(package + "."):
            usual = _exported(package) if allowed is None else allowed
            named = _exported(module) if inside[0] == "*" else {inside[0]}
            if named and named <= usual:
                return ""  # a package around it may allow less
            rest = f"; an answer may use {', '.join(sorted(usual))} of it" if usual else ""
            return f"the answer uses {name}, which is a part of what measures it{rest}"
    return ""


def followed(name: str) -> tuple[str, tuple[str, ...]]:
    """(module, the names that are taken out of it) for a full name of the course."""
    module, inside = "", tuple(name.split("."))
    while inside:
        inner = f"{module}.{inside[0]}".strip(".")
        if _file(inner):
            module, inside = inner, inside[1:]
        # its exports keep their short names
        elif module != "dtcourse.launch" and (source := _imported(module).get(inside[0])):
            module, inside = "", (*source.split("."), *inside[1:])
        else:
            break
    return module, inside


def _is_plain(name: str) -> bool:
    """Whether it leads nowhere: a text, or what a class is called by."""
    return name in {
        *("__doc__", "__file__", "__name__", "__version__"),
        *("__call__", "__enter__", "__exit__", "__init__", "__len__"),
    }


@cache
def _file(module: str) -> Path | None:
    path = PACKAGE.parent.joinpath(*module.split("."))
    found = path / "__init__.py" if path.is_dir() else path.with_name(path.name + ".py")
    return found if found.is_relative_to(PACKAGE) and found.is_file() else None


@cache
def _imported(module: str) -> dict[str, str]:
    """{name: what of the course it stands for} in a module."""
    found = {}
    for node in _statements(module):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dtcourse"):
            for alias in node.names:
                source, own = (
                    f"{node.module}.{alias.name}",
                    f"{module}.{alias.asname or alias.name}",
                )
                if source != own:  # of a package: its own module
                    found[alias.asname or alias.name] = source
    return found


@cache
def _exported(module: str) -> set[str]:
    """What stands in its __all__."""
    for node in _statements(module):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def _statements(module: str) -> Iterator[ast.stmt]:
    file = _file(module)
    yield from ast.parse(file.read_text(encoding="utf-8")).body if file else ()
