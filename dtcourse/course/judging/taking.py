"""What an exercise takes from a student's notebook: the named functions and what those need, nothing else.

That is: definitions, imports and assignments of the names that they use, at any depth; what fills a table (append,
update, item by item, by a decorator), setattr. Not taken is a call of the student's own functions (`fill()`): a trial
looks the same. So a loop for ever in a scratch cell does no harm, cells may stand in any order, and a deleted check
cell is no loss. The code is taken as text and syntax (statements.py); nothing of it is executed here.
"""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from dtcourse.course.judging import statements
from dtcourse.course.judging.requirements import Refused, Unfinished, unwritten
from dtcourse.course.judging.statements import Statement
from dtcourse.course.notebook import Notebook

# An answer has no business with these: they lead to the frames, modules and objects of what measures it.
_CHECKS_FILES = r"dtcourse\.course(\.|$)|course/(checks|judging)"
_MACHINERY_MODULES = {
    "ctypes",
    "gc",
    "importlib",
    "inspect",
    "runpy",
    "faulthandler",
    "imp",
    "pdb",
    "_thread",
}
_MACHINERY_NAMES = {
    "exec",
    "eval",
    "compile",
    "globals",
    "__import__",
    "__builtins__",
    "__loader__",
    "breakpoint",
}
_MACHINERY_ATTRIBUTES = {
    "_getframe",
    "_current_frames",
    "currentframe",
    "walk_stack",
    "settrace",
    "setprofile",
    "__globals__",
    "__builtins__",
    "__code__",
    "__closure__",
    "__subclasses__",
    "f_back",
    "f_locals",
    "f_globals",
    "tb_frame",
}


@dataclass(frozen=True)
class Piece:
    """One top-level statement of an answer: its text, the number of its cell, its line there."""

    cell: int
    line: int
    code: str


def take(notebook: Notebook, names: tuple[str, ...]) -> list[Piece]:
    """The statements that define `names`, with all that they use, in the notebook's order.

    Raises Unfinished if a name is not defined anywhere, and says which cells could not be read; and if all of them
    still stand as they were given out, so that there is nothing to run. Raises Refused if the code reaches for the
    checks or for what measures it.
    """
    found: list[Statement] = []
    unreadable = []
    for number, cell in enumerate(notebook["cells"], 1):
        if cell["cell_type"] != "code":
            continue
        try:
            found += statements.read(number, cell["source"])
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            where = f" (line {error.lineno}: {error.msg})" if isinstance(error, SyntaxError) else ""
            unreadable.append(f"cell {number}{where}")
    statements.changed_by_decorators(found)

    known = set().union(*(one.bound for one in found))
    missing = [name for name in names if name not in known]
    if missing:
        said = (
            f"`{missing[0]}` is not in the notebook: was its cell deleted, or the function renamed?"
        )
        if unreadable:
            said = f"`{missing[0]}` was not found, and Python cannot read {', '.join(unreadable)}."
        raise Unfinished(said + " `dtcourse start` shows where a fresh copy comes from.")

    latest = {name: one.tree for one in found for name in one.bound & set(names)}
    if all(map(_is_unwritten, latest.values())):
        raise unwritten(", ".join(f"`{name}`" for name in names))

    needed = set(names)
    while True:
        more = set().union(*(one.used for one in found if one.bound & needed)) & known
        if more <= needed:
            break
        needed |= more
    pieces = []
    imported = set().union(*(statements.imports(one.tree) for one in found))
    imported |= statements.aliases([one.tree for one in found], imported)
    for one in found:
        future = isinstance(one.tree, ast.ImportFrom) and one.tree.module == "__future__"
        if isinstance(one.tree, ast.Expr) and one.bound <= imported:
            continue  # sys.path.append("..") changes what no answer has made
        if one.bound & needed or "*" in one.bound or future:
            _refuse(one.tree, imported)
            pieces.append(Piece(one.cell, one.tree.lineno, one.code))
    return pieces


def _is_unwritten(statement: ast.stmt) -> bool:
    """Whether a function, or each method of a class, holds a docstring and `raise NotImplementedError` alone."""
    if isinstance(statement, ast.ClassDef):
        methods = [one for one in statement.body if isinstance(one, ast.FunctionDef)]
        return bool(methods) and all(map(_is_unwritten, methods))
    if not isinstance(statement, ast.FunctionDef):
        return False
    body = statement.body[1:] if ast.get_docstring(statement) is not None else statement.body
    return len(body) == 1 and ast.unparse(body[0]).startswith("raise NotImplementedError")


