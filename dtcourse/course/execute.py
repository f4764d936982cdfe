"""Running notebooks, each in a kernel of this very Python, from the notebook's own folder."""

from __future__ import annotations

import ast
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager

from dtcourse.course import notebook as nbfile
from dtcourse.course import without_grammars  # noqa: F401  # before nbformat
from dtcourse.course.places import PACKAGE

# Nothing in a saved notebook may depend on the terminal it was executed from.
_QUIET = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100", "PYTHONHASHSEED": "0"}


class ThisPython(AsyncKernelManager):
    """A kernel of the Python that runs this code, whatever kernels the machine has registered."""

    @property
    def kernel_spec(self) -> KernelSpec:
        """A kernel specification that names no registered kernel."""
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(
            argv=[*command, "--HistoryManager.enabled=False", "--log-level=ERROR"],
            display_name="Python 3 (ipykernel)",
            language="python",
            interrupt_mode="signal",
        )


def kernel_environment() -> dict[str, str]:
    """The environment of a kernel: this one, and dtcourse importable even from a bare checkout."""
    paths = [str(PACKAGE.parent), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, **_QUIET, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


class CellFailed(RuntimeError):
    """A cell of a notebook raised; the message names the cell and what it raised."""


def execute(
    notebook: nbfile.Notebook,
    folder: Path,
    *,
    timeout: float = 600,
    on_cell: Callable[[int, int], None] | None = None,
) -> float:
    """Execute every code cell in order, in place; the seconds that it took, without the kernel's start and end.

    Raises CellFailed at the first cell that raises, runs past `timeout` seconds, or ends its kernel.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)
    node = nbformat.from_dict(notebook)
    started = ended = 0.0

    def before(cell: Any, cell_index: int) -> None:
        nonlocal started
        started = started or time.perf_counter()
        if on_cell:
            on_cell(cell_index + 1, len(node.cells))

    def after(cell: Any, cell_index: int, execute_reply: Any) -> None:
        nonlocal ended
        ended = time.perf_counter()

    client = NotebookClient(
        node,
        timeout=timeout,
        kernel_manager_class=ThisPython,
        resources={"metadata": {"path": str(folder)}},
        coalesce_streams=True,
        store_widget_state=False,
        on_cell_start=before,
        on_cell_executed=after,
    )
    try:
        client.execute(env=kernel_environment())
    except CellExecutionError as error:
        number = next(
            index
            for index, cell in enumerate(node.cells, 1)
            if any(output.get("output_type") == "error" for output in cell.get("outputs", []))
        )
        said = "\n".join(str(error).strip().splitlines()[-30:])
        raise CellFailed(f"cell {number} raised {error.ename}: {error.evalue}\n{said}") from None
    except CellTimeoutError:
        raise CellFailed(f"a cell ran past {timeout:g} seconds") from None
    except DeadKernelError:
        raise CellFailed("a cell ended its kernel") from None
    notebook["cells"] = nbfile.parse(nbformat.writes(node))["cells"]
    return ended - started


def parameters(notebook: nbfile.Notebook) -> dict[str, Any]:
    """The names that the cell tagged `parameters` assigns, with their values where those are literals.

    Raises ValueError if there is no such cell, or its code does not parse.
    """
    cells = [cell for cell in notebook["cells"] if "parameters" in nbfile.tags(cell)]
    if not cells:
        raise ValueError("no cell is tagged `parameters`")
    try:
        tree = ast.parse(cells[0]["source"])
    except SyntaxError as error:
        raise ValueError(f"the parameters cell does not parse: {error}") from None
    found: dict[str, Any] = {}
    for statement in tree.body:
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets = [statement.target]
        for target in targets:
            if isinstance(target, ast.Name):
                try:
                    found[target.id] = ast.literal_eval(statement.value)  # type: ignore[attr-defined]
                except ValueError:
                    found[target.id] = ...
    return found


def value(text: str) -> Any:
    """A parameter as typed on a command line: 3, 0.1, True, None, [1, 2], else the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False, "null": None, "none": None}.get(text.lower(), text)


def check_parameters(known: dict[str, Any], given: dict[str, Any], name: str) -> None:
    """Refuse what papermill would only warn of: a parameter that the notebook does not have.

    Raises ValueError for an unknown name, or a value of another kind than the default (text for a number).
    """
    for key, new in given.items():
        if key not in known:
            raise ValueError(f"{name} has no parameter {key}; it has {', '.join(known)}")
        default = known[key]
        if default is None or default is ... or new is None:
            continue
        number = (int, float)
        if isinstance(default, bool):
            fits = isinstance(new, bool)
        elif isinstance(default, int):
            fits = isinstance(new, int) and not isinstance(new, bool)
        else:
            fits = isinstance(new, number if isinstance(default, number) else type(default))
        if not fits:
            raise ValueError(
                f"{name}: {key} is {default!r} by default, a {type(default).__name__}; got {new!r}"
            )


@dataclass
class Executed:
    """What came of running one notebook."""

    seconds: float
    copy: Path
    error: str | None = None

    @property
    def passed(self) -> bool:
        """Whether every cell ran."""
        return self.error is None


def run(
    path: Path,
    copy: Path,
    given: dict[str, Any] | None = None,
    *,
    timeout: float = 1200,
    on_cell: Callable[[int, int], None] | None = None,
) -> Executed:
    """Run a notebook with papermill and these parameters; an executed copy is kept, also of a failure.

    Raises ValueError before anything runs: no notebook, or a parameter that it does not have.
    """
    given = given or {}
    notebook = nbfile.read(path)
    if given:
        check_parameters(parameters(notebook), given, path.stem)

    import logging

    import papermill
    from papermill.clientwrap import PapermillNotebookClient
    from papermill.engines import NBClientEngine, papermill_engines
    from papermill.exceptions import PapermillExecutionError

    for name in ("papermill", "papermill.translators", "traitlets", "nbclient"):
        logging.getLogger(name).setLevel(logging.CRITICAL)

    class Engine(NBClientEngine):
        """papermill's own engine, with our kernel and a word after each cell."""

        @classmethod
        def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **options: Any) -> Any:
            total = len(nb_man.nb.cells)

            def before(cell: Any, cell_index: int) -> None:
                if on_cell:
                    on_cell(cell_index + 1, total)

            client = PapermillNotebookClient(
                nb_man,
                timeout=timeout,
                kernel_manager_class=ThisPython,
                resources={"metadata": {"path": str(path.parent)}},
                log=logging.getLogger("papermill"),
                on_cell_start=before,
            )
            return client.execute(env=kernel_environment())

    papermill_engines.register("dtcourse", Engine)
    copy.parent.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    error = None
    try:
        papermill.execute_notebook(
            str(path),
            str(copy),
            parameters=given,
            engine_name="dtcourse",
            progress_bar=False,
            kernel_name="python3",
        )
    except PapermillExecutionError as failure:
        error = f"cell {failure.cell_index + 1}: {failure.ename}: {failure.evalue}"
    # a dead kernel or a time limit: whatever it was, the next notebook still runs
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
    return Executed(time.perf_counter() - start, copy, error)
