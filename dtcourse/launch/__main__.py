"""One rank under torchrun, srun or mpirun:   torchrun --nproc-per-node 4 -m
dtcourse.launch file.py:step --batch_size 32

Forms the group, calls the function, prints what rank 0 got back, takes the group down. Arguments of the function
follow its name as --name value; values are read as Python where they can be (32, 0.1, True), else as text.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import MutableMapping
from datetime import timedelta
from typing import NoReturn

from dtcourse.launch import options, target

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def main(argv: list[str] | None = None) -> None:
    """Runs one rank from its command line."""
    parser = argparse.ArgumentParser(
        prog="python -m dtcourse.launch",
        usage="torchrun ... -m dtcourse.launch [our options] TARGET [--argument value ...]",
        description=(__doc__ or "").split("\n\n")[0],
        allow_abbrev=False,
    )
    parser.add_argument(
        "--backend", help='"gloo", "nccl", "ring", ...; default: what the machine has'
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: what the machine has")
    parser.add_argument(
        "--timeout", type=float, default=600.0, help="seconds a collective may wait"
    )
    parser.add_argument("target", help="file.py:function, or a .pkl that torchrun_command wrote")
    # Options of ours stand before the target. All after it belongs to the function, also what is named like ours.
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the function: --name value")
    asked = parser.parse_args(argv)

    adopt_scheduler(os.environ)
    missing = [name for name in NEEDED if name not in os.environ]
    if missing:
        _stop(
            f"{', '.join(missing)} not set: start this with torchrun (or with srun or mpirun, and MASTER_ADDR and "
            "MASTER_PORT set to a node of the job and a free port there)"
        )
    number = int(os.environ["RANK"])
    try:
        function, args, kwargs = target.load(asked.target)
        kwargs |= target.arguments(asked.arguments)
        # No name is kept from the function here: our options stand before the target.
        options.check_arguments(function, lambda: None, args, kwargs)
        backend = _prepare(asked.backend, asked.device)
    except ValueError as mistake:
        _stop(str(mistake))

    import torch.distributed as dist

    # Before there is a group: its functions have the default group as a default argument. PyTorch's DDP imports it when
    # a model is wrapped. Imported then it would hold on to the group after destroy_process_group, and one of the
    # group's threads that lets go of a tensor while Python ends aborts the process ("terminate
    # called without an active exception").
    import torch.distributed.nn  # noqa: F401

    from dtcourse.collectives.backend import register as backends
    from dtcourse.launch import own_process, recording

    own_process.seed(number)
    backends.form_group(backend, timeout=timedelta(seconds=asked.timeout))
    if backend not in ("nccl", "mpi"):  # these connect later, or together
        # A rank that is done while another still connects closes what that one reads: "Connection closed by peer".
        dist.barrier()
    recording.start()
    try:
        result = function(*args, **kwargs)
        if number == 0 and result is not None:
            print(result, flush=True)
    finally:
        if dist.is_initialized():  # the function may have taken the group down
            dist.destroy_process_group()


def _stop(sentence: str) -> NoReturn:
    """Ends this rank, which was asked for something that cannot be. One of all ranks says so."""
    if os.environ.get("RANK", "0") == "0":
        print(f"python -m dtcourse.launch: error: {sentence}", file=sys.stderr, flush=True)
    sys.exit(2)


def _prepare(backend: str | None, kind: str | None) -> str:
    """Makes this rank's device the current one and returns the backend that fits it."""
    from dtcourse import device

    chosen = device.for_rank(int(os.environ.get("LOCAL_RANK", 0)), kind)
    os.environ["DTCOURSE_DEVICE"] = str(chosen)
    if device.is_gpu(chosen):
        device.use(chosen)
    else:
        device.hide()
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    return options.known_backend(backend) or device.default_backend(local_size, chosen.type)


def adopt_scheduler(environment: MutableMapping[str, str]) -> None:
    """Gives torchrun's names to what mpirun (Open MPI) and srun call otherwise. What is set already stays."""
    if "OMPI_COMM_WORLD_RANK" in environment:  # also where mpirun runs inside a Slurm job
        theirs = {
            "RANK": "OMPI_COMM_WORLD_RANK",
            "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
            "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
            "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
        }
    else:
        theirs = {
            "RANK": "SLURM_PROCID",
            "WORLD_SIZE": "SLURM_NTASKS",
            "LOCAL_RANK": "SLURM_LOCALID",
            "GROUP_RANK": "SLURM_NODEID",
        }
    for name, other in theirs.items():
        if other in environment:
            environment.setdefault(name, environment[other])
    if "SLURM_NODEID" in environment:
        # Tasks of each node, as "4(x2),3": four on two nodes, three on the third.
        tasks = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get(
            "SLURM_TASKS_PER_NODE", ""
        )
        runs = re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks)
        per_node = [count for count, times in runs for _ in range(int(times or 1))]
        node = int(environment["SLURM_NODEID"])
        if node < len(per_node):
            environment.setdefault("LOCAL_WORLD_SIZE", per_node[node])


if __name__ == "__main__":
    main()