def _refuse(statement: ast.stmt, imported: set[str]) -> None:
    """Refuse what an honest answer never does. Not a wall by itself: the judge is in another process.

    imported: names that stand for modules, and for what was taken out of them
    """
    written = statements.ATTRIBUTES.visit(ast.parse(ast.unparse(statement)))
    imported = imported | statements.aliases(list(ast.walk(written)), imported)
    for node, own in with_arguments(written, imported):
        if isinstance(node, ast.Import):
            for alias in node.names:
                _refuse_module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            harmless = module == "dtcourse.course" and all(
                alias.name in ("check", "show", "expect_error") for alias in node.names
            )
            if not harmless:
                _refuse_module(module)
                for alias in node.names:
                    _refuse_module(f"{module}.{alias.name}")
                    _refuse_attribute(alias.name, module)
        elif isinstance(node, ast.Name) and node.id in _MACHINERY_NAMES:
            raise Refused(f"the answer uses {node.id}, which an answer has no need of")
        elif isinstance(node, ast.Call):
            _refuse_call(node, imported - own)
        elif isinstance(node, ast.Attribute):
            taken_out = statements.base(node) in imported  # model.modules() is everybody's
            _refuse_attribute(node.attr, "sys" if taken_out else "")
            if "dtcourse.course" in ast.unparse(node):
                raise Refused("the answer reaches for the checks (dtcourse.course)")
            changes = isinstance(node.ctx, (ast.Store, ast.Del))
            if changes and statements.base(node) in imported - own:
                raise Refused(f"the answer changes a module ({ast.unparse(node)} = ...)")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.search(_CHECKS_FILES, node.value):
                raise Refused("the answer names the checks' files")
            if node.value.isprintable() and " " not in node.value:
                for part in node.value.split("."):  # operator.attrgetter("f_back.f_locals")
                    _refuse_attribute(part, "")


def with_arguments(tree: ast.AST, imported: set[str]) -> Iterator[tuple[ast.AST, set[str]]]:
    """Each node, with the arguments of the functions around it: under these names it meets no module.

    An argument is known in the function's body alone, and there not where the body imports the name, takes what it
    means out of a module, or declares it global.
    """
    nodes: deque[tuple[ast.AST, set[str]]] = deque([(tree, set())])
    while nodes:
        node, own = nodes.popleft()
        yield node, own
        body: list[ast.AST] = []
        inside = own
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            body = [node.body] if isinstance(node, ast.Lambda) else [*node.body]
            args = ast.iter_child_nodes(
                node.args
            )  # their defaults are among them, and mean what is around
            inside = own | {each.arg for each in args if isinstance(each, ast.arg)}
            within = [each for part in body for each in ast.walk(part)]
            taken_out = statements.aliases(within, imported - inside)
            for each in within:
                if isinstance(each, (ast.Import, ast.ImportFrom)):
                    taken_out |= statements.imports(each)
                elif isinstance(each, ast.Global):
                    taken_out |= {*each.names}
            inside -= taken_out
        for child in ast.iter_child_nodes(node):
            nodes.append((child, inside if any(child is part for part in body) else own))


def _refuse_attribute(name: str, of: str) -> None:
    """of: the module that it is taken out of, as far as that is known; "sys" for any"""
    if name in _MACHINERY_ATTRIBUTES or (name == "modules" and of == "sys"):
        raise Refused(f"the answer uses {name}, which leads into what measures it")
    if of == "builtins" and name in _MACHINERY_NAMES:
        raise Refused(f"the answer uses {name}, which an answer has no need of")


def _refuse_call(call: ast.Call, imported: set[str]) -> None:
    called = ast.unparse(call.func)
    if call.args and statements.base(call.args[0]) in imported:
        if called in ("setattr", "delattr", "vars"):
            raise Refused(f"the answer changes a module ({ast.unparse(call)})")
        # where its name was written out, it is an attribute by now
        if called == "getattr" and not _is_a_choice(call):
            raise Refused(
                f"the answer takes something out of a module by a name that it puts together ({ast.unparse(call)}): "
                "write that name out"
            )
    # Its own process it may end (and learns that from a sentence); any other is none of its business.
    own = r"kill\((os\.)?getpid\(\)"
    if called.rpartition(".")[2] in ("kill", "killpg") and not re.search(own, ast.unparse(call)):
        raise Refused(f"the answer sends a signal to another process ({ast.unparse(call)})")


def _is_a_choice(call: ast.Call) -> bool:
    """Whether getattr chooses among dtypes (getattr(torch, f"float{n}")), or operations of a reduction."""
    if len(call.args) < 2:
        return False
    thing, name, *_ = call.args
    if isinstance(thing, ast.Attribute):
        return thing.attr == "ReduceOp"
    first = getattr(name, "left", None)
    if isinstance(name, ast.JoinedStr) and name.values:
        first = name.values[0]
    begins = first.value if isinstance(first, ast.Constant) else ""
    return ast.unparse(thing) == "torch" and begins in ("float", "bfloat", "int", "uint", "complex")


def _refuse_module(name: str) -> None:
    if name.partition(".")[0] in _MACHINERY_MODULES:
        raise Refused(f"the answer imports {name}, which an answer has no need of")
    if name.startswith("dtcourse.course"):
        raise Refused(f"the answer imports {name}: the checks are not part of an answer")
