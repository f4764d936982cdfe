"""launch: a function in, what each rank returned out, and nothing left behind."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from dtcourse.emulation.cluster import EmulatedCluster, measured_again
from dtcourse.launch import (
    environment,
    failures,
    meeting,
    options,
    parcels,
    rank,
    serialization,
    server,
    standby,
    waiting,
)
from dtcourse.launch.interrupts import Interrupts
from dtcourse.launch.processes import Ranks
from dtcourse.launch.run import Run


def launch(
    function: Callable[..., Any],
    world_size: int = 2,
    /,
    *args: Any,
    backend: str | None = None,
    device: str | None = None,
    timeout: float | None = 120.0,
    record: bool = False,
    stream: bool = False,
    init: bool = True,
    devices: Any = None,
    network: Any = None,
    clock: str | None = None,
    nodes: int = 1,
    threads: int = 1,
    env: dict[str, str] | None = None,
    on_message: Callable[[int, Any], None] | None = None,
    on_failure: str = "stop",
    verbose: bool = False,
    **kwargs: Any,
) -> Run:
    """Runs function(*args, **kwargs) on `world_size` ranks of this machine and returns what each returned.

    Each rank is a fresh process. The process group is formed before the function is called and destroyed after it
    returns; the function asks torch.distributed for its rank. It may be defined in a notebook cell.

    backend:    "gloo", "nccl", or one of dtcourse's own ("ring", "tree", ...); None takes NCCL where every rank has
                its own GPU, else gloo
    device:     "cpu", "cuda" or None (whatever the machine has); a rank finds its own with dtcourse.device.current()
    timeout:    seconds, from when all ranks have begun the function, after which they are stopped and a RankTimeout
                says where each one was; None: no limit. To form the group is not the function's work, and takes a
                busy machine longer: ranks have a minute for it
    record:     keep each rank's events and traffic in run.timeline and run.traffic
    stream:     show printed lines as they happen, not rank by rank at the end
    init:       False leaves forming the group to the function: `init_process_group()` then needs no arguments
    devices:    a dtcourse.emulation.EmulatedDevice, or a list with one per rank: operations take its time
    network:    a dtcourse.emulation.EmulatedNetwork: messages take its time
    clock:      "virtual": emulated times are computed, the same on every machine; "wall": they are slept, for programs
                in which what arrives first decides. None: virtual where there are devices, else wall
    nodes:      lay the ranks out as so many nodes (LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK)
    threads:    intra-op threads of each rank
    env:        environment variables for the ranks, over the notebook's own
    on_message: called as on_message(rank, message) for each dtcourse.launch.send_message of a rank
    on_failure: "stop" ends all ranks when one fails; with "continue" the others go on, and a RankFailure (a RankTimeout
                at the time limit) takes the place of that rank's result, is passed to on_message(rank, failure) as
                soon as it is known, and stands in run.failures. Nothing is raised then
    verbose:    say in one line what was chosen

    Raises RankFailure if a rank raised, exited or was killed; RankTimeout at the time limit; ValueError for what
    cannot be asked; TypeError for a function or an argument that cannot be pickled.
    """
    try:
        began = time.monotonic()
        _require_torch()
        options.check_arguments(function, launch, args, kwargs)
        limit = options.time_limit(timeout)
        goes_on = options.goes_on(on_failure)
        layout = options.choose(world_size, backend, device, nodes, threads)
        emulated = options.emulated_cluster(devices, network, clock, world_size)
        options.check_open_files(world_size)
        if verbose:
            print(layout)

        def run_once(cluster: EmulatedCluster | None) -> Run:
            with (
                closing(parcels.Sealed(serialization.pack_call(function, args, kwargs))) as parcel,
                closing(meeting.MeetingPlace()) as place,
            ):
                added = {name: str(value) for name, value in (env or {}).items()}
                environments = environment.environments(layout, place.port, {**os.environ, **added})
                settings = [
                    rank.Settings(
                        rank=index,
                        environment=variables,
                        backend=layout.backend,
                        threads=threads,
                        init=init,
                        record=record,
                        emulated=cluster,
                        timeout=limit,
                        sources=environment.typed_sources(),
                        meeting_place=place.path,
                        together=goes_on,
                    )
                    for index, variables in enumerate(environments)
                ]
                with (
                    Interrupts() as interrupts,
                    standby.launching(world_size, interrupts),
                    Ranks(settings, parcel, stream, on_message, goes_on, interrupts) as ranks,
                ):
                    answers = ranks.answers(limit)
                slowdown = 1.0 if cluster is None else cluster.slowdown
                seconds = time.monotonic() - began
                return Run(answers, ranks.output.lines, layout, seconds, record, slowdown)

        run = run_once(emulated)
        if emulated is not None and emulated.is_measured:
            run = measured_again(run, emulated, run_once)
        return run
    except BaseException as error:
        failures.hide_our_frames(error)
        raise


def _require_torch() -> None:
    if "torch" not in sys.modules:
        server.start_early()  # which imports it as well: both at once, not one after the other
    try:
        with waiting.saying("importing PyTorch"):
            import torch.distributed
    except ImportError:
        raise ImportError(options.wrong_python("PyTorch")) from None
    if not torch.distributed.is_available():
        raise RuntimeError("this build of PyTorch has no torch.distributed: install another one")
