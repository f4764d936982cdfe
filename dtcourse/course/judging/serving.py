"""The answer's side of a sandbox: have ranks execute an answer's code, and send back plain data only.

This process never executes it, and reads what ranks send as data (launch/distrust.py): whoever owns a rank does not own
what tells the judge of all of them. The judge's side is sandbox.py and process.py, in another process.
"""

from __future__ import annotations

import io
import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from dtcourse.course.judging import attempts, books, limits, tampering
from dtcourse.course.judging.defining import Written, show_in_tracebacks
from dtcourse.course.judging.process import frame
from dtcourse.course.judging.requirements import CheckFailed, Refused
from dtcourse.course.judging.runs import Results, attempt, check_definition, plain
from dtcourse.course.judging.taking import Piece
from dtcourse.launch.each import Each


def serve(orders: str) -> None:
    """The life of an answer's process: get ready, say so, and answer requests until the line is closed.

    orders: JSON of what the judge decides: file descriptors, limits, what is the answer's own
    """
    ordered = json.loads(orders)
    limits.hold(ordered["memory"], ordered["tasks"])
    from dtcourse.launch import apart, distrust, server, standby

    server.load(ordered["imports"])  # what is loaded here need not be in each rank
    books.watch()
    tampering.remember()
    apart.keep_ranks_apart()
    # The ranks' server is split off before this process speaks or listens, so of our lines it has only the one that
    # attempts are told on. Ranks have that one from the server: ours are closed to them.
    with _silent():
        server.start_within(ordered["imports"], keeps=[ordered["line"]])
    distrust.begin()
    tampering.seal()

    line = f"/proc/self/fd/{ordered['line']}" if server.is_copy() else ""
    attempts.Policy(**ordered["policy"], line=line).publish()
    source, replies = os.fdopen(ordered["requests"], "rb"), ordered["replies"]
    os.close(ordered["line"])
    os.set_inheritable(replies, False)
    _reply(replies, {})
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # up to here, it says why there is no sandbox
    with standby.keeping():  # all answers in here are one person's
        _answer_requests(source, replies)


@contextmanager
def _silent() -> Iterator[None]:
    """What is split off meanwhile has no file of the judge's for its errors."""
    said, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    os.close(nothing)
    try:
        yield
    finally:
        os.dup2(said, 2)
        os.close(said)


def _answer_requests(source: BinaryIO, replies: int) -> None:
    import torch

    written = Written([], ())
    while head := source.read(8):
        (size,) = struct.unpack("!Q", head)
        with torch.serialization.safe_globals([bytes]):  # b"" is pickled as a call of it
            request = torch.load(io.BytesIO(source.read(size)), weights_only=True)
        try:
            if "pieces" in request:
                pieces = [Piece(*piece) for piece in request["pieces"]]
                written = Written(pieces, tuple(request["takes"]))
                show_in_tracebacks(pieces)
                check_definition(written)
                reply: dict[str, Any] = {}
            else:
                reply = vars(_attempt(request, written))
            # Once more, here: what a rank sends as its result may be anything that is data.
            reply = plain(reply)
            if changed := tampering.changed_here():
                raise Refused(tampering.sentence(changed))
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


def _attempt(request: dict[str, Any], written: Written) -> Results:
    import importlib

    def named(module: str, name: str) -> Any:
        return getattr(importlib.import_module(module), name)

    args, options = list(request["args"]), dict(request["options"])
    for place, module, name in request["functions"]:
        args[place] = named(module, name)
    for place in request["each"]:
        args[place] = Each(args[place])
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
    return attempt(named(*request["step"]), written, request["world_size"], tuple(args), options)
