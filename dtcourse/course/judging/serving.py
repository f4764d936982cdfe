"""The answer's side of a sandbox: execute an answer's code, run steps on ranks, send back plain data only.

The judge's side is sandbox.py and process.py, in another process.
"""

from __future__ import annotations

import io
import json
import linecache
import os
import struct
from typing import Any, BinaryIO

from dtcourse.course.judging import attempts, limits, tampering
from dtcourse.course.judging.process import frame
from dtcourse.course.judging.requirements import CheckFailed, Unfinished
from dtcourse.course.judging.runs import Results, attempt
from dtcourse.course.judging.taking import Piece


def serve(orders: str) -> None:
    """The life of an answer's process: get ready, say so, and answer requests until the line is closed.

    orders: JSON of what the judge decides: file descriptors, limits, what is the answer's own
    """
    ordered = json.loads(orders)
    limits.hold(ordered["memory"], ordered["tasks"])
    from dtcourse.launch import server, standby

    server.load(ordered["imports"])  # what is loaded here need not be in each rank
    tampering.remember()
    server.start_within(
        ordered["imports"]
    )  # before this process speaks or listens: the ranks' server has no end of its lines

    line = f"/proc/{os.getpid()}/fd/{ordered['line']}"
    attempts.Policy(**ordered["policy"], line=line).publish()
    attempts.watch()
    source, replies = os.fdopen(ordered["requests"], "rb"), ordered["replies"]
    for descriptor in (replies, ordered["line"]):
        os.set_inheritable(descriptor, False)
    _reply(replies, {})
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # up to here, it says why there is no sandbox
    with standby.keeping():  # all answers in here are one person's
        _answer_requests(source, replies)


def _answer_requests(source: BinaryIO, replies: int) -> None:
    import torch

    functions: dict[str, Any] = {}
    while head := source.read(8):
        (size,) = struct.unpack("!Q", head)
        with torch.serialization.safe_globals([bytes]):  # b"" is pickled as a call of it
            request = torch.load(io.BytesIO(source.read(size)), weights_only=True)
        try:
            if "pieces" in request:
                pieces = [Piece(*piece) for piece in request["pieces"]]
                functions = define(pieces, tuple(request["takes"]))
                reply: dict[str, Any] = {}
            else:
                reply = vars(_attempt(request, functions))
        except CheckFailed as error:
            reply = {"failed": type(error).__name__, "sentence": str(error)}
        except BaseException as error:
            reply = {
                "failed": "CheckFailed",
                "sentence": f"It raised {type(error).__name__}: {error}",
            }
        _reply(replies, reply)


def _reply(replies: int, reply: dict[str, Any]) -> None:
    view = memoryview(frame(reply))
    while view:
        view = view[os.write(replies, view) :]


def _attempt(request: dict[str, Any], functions: dict[str, Any]) -> Results:
    import importlib

    def named(module: str, name: str) -> Any:
        return getattr(importlib.import_module(module), name)

    args, options = list(request["args"]), dict(request["options"])
    for place, module, name in request["functions"]:
        args[place] = named(module, name)
    if request["network"] is not None:
        from dtcourse.emulation import EmulatedNetwork

        options["network"] = EmulatedNetwork.from_data(request["network"])
    if request["devices"] is not None:
        from dtcourse.emulation import EmulatedDevice

        devices = request["devices"]
        options["devices"] = (
            [EmulatedDevice(**one) for one in devices]
            if isinstance(devices, list)
            else EmulatedDevice(**devices)
        )
    return attempt(named(*request["step"]), functions, request["world_size"], tuple(args), options)


# Of what may have been made in a cell that is not run.
TAKEN = (
    "A check takes your functions and what makes the names that these use (definitions, imports, assignments, "
    "append and the like), and runs no other statement of the notebook: no call of a function that sets a global name"
)


def define(pieces: list[Piece], takes: tuple[str, ...]) -> dict[str, Any]:
    """Execute the statements of an answer and return the functions that the exercise takes.

    A statement that needs a later one (cells out of order) is tried again after the others.

    Raises CheckFailed if a statement raises, with its cell and line.
    """
    space: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    flags = 0
    if any(piece.code.startswith("from __future__ import annotations") for piece in pieces):
        import __future__

        flags = __future__.annotations.compiler_flag
    show_in_tracebacks(pieces)
    left = pieces
    while left:
        again: list[tuple[Piece, BaseException]] = []
        for piece in left:
            try:
                text = "\n" * (piece.line - 1) + piece.code
                code = compile(text, _file(piece.cell), "exec", flags, dont_inherit=True)
                exec(code, space)  # noqa: S102 - this is the process that exists to do so
            except NameError as error:
                again.append((piece, error))
            except BaseException as error:
                raise _undefined(piece, error) from None
        if len(again) == len(left):
            raise _undefined(*again[0]) from None
        left = [piece for piece, _ in again]
    missing = [name for name in takes if not callable(space.get(name))]
    if missing:
        raise Unfinished(f"`{missing[0]}` is no function in this notebook.")
    return {name: space[name] for name in takes}


def show_in_tracebacks(pieces: list[Piece]) -> None:
    """Have tracebacks and stacks show an answer's lines; `launch` sends such lines to its ranks."""
    lines: dict[str, list[str]] = {}
    for piece in pieces:
        cell = lines.setdefault(_file(piece.cell), [])
        first, code = piece.line - 1, piece.code.splitlines()
        cell += [""] * (first + len(code) - len(cell))
        cell[first : first + len(code)] = code
    for name, text in lines.items():
        whole = [line + "\n" for line in text]
        linecache.cache[name] = (sum(map(len, whole)), None, whole, name)


def _file(cell: int) -> str:
    return f"cell {cell} of your notebook"


def _undefined(piece: Piece, error: BaseException) -> CheckFailed:
    said = f"Cell {piece.cell} of the notebook, line {piece.line}: {type(error).__name__}: {error}"
    if isinstance(error, LookupError | NameError):
        said += f". {TAKEN}"
    return CheckFailed(said)
