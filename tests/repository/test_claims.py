"""tools/claims.py finds the sentences that a reader of all lessons has to compare."""

from __future__ import annotations

import importlib.util
import json

import pytest


@pytest.fixture(scope="module")
def claims(root):
    spec = importlib.util.spec_from_file_location("claims", root / "tools" / "claims.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lesson(tmp_path, text):
    cell = {"cell_type": "markdown", "id": "here", "metadata": {}, "source": text.splitlines(True)}
    path = tmp_path / "01-lesson.ipynb"
    path.write_text(json.dumps({"cells": [cell]}))
    return path


def test_rules_and_numbers_of_machines_are_found_and_nothing_else(claims, tmp_path):
    text = """## Always a heading

A ring is never the fastest. It sends 12 messages. Is it always so?

| card | rate |
|---|---|
| one H100 | 50 GB/s |

An emulated link carries 50 GB/s."""
    assert list(claims.claims(lesson(tmp_path, text))) == [
        ("rule", "here", "A ring is never the fastest."),
        ("machine", "here", "| one H100 | 50 GB/s |"),
    ]


def code(name, text, *tags):
    output = {"output_type": "stream", "name": "stdout", "text": text.splitlines(True)}
    return {
        "cell_type": "code",
        "id": name,
        "metadata": {"tags": list(tags)},
        "source": ["SIZE = 480"],
        "outputs": [output],
    }


def test_numbers_that_are_compared_nowhere_are_marked(claims, tmp_path):
    path = lesson(
        tmp_path, "It takes 3.25 ms of 1.50. It sends 1,280 bytes in 480 parts and 16 steps.\n"
    )
    cells = json.loads(path.read_text())["cells"]
    cells += [
        code("here-timed", "3.25 1.50 1,280 480 16\n", claims.NOT_COMPARED),
        code("everywhere", "1.50 1,280"),
    ]
    path.write_text(json.dumps({"cells": cells}))
    assert list(claims.claims(path)) == [
        ("one run", "here", "It takes 3.25 ms of 1.50. **(3.25 of `here-timed`)**"),
    ]


def test_what_was_written_by_hand_is_kept(claims, tmp_path, monkeypatch):
    page = tmp_path / "claims.md"
    page.write_text("by hand\n" + claims.BEGIN + "@@")
    monkeypatch.setattr(claims, "PAGE", page)
    claims.main()
    kept, made = page.read_text().split(claims.BEGIN)
    assert kept == "by hand\n" and "| 01 |" in made and "@@" not in made
