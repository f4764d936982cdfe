"""Whoever counts an answer's bytes, messages, times and memory is watched while it runs,
and nobody has to be listed."""

import ast
import dataclasses
import gc
import importlib
import sys
import time
import types
from functools import cache

import pytest

from dtcourse.course.judging import runs, tampering
from dtcourse.course.judging.framework import Refused
from dtcourse.course.places import PACKAGE
from dtcourse.launch import standby, template
from tests import kept_ranks

# What a check takes its numbers from: these modules are asked by the others of the course.
_BOOKS = ("dtcourse.collectives.traffic", "dtcourse.events")


def _imports(tree):
    """{name: module} of what a file imports from the course, at any depth."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dtcourse"):
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


@cache
def _who_counts():
    """Modules that write to the books, and those that checks measure with."""
    found = set(_BOOKS)
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        text = path.read_text(encoding="utf-8")
        if ".checks." not in name and not any(book.rpartition(".")[2] in text for book in _BOOKS):
            continue
        tree = ast.parse(text)
        imported = _imports(tree)
        if name.startswith("dtcourse.course."):
            if ".checks." in name:
                found |= {m.rpartition(".")[0] for m in imported.values() if ".course" not in m}
            continue
        called = {
            imported.get(node.func.value.id)
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        }
        if called & set(_BOOKS):
            found.add(name)
    return sorted(m for m in found if not m.startswith("dtcourse.plots") and m != "dtcourse")


def _defines_a_function(name):
    path = PACKAGE.parent.joinpath(*name.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef) for node in ast.walk(tree))


def _first_function(module):
    """(holder, name) of a function that the module defines, in a class or by itself."""
    for name, thing in vars(module).items():
        if isinstance(thing, types.FunctionType) and thing.__module__ == module.__name__:
            return module, name
    for thing in vars(module).values():
        if isinstance(thing, type) and thing.__module__ == module.__name__:
            for name, member in vars(thing).items():
                if isinstance(member, types.FunctionType):
                    return thing, name
    return None


def step(answer):
    return answer()


def test_who_counts_is_found():
    found = _who_counts()
    for name in (
        "collectives.wire.observers",
        "collectives.backend.process_group",
        "collectives.wire.work",
    ):
        assert f"dtcourse.{name}" in found
    assert "dtcourse.profiling.memory_tracker" in found and len(found) > 15


def test_an_answer_that_changes_who_counts_is_noticed(monkeypatch):
    unnoticed = []
    for name in filter(_defines_a_function, _who_counts()):  # found when it runs: it takes seconds
        place = _first_function(importlib.import_module(name))
        assert place is not None, name
        with monkeypatch.context() as patched:

            def tamper(place=place, patched=patched):
                patched.setattr(*place, lambda *args, **kwargs: 0)

            changed = runs.guarded(step, (tamper,), ())["changed"]
        if not any(one.startswith(name) and one.endswith(place[1]) for one in changed):
            unnoticed.append((name, changed))
    assert not unnoticed


@pytest.mark.parametrize("kind", [property, types.FunctionType, classmethod, type])
def test_no_kind_of_member_is_left_out(kind, monkeypatch):
    from dtcourse.collectives.counted import Traffic
    from dtcourse.collectives.traffic import Counter

    where = {
        property: (Counter, "rows", property(lambda self: [])),
        classmethod: (Traffic, "from_ranks", classmethod(lambda cls, records: None)),
        types.FunctionType: (time, "monotonic", lambda: 0.0),
        type: (sys.modules[Traffic.__module__], "Traffic", type("Traffic", (), {})),
    }[kind]
    assert runs.guarded(step, (lambda: monkeypatch.setattr(*where),), ())["changed"]


def test_what_is_loaded_meanwhile_is_looked_at_too(monkeypatch):
    module = types.ModuleType("dtcourse.loaded_late")
    module.Row = dataclasses.make_dataclass(
        "Row", ["n"], frozen=True, namespace={"__module__": module.__name__}
    )

    def load(function):
        module.count, module.kind = (
            function,
            types.FunctionType,
        )  # which has a __code__ that is none
        monkeypatch.setitem(sys.modules, module.__name__, module)

    assert runs.guarded(step, (lambda: load(importlib.import_module),), ())["changed"] == []
    monkeypatch.delitem(sys.modules, module.__name__)
    assert runs.guarded(step, (lambda: load(lambda: 0),), ())["changed"] == [
        "dtcourse.loaded_late.count"
    ]


def test_who_changes_nothing_is_not_suspected():
    def honest():
        from dtcourse.profiling import memory_tracker  # noqa: F401

        return 3

    assert runs.guarded(step, (honest,), ()) == {"value": 3, "changed": [], "called": []}


def test_what_was_remembered_is_what_it_is_held_against(monkeypatch):
    """As where ranks are split off: what is changed between that and the first look is noticed too."""
    from dtcourse.collectives.traffic import Counter

    monkeypatch.setattr(tampering, "_remembered", {})
    honest = lambda: 0  # noqa: E731
    tampering.remember()
    monkeypatch.setattr(Counter, "rows", property(lambda self: []))
    assert runs.guarded(step, (honest,), ())["changed"] == [
        "dtcourse.collectives.traffic.Counter.rows"
    ]
    tampering.remember()
    assert not runs.guarded(step, (honest,), ())["changed"]


def test_the_clock_that_launch_gives_an_emulated_rank_is_no_change(monkeypatch):
    """Ranks are split off from a process without one, which has taken down what it holds."""
    from dtcourse.emulation import EmulatedNetwork, clock
    from dtcourse.emulation.cluster import EmulatedCluster

    def step():
        return 1

    monkeypatch.setattr(tampering, "_remembered", {})
    tampering.remember()
    try:
        clock.install(EmulatedCluster(network=EmulatedNetwork()).start(0))
        assert runs.guarded(step, (), ()) == {"value": 1, "changed": [], "called": []}
    finally:
        clock.install(None)


@pytest.mark.skipif(not template.POSSIBLE, reason="ranks are kept on Linux only")
def test_a_change_between_two_launches_of_one_rank_is_noticed():
    """It is made by what is left over when the rank, whose launches share it, cleans up after the first one."""

    def leaves_a_trap():
        from dtcourse.collectives import traffic

        class Trap:
            def __del__(self, module=traffic):
                module.sent = lambda *_: None

        trap = Trap()
        trap.itself = trap
        gc.collect()  # it is among the oldest objects now, which no collection looks at before the rank cleans up
        return 0

    assert kept_ranks.come_from_template()
    alone = {"init": False}
    with standby.keeping():
        assert runs.attempt(step, {"answer": leaves_a_trap}, 1, (), alone).values == [0]
        with pytest.raises(
            Refused, match=r"changes what measures it \(dtcourse.collectives.traffic.sent"
        ):
            runs.attempt(step, {"answer": int}, 1, (), alone)
        assert runs.attempt(step, {"answer": int}, 1, (), alone).values == [0], "of a fresh rank"
