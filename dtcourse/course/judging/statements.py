"""A notebook's cell as statements: what each defines or changes, and what it uses. Nothing is executed."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

# Methods by which Python's own containers are changed.
CHANGES = {
    *("append", "appendleft", "extend", "insert", "add", "update", "setdefault", "register"),
    *("pop", "popleft", "popitem", "remove", "discard", "clear", "sort", "reverse"),
}
DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# In which an assignment expression (:=) binds a name of their own, or many times.
SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class Statement:
    """One at the top level of a cell: its text, the names that it defines or changes, and those that it uses."""

    cell: int
    tree: ast.stmt
    code: str
    bound: set[str]
    used: set[str] = field(default_factory=set)


def read(cell: int, source: str) -> list[Statement]:
    """Those of a cell. SyntaxError where Python cannot read it."""
    source = python_of(source)
    found = []
    for tree in ast.parse(source).body:
        # print(n := 4) would print again: of such a statement n = 4 alone is of use to others.
        for one in _assignments(tree.value) if isinstance(tree, ast.Expr) else ():
            assigned = ast.Assign([one.target], one.value, lineno=one.lineno, col_offset=0)
            found.append(
                Statement(cell, assigned, ast.unparse(assigned), {one.target.id}, used(one))
            )
        found.append(Statement(cell, tree, _segment(tree, source), bound(tree), used(tree)))
    return found


def python_of(source: str) -> str:
    """A cell as Python reads it, line for line: `pass` for magics, shell commands and questions (torch?).

    IPython says what these are: a line may begin with % in the middle of an expression, and in a text with anything.
    """
    try:
        ast.parse(source)
    except SyntaxError:
        from IPython.core.inputtransformer2 import TransformerManager

        source = re.sub(r"\A(\s*)%%.*", r"\1", source)  # %%time is about the lines that follow
        first = re.match(r"\s*\n|", source)
        above = first[0].count("\n") if first else 0  # IPython takes these away
        lines = TransformerManager().transform_cell(source)
        ipython = r"^(\s*)get_ipython\(\)\.(run_line_magic|run_cell_magic|system|getoutput)\(.*$"
        return "\n" * above + re.sub(ipython, r"\1pass", lines, flags=re.MULTILINE)
    return source


def bound(statement: ast.stmt) -> set[str]:
    """The names that a top-level statement defines or changes."""
    if isinstance(statement, DEFINED):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
    if isinstance(statement, ast.Expr):
        apart = _assignments(statement)
        assigned = {one.target.id for one in _walrus(statement) if one not in apart}
        return assigned | changed_by_call(statement.value)
    found: set[str] = set()
    for node in ast.iter_child_nodes(statement):
        if isinstance(node, ast.stmt):
            found |= bound(node) | {one.target.id for one in _walrus(node)}
        elif isinstance(node, (ast.ExceptHandler, ast.match_case)):
            for inner in node.body:
                found |= bound(inner)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            found |= targets(node.optional_vars)
        elif isinstance(node, ast.expr):
            found |= {one.target.id for one in _walrus(node)}
    for target in _assigned(statement):
        found |= targets(target)
    return found


def _assigned(statement: ast.AST) -> list[ast.expr]:
    """What stands left of =, or after `del`, which takes an item away: whole names are left for who needs them."""
    if isinstance(statement, ast.Assign):
        return statement.targets
    if isinstance(statement, ast.Delete):
        return [target for target in statement.targets if not isinstance(target, ast.Name)]
    if isinstance(statement, (ast.AugAssign, ast.AnnAssign, ast.For)):
        return [statement.target]
    return []


def changed_by_call(call: ast.expr) -> set[str]:
    """What T.append(1) and setattr(T, "a", 1) change: T."""
    if not isinstance(call, ast.Call):
        return set()
    if isinstance(call.func, ast.Attribute) and call.func.attr in CHANGES:
        return targets(call.func.value)
    if isinstance(call.func, ast.Name) and call.func.id in ("setattr", "delattr") and call.args:
        return targets(call.args[0])
    return set()


def changed_by_decorators(statements: list[Statement]) -> None:
    """Adds to what statements change: a function under @register is in the table that `register` fills."""
    fills = {one.tree.name: _fills(one.tree) for one in statements if isinstance(one.tree, DEFINED)}
    for one in statements:
        for decorator in getattr(one.tree, "decorator_list", ()):
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            # @table.register changes `table`
            own = targets(called) if isinstance(called, ast.Attribute) else set()
            one.bound.update(own, *(fills.get(name, ()) for name in targets(called)))


def _fills(function: ast.stmt) -> set[str]:
    """The names around a function of which it changes what they hold."""
    outer, own = set(), {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    for node in ast.walk(function):
        if isinstance(node, ast.Expr):
            outer |= changed_by_call(node.value)
        for target in _assigned(node):
            if isinstance(target, ast.Name):
                own.add(target.id)
            else:
                outer |= targets(target)
    declared = (node.names for node in ast.walk(function) if isinstance(node, ast.Global))
    return outer - own | set().union(*declared)


def targets(target: ast.expr) -> set[str]:
    """The names in a target; `options["a"] = 1` changes options."""
    if isinstance(target, (ast.Tuple, ast.List)):
        return set().union(*map(targets, target.elts)) if target.elts else set()
    while isinstance(target, (ast.Attribute, ast.Subscript, ast.Starred)):
        target = target.value
    return {target.id} if isinstance(target, ast.Name) else set()


def used(statement: ast.AST) -> set[str]:
    """The names that it reads or changes. `a, b = [], {}` needs neither."""
    names = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Global):
            names |= set(node.names)
        elif isinstance(node, ast.AugAssign):
            names |= targets(node.target)
    return names - (set(dir(builtins)) - {"print"})


def imports(statement: ast.stmt) -> set[str]:
    """The names that a statement imports, at any depth."""
    return {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(statement)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }


def aliases(nodes: Iterable[ast.AST], imported: set[str]) -> set[str]:
    """The names that stand for a module, or for what was taken out of one, wherever `nodes` assign to them."""
    taken: dict[str, bool] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    known = imported | {name for name, is_taken in taken.items() if is_taken}
                    taken[target.id] = taken.get(target.id, True) and base(node.value) in known
    return {name for name, is_taken in taken.items() if is_taken}


def base(node: ast.expr) -> str:
    """The name that a.b[0].c and getattr(a, "b") begin with; empty where they begin with none."""
    while True:
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        elif _is_getattr(node):
            node = node.args[0]  # type: ignore[attr-defined]
        else:
            return node.id if isinstance(node, ast.Name) else ""


def _is_getattr(node: ast.AST) -> bool:
    by_name = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return by_name and node.func.id == "getattr" and bool(node.args)  # type: ignore[attr-defined]


class _Attributes(ast.NodeTransformer):
    """a.b for getattr(a, "b"), where a default is of no interest."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        name = node.args[1] if _is_getattr(node) and len(node.args) > 1 else None
        if isinstance(name, ast.Constant) and str(name.value).isidentifier():
            return ast.Attribute(node.args[0], str(name.value), ast.Load())
        return node


ATTRIBUTES = _Attributes()


def _walrus(node: ast.AST) -> Iterator[ast.NamedExpr]:
    """Each (name := value) of an expression, but those of a lambda, which are its own."""
    if isinstance(node, ast.NamedExpr):
        yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.Lambda, ast.stmt)):
            yield from _walrus(child)


def _assignments(node: ast.AST) -> list[ast.NamedExpr]:
    """Those that are evaluated once, with nothing but the names around them."""
    found = [node] if isinstance(node, ast.NamedExpr) else []
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, SCOPES):
            found += _assignments(child)
    return found


def _segment(statement: ast.stmt, source: str) -> str:
    first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", []))])
    lines = source.split("\n")[first - 1 : statement.end_lineno]
    whole = "\n".join(lines)
    try:
        ast.parse(whole)
    except SyntaxError:
        return ast.unparse(statement)
    # Two statements on one line (a = 1; b = 2) would both come along; take this one alone.
    return whole if len(ast.parse(whole).body) == 1 else ast.unparse(statement)
