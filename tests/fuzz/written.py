"""An example as Python, to be pasted into a shell in the repository's root."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from tests.fuzz.running import Example

SCRIPT = """\
PYTHONPATH=. .venv/bin/python - <<'END'
from dtcourse.verify.chains import Block
from dtcourse.verify.programs import Forward, MicroBatch, Program
from tests.fuzz.running import tell

tell(
    {name!r},
    {program},
)
END"""


def shown(example: Example, said: str) -> str:
    """In words, what is wrong with it, and the script that says so again."""
    name, program = example
    return f"{name}\n{program}\n{said}\n\n{script(example)}"


def script(example: Example) -> str:
    """Runs it and prints what is wrong."""
    name, program = example
    return SCRIPT.format(name=name, program=written(program, "    "))


def written(value: Any, indent: str = "") -> str:
    """The expression that makes it, without what is the default anyway; what is long goes over several lines."""
    inner = indent + "    "
    if is_dataclass(value):
        opening, closing = f"{type(value).__name__}(", ")"
        parts = [
            f"{field.name}={written(getattr(value, field.name), inner)}"
            for field in fields(value)
            if getattr(value, field.name) != default_of(field)
        ]
    elif isinstance(value, tuple):
        opening, closing = "(", ",)" if len(value) == 1 else ")"
        parts = [written(item, inner) for item in value]
    elif isinstance(value, frozenset):
        return f"frozenset({sorted(value)})" if value else "frozenset()"
    else:
        return repr(value)
    line = opening + ", ".join(parts) + closing
    if len(indent + line) <= 100 and "\n" not in line:
        return line
    return (
        opening
        + "\n"
        + "".join(f"{inner}{part},\n" for part in parts)
        + indent
        + closing.strip(",")
    )


def default_of(field: Field) -> Any:
    """What a dataclass's field has where nobody says anything; nothing is equal to object()."""
    return object() if field.default is MISSING else field.default
