"""The way out of the notebook: the same function under torchrun, on any number of nodes.

torchrun --nnodes 2 --nproc-per-node 8 ... -m dtcourse.launch train.py:step --batch_size 32
"""

from __future__ import annotations

import shlex
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

    On several nodes, run the command on each of them, with --rdzv-endpoint naming one; it is printed for one node
    where nodes=1.
    """
    from dtcourse.launch import options

    options.whole_number("world_size", world_size, "the number of ranks to start")
    options.whole_number("nodes", nodes, "the number of nodes")
    if world_size % nodes:
        raise ValueError(f"{world_size} ranks cannot be laid out as {nodes} nodes of equal size")
    options.check_arguments(function, torchrun_command, args, kwargs)
    path = Path(save_to) if save_to else Path(f"{getattr(function, '__name__', 'function')}.pkl")
    if path.suffix != ".pkl":
        raise ValueError(f"save_to is the name of a .pkl file; got {str(path)!r}")
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(cloudpickle.dumps((function, args, kwargs)))
    partial.replace(path)
    where = ["--standalone"]
    if nodes > 1:
        where = ["--nnodes", str(nodes), "--rdzv-backend", "c10d", "--rdzv-endpoint", "HOST:29500"]
    words = [
        "torchrun",
        *where,
        "--nproc-per-node",
        str(world_size // nodes),
        "-m",
        "dtcourse.launch",
    ]
    words += ["--backend", backend] if backend else []
    return shlex.join([*words, str(path)])
