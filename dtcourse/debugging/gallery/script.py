"""A script of the gallery, read as text: what it says of itself, and its repaired twin. Nothing of it runs here."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS = ("hangs", "raises", "diverges", "silently wrong", "leaks", "slow")
PARTS = ("Cause:", "Found by:", "Repair:")
_ASKED: dict[str, type | tuple[type, ...]] = {
    "RANKS": int,
    "KIND": str,
    "TOOL": str,
    "NAMES": tuple,
    "REPAIR": list,
}


@dataclass(frozen=True)
class Script:
    """What a script says of itself.

    symptom:     the first line of its docstring, as a person sees it
    explanation: cause, what finds it, repair
    ranks, kind: on how many it runs; how it fails, one of KINDS
    tool, names: the one tool that finds it, and what that tool's sentence must name
    repair:      (wrong text, right text), exact edits of this very file
    """

    path: Path
    text: str
    symptom: str
    explanation: str
    ranks: int
    kind: str
    tool: str
    names: tuple[str, ...]
    repair: list[tuple[str, str]]
    has_reference: bool

    @property
    def name(self) -> str:
        """The file's, without its ending."""
        return self.path.stem

    @property
    def repaired(self) -> str:
        """The text of the twin: the edits made, REPAIR itself left as it is."""
        before, edits, after = _around_repair(self.text)
        for wrong, right in self.repair:
            before, after = before.replace(wrong, right), after.replace(wrong, right)
        return before + edits + after


def read(path: str | Path) -> Script:
    """Reads a script of the gallery.

    Raises ValueError that lists all in which it is not as the contract (gallery/README.md) has it.
    """
    path = Path(path)
    text = path.read_text()
    tree = ast.parse(text, str(path))
    said, faults = _constants(tree)
    docstring = ast.get_docstring(tree) or ""
    symptom, _, explanation = docstring.partition("\n")
    faults += [f"its docstring has no {part!r}" for part in PARTS if part not in explanation]
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    if not symptom or "step" not in functions:
        faults.append("it has a docstring that begins with the symptom, and a function step()")
    if not faults:
        faults = _faults_of(said, text)
    if faults:
        raise ValueError(f"{path.name} is no script of the gallery: {'; '.join(faults)}")
    return Script(
        path.resolve(),
        text,
        symptom,
        explanation.strip(),
        said["RANKS"],
        said["KIND"],
        said["TOOL"],
        said["NAMES"],
        [tuple(edit) for edit in said["REPAIR"]],
        "reference" in functions,
    )


def _constants(tree: ast.Module) -> tuple[dict[str, Any], list[str]]:
    """The values that a script gives, and what is wrong with them."""
    said: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in _ASKED:
                try:
                    said[name] = ast.literal_eval(node.value)
                except ValueError:
                    return said, [f"{name} is no plain value"]
    wrong = [name for name, kind in _ASKED.items() if not isinstance(said.get(name), kind)]
    return said, [f"{name} is {said.get(name)!r}" for name in wrong]


def _faults_of(said: dict[str, Any], text: str) -> list[str]:
    faults = []
    if not 2 <= said["RANKS"] <= 4:
        faults.append(f"RANKS is 2 to 4, not {said['RANKS']}")
    if said["KIND"] not in KINDS:
        faults.append(f"KIND is one of {', '.join(KINDS)}, not {said['KIND']!r}")
    if not said["NAMES"]:
        faults.append("NAMES names a rank, a line, a parameter or a tensor")
    if not said["REPAIR"]:
        faults.append("REPAIR has an edit or more")
    before, _, after = _around_repair(text)
    for wrong, _right in said["REPAIR"]:
        times = before.count(wrong) + after.count(wrong)
        if times != 1:
            faults.append(f"what REPAIR replaces occurs once, and {wrong!r} {times} times")
    return faults


def _around_repair(text: str) -> tuple[str, str, str]:
    """The text before REPAIR, REPAIR, and the text after it."""
    lines = text.splitlines(keepends=True)
    for node in ast.parse(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(one, ast.Name) and one.id == "REPAIR" for one in targets):
            first, last = node.lineno - 1, node.end_lineno or node.lineno
            return "".join(lines[:first]), "".join(lines[first:last]), "".join(lines[last:])
    return text, "", ""
