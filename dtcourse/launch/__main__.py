"""One rank under torchrun, srun or mpirun:   torchrun --nproc-per-node 4 -m dtcourse.launch file.py:step --batch_size 32

Forms the group, calls the function, prints what rank 0 got back, takes the group down. Arguments of the function
follow its name as --name value; values are read as Python where they can be (32, 0.1, True), else as text.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import pickle
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any


def main(argv: list[str] | None = None) -> None:
    """Runs one rank from its command line."""
    parser = argparse.ArgumentParser(
        prog="python -m dtcourse.launch", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("target", help="file.py:function, or a .pkl that torchrun_command wrote")
    parser.add_argument(
        "--backend", help='"gloo", "nccl", "ring", ...; default: what the machine has'
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: what the machine has")
    parser.add_argument(
        "--timeout", type=float, default=600.0, help="seconds a collective may wait"
    )
    # Options of ours stand before the target; everything after it belongs to the function.
    options, rest = parser.parse_known_args(argv)
    _adopt_slurm()
    missing = [
        v for v in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if v not in os.environ
    ]
    if missing:
        parser.error(
            f"{', '.join(missing)} not set: start this with torchrun (or srun, with MASTER_ADDR and MASTER_PORT set)"
        )
    function, args, kwargs = _load(parser, options.target)
    kwargs |= _arguments(parser, rest)

    import torch.distributed as dist

    from dtcourse import device

    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    chosen = device.for_rank(int(os.environ.get("LOCAL_RANK", 0)), options.device)
    os.environ["DTCOURSE_DEVICE"] = str(chosen)
    device.use(chosen)
    backend = options.backend or device.default_backend(local_size, chosen.type)
    timeout = timedelta(seconds=options.timeout)
    if backend in ("gloo", "nccl", "mpi"):
        dist.init_process_group(backend, timeout=timeout)
    else:
        from dtcourse.collectives import backend as backends

        backends.form_group(backend, timeout=timeout)
    try:
        result = function(*args, **kwargs)
        if dist.get_rank() == 0 and result is not None:
            print(result)
    finally:
        dist.destroy_process_group()


def _adopt_slurm() -> None:
    """Srun names the same things otherwise."""
    names = {
        "RANK": "SLURM_PROCID",
        "WORLD_SIZE": "SLURM_NTASKS",
        "LOCAL_RANK": "SLURM_LOCALID",
        "LOCAL_WORLD_SIZE": "SLURM_NTASKS_PER_NODE",
    }
    for ours, theirs in names.items():
        if ours not in os.environ and theirs in os.environ:
            os.environ[ours] = os.environ[theirs]


def _load(
    parser: argparse.ArgumentParser, target: str
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    if target.endswith(".pkl"):
        if not Path(target).is_file():
            parser.error(f"there is no file {target}")
        return pickle.loads(Path(target).read_bytes())
    file, colon, name = target.rpartition(":")
    if not colon or not file.endswith(".py"):
        parser.error(f"{target!r} does not read file.py:function")
    if not Path(file).is_file():
        parser.error(f"there is no file {file}")
    sys.path.insert(0, str(Path(file).resolve().parent))
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None, "a .py file has a spec"
    assert spec.loader is not None, "and a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        parser.error(f"{file} has no function {name}")
    return function, (), {}


def _arguments(parser: argparse.ArgumentParser, words: list[str]) -> dict[str, Any]:
    """--name value pairs as keyword arguments."""
    arguments: dict[str, Any] = {}
    while words:
        name, *words = words
        if not name.startswith("--"):
            parser.error(f"{name!r}: arguments of the function read --name value")
        name, equals, value = name[2:].partition("=")
        if not equals:
            if not words:
                parser.error(f"--{name} has no value")
            value, *words = words
        try:
            arguments[name.replace("-", "_")] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            arguments[name.replace("-", "_")] = value
    return arguments


if __name__ == "__main__":
    main()
