"""show(obj): the real source of what a lesson teaches, so that nothing is copied by hand and goes stale.

The output is Markdown, which JupyterLab, GitHub and the built site highlight in their own colours (light
or dark). It names the file relative to its package and no line number: a saved notebook then changes
when the source that it shows changes, and not when a line is added above it.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any


class Source:
    """The source of one object; a notebook draws it as Markdown, a terminal as plain text."""

    def __init__(self, title: str, code: str):
        self.title = title
        self.code = code

    def __repr__(self) -> str:
        return f"# {self.title}\n{self.code}"

    def _repr_markdown_(self) -> str:
        fence = "```"
        while fence in self.code:
            fence += "`"
        file, _, name = self.title.partition(" · ")
        title = f"**`{file}`**" + (f" · `{name}`" if name else "")
        return f"{title}\n\n{fence}python\n{self.code}\n{fence}"


def show(*objects: Any, docstring: bool = True) -> None:
    """Display the source of functions, classes, methods or modules, each under its file's name.

    objects:   functions, classes, methods, properties or modules. A wrapped or partial function shows what it wraps;
               an instance shows its class
    docstring: False leaves the objects' own docstrings out, where the lesson has just said the same

    Raises ValueError if there is no Python source (built-in functions, C++ extensions), and for a private name of the
    course's: what a lesson teaches has a public one.
    """
    if not objects:
        raise ValueError("show() needs something to show, as in show(ring.all_reduce)")
    for item in [source_of(thing, docstring=docstring) for thing in objects]:
        _display(item)


def source_of(thing: Any, *, docstring: bool = True) -> Source:
    """The source of one object. See `show`."""
    target = _unwrap(thing)
    try:
        code = textwrap.dedent(inspect.getsource(target)).rstrip()
        file = inspect.getsourcefile(target) or inspect.getfile(target)
    except (TypeError, OSError):
        name = getattr(target, "__qualname__", None) or repr(target)
        raise ValueError(
            f"show({name}): there is no Python source to show; it is "
            "built in, or was typed where Python keeps no source"
        ) from None
    if not docstring:
        code = _without_docstring(code)
    name = "" if inspect.ismodule(target) else getattr(target, "__qualname__", "")
    where = _place(target, file)
    if where.startswith("dtcourse/") and re.search(r"(?:^|\.)_(?!_)", name):
        raise ValueError(
            f"show({name}): a lesson shows public names; give {where} one for what is taught"
        )
    return Source(f"{where} · {name}" if name else where, code)


def _unwrap(thing: Any) -> Any:
    while isinstance(thing, functools.partial):
        thing = thing.func
    if isinstance(thing, property):
        thing = thing.fget
    thing = inspect.unwrap(thing) if callable(thing) else thing
    known = (
        inspect.ismodule,
        inspect.isclass,
        inspect.isroutine,
        inspect.iscode,
    )
    return thing if any(is_kind(thing) for is_kind in known) else type(thing)


def _place(target: Any, file: str) -> str:
    """The file, relative to the folder its top-level package is in: dtcourse/collectives/ring.py."""
    name = target.__name__ if inspect.ismodule(target) else getattr(target, "__module__", None)
    top = sys.modules.get((name or "").partition(".")[0])
    root = getattr(top, "__file__", None)
    if name in (None, "__main__") or root is None:
        return (
            "this notebook"
            if name == "__main__" and "ipykernel" in sys.modules
            else Path(file).name
        )
    folder = Path(root).resolve().parent
    path = Path(file).resolve()
    base = folder.parent if Path(root).name == "__init__.py" else folder
    return path.relative_to(base).as_posix() if path.is_relative_to(base) else path.name


def _without_docstring(code: str) -> str:
    """The code less the docstring of the object itself; comments and layout stay as they are."""
    import ast

    try:
        tree: Any = ast.parse(code)
    except SyntaxError:
        return code
    node = tree
    if len(tree.body) == 1 and isinstance(
        tree.body[0], (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    ):
        node = tree.body[0]
    if ast.get_docstring(node, clean=False) is None or len(node.body) == 1:
        return code
    doc = node.body[0]
    lines = code.splitlines()
    end = doc.end_lineno
    while end < len(lines) and not lines[end].strip():
        end += 1
    return "\n".join(lines[: doc.lineno - 1] + lines[end:])


def _display(item: Source) -> None:
    if "IPython" in sys.modules:
        from IPython import get_ipython
        from IPython.display import display

        if get_ipython() is not None:
            display(item)
            return
    print(item)
