"""The way out of the notebook: the same function under torchrun, on any number of nodes.

torchrun --nnodes 2 --nproc-per-node 8 ... -m dtcourse.launch train.py:step --batch_size 32
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle


def torchrun_command(
    function: Callable[..., Any],
    world_size: int = 2,
    /,
    *args: Any,
    save_to: str | Path | None = None,
    nodes: int = 1,
    backend: str | None = None,
    **kwargs: Any,
) -> str:
    """The torchrun command that does what launch(function, world_size, *args, **kwargs) does.

    save_to: where to write the function (and its arguments), by default NAME.pkl beside the notebook. A pickle runs
    under the same versions of Python and PyTorch; for anything to keep, put the function into a file and run
    `-m dtcourse.launch file.py:function`.

    In a notebook, `!{torchrun_command(step, 4)}` runs it. On several nodes (nodes=2), run it on each of them, with
    HOST the name of one, where the others can reach the port and find the file.
    """
    from dtcourse.launch import options, sendable

    world_size = options.whole_number("world_size", world_size, "the number of ranks to start")
    nodes = options.whole_number("nodes", nodes, "the number of nodes")
    if world_size % nodes:
        raise ValueError(f"{world_size} ranks cannot be laid out as {nodes} nodes of equal size")
    options.known_backend(backend)
    options.check_arguments(function, torchrun_command, args, kwargs)
    path = Path(save_to) if save_to else Path(f"{getattr(function, '__name__', 'function')}.pkl")
    if path.suffix != ".pkl":
        raise ValueError(f"save_to is the name of a .pkl file; got {str(path)!r}")
    try:
        pickled = cloudpickle.dumps((function, args, kwargs))
    except Exception as error:
        raise TypeError(sendable.unsendable_call(function, args, kwargs, error)) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(pickled)
    partial.replace(path)
    where = ["--standalone"]
    if nodes > 1:
        where = ["--nnodes", str(nodes), "--rdzv-backend", "c10d", "--rdzv-endpoint", "HOST:29500"]
    words = [
        *_torchrun(),
        *where,
        "--nproc-per-node",
        str(world_size // nodes),
        "-m",
        "dtcourse.launch",
    ]
    words += ["--backend", backend] if backend else []
    return shlex.join([*words, str(path)])


def _torchrun() -> list[str]:
    """torchrun, where that name finds the one of this Python; else what runs it whatever PATH says."""
    found = shutil.which("torchrun")
    if found and Path(found).parent == Path(sys.executable).parent:
        return ["torchrun"]
    return [sys.executable, "-m", "torch.distributed.run"]
