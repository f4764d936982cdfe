"""What a run found, as a file: frameworks/records/NAME.json is committed, build/frameworks/NAME.json is this machine's.

A record belongs to the script, the job, the pins and the command that it was made with: it has their hashes, and is
stale where one of them has changed. A test fails on a committed record that is stale.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import shlex
import tokenize
from pathlib import Path
from typing import Any

from dtcourse.course import places
from dtcourse.course.frameworks import catalogue as frameworks
from dtcourse.course.frameworks.catalogue import Framework

Record = dict[str, Any]


def committed(framework: Framework) -> Path:
    """The file of the record that the repository has."""
    return frameworks.folder() / "records" / f"{framework.name}.json"


def own(framework: Framework) -> Path:
    """The file of this machine's record."""
    return places.home() / "build" / "frameworks" / f"{framework.name}.json"


def read(file: Path) -> Record | None:
    """A record, if there is one.

    Raises ValueError where the file holds something else.
    """
    if not file.exists():
        return None
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is no record: {error}") from None
    if not isinstance(found, dict) or "hashes" not in found or "losses" not in found:
        raise ValueError(f"{file} is no record: it has no losses and hashes")
    return found


def latest(framework: Framework) -> Record | None:
    """This machine's record, unless it is stale and the repository has one; else the repository's."""
    here, there = read(own(framework)), read(committed(framework))
    return here if here and not (there and stale(here, framework)) else there


def write(record: Record, file: Path) -> None:
    """All of it or nothing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(file.name + ".part")
    partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    partial.replace(file)


def hashes(framework: Framework) -> dict[str, str]:
    """Of what decides what a run finds: the job, the script, the pins where it has some, and how it is run.

    That is its command and its environment's variables; and what has been built before, with what builds it.
    """
    files = {"job": frameworks.folder() / "job.py", "script": framework.script_file}
    if framework.pins_file:
        files["pins"] = framework.pins_file
    found = {part: hashlib.sha256(file.read_bytes()).hexdigest() for part, file in files.items()}
    way = json.dumps([framework.command, framework.environment, framework.prepare], sort_keys=True)
    builder = b""
    if framework.prepare:
        builder = (frameworks.folder() / shlex.split(framework.prepare)[0]).read_bytes()
    return found | {"command": hashlib.sha256(way.encode() + builder).hexdigest()}


def stale(record: Record, framework: Framework) -> str:
    """What has changed since the record was made, such as "script and pins"; empty where nothing has."""
    now, then = hashes(framework), record["hashes"]
    return " and ".join(part for part in {**now, **then} if now.get(part) != then.get(part))


def lines_of_code(source: str) -> int:
    """Lines of a Python file that hold code: no blank ones, no comments, no docstrings."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if ast.get_docstring(node) is not None and first is not None:
                docstrings |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    silent |= {tokenize.ENCODING, tokenize.ENDMARKER}
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in silent:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - docstrings)
