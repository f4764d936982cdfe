"""launch: a function in, what each rank returned out, and nothing left behind."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any, Literal, TypeVar, overload

from dtcourse.emulation.cluster import EmulatedCluster, measured_again
from dtcourse.launch import (
    around,
    each,
    environment,
    failures,
    log_settings,
    options,
    output,
    parts,
    place,
    rank,
    rendezvous,
    sendable,
    serialization,
    server,
    standby,
    waiting,
)
from dtcourse.launch.failures import RankFailure
from dtcourse.launch.handle import Handle
from dtcourse.launch.interrupts import Interrupts, Stop
from dtcourse.launch.processes import Ranks
from dtcourse.launch.run import Run

T = TypeVar("T")


@overload
def launch(
    function: Callable[..., T],
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
    on_failure: Literal["stop"] = "stop",
    cluster: str | None = None,
    verbose: bool = False,
    wait: Literal[True] = True,
    **kwargs: Any,
) -> Run[T]: ...
@overload
def launch(
    function: Callable[..., T],
    world_size: int = 2,
    /,
    *args: Any,
    wait: Literal[False],
    **kwargs: Any,
) -> Handle[T]: ...
@overload
def launch(
    function: Callable[..., T], world_size: int = 2, /, *args: Any, on_failure: str, **kwargs: Any
) -> Run[T | RankFailure]: ...
def launch(
    function: Callable[..., T],
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
    cluster: str | None = None,
    verbose: bool = False,
    wait: bool = True,
    **kwargs: Any,
) -> Run[Any] | Handle[Any]:
    """Runs function(*args, **kwargs) on `world_size` ranks, on this machine or a cluster; returns what each returned.

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
                soon as it is known, and stands in run.failures. Nothing is raised then. A rank that waits for a
                dead one in a collective, a send or a receive gets a RuntimeError that names it, within two seconds
    cluster:    "slurm" runs the function on the nodes of a cluster, as its cluster.toml says (or give such a file's
                path): a job is submitted and followed, and comes back like a launch on this machine; Ctrl-C cancels
                it, and timeout leaves out the time in the queue. "ray" does so with actors on a Ray cluster
                (docs/ray.md). "here": this machine; None: that too, or the place that use_cluster named
    verbose:    say in one line what was chosen
    wait:       False returns a Handle at once, and the launch goes on: handle.result() is the Run, handle.done() says
                whether there is one, handle.cancel() ends it, handle.pids are its processes. What the ranks print is
                shown by result()

    Raises RankFailure if a rank raised, exited or was killed; RankTimeout at the time limit; ValueError for what
    cannot be asked; TypeError for a function or an argument that cannot be pickled.
    """
    try:
        began = time.monotonic()
        options.check_arguments(function, launch, args, kwargs)
        sent, env = around.wrapped(function, world_size, env)
        serialized = sendable.serialize_call(sent, args, kwargs)
        # A launch that goes on behind others would keep them waiting for what its own server lacks.
        is_first = server.pid() is None and wait and not standby.keeps()
        light = is_first and devices is None and parts.are_needless(serialized)
        _require_torch(light)
        standby.note(serialized)
        limit = around.time_limit(options.time_limit(timeout))
        goes_on = options.goes_on(on_failure)
        cluster = place.of(cluster, emulated=devices is not None or network is not None)
        if cluster is None:
            layout = options.choose(world_size, backend, device, nodes, threads)
        else:
            from dtcourse.launch.cluster import allocations, remote

            settings = remote.find(cluster)
            layout = remote.layout_on(settings, world_size, backend, device, nodes, threads)
        machines = layout.nodes if cluster is not None else 1
        emulated = options.emulated_cluster(devices, network, clock, layout.world_size, machines)
        if cluster is None:
            options.check_open_files(layout.world_size)
        if verbose:
            print(layout)
        for_all = rank.Settings(
            rank=0,
            environment={name: str(value) for name, value in env.items()},
            backend=layout.backend,
            threads=layout.threads,
            init=init,
            record=record,
            emulated=emulated,
            timeout=limit,
            sources=environment.typed_sources(),
            rendezvous="",
            logs=log_settings.current(),
            own=each.sent(args, layout.world_size, kwargs, apart=not wait),
            together=goes_on,
            # A failure that was survived may have left anything.
            again=cluster is None and not goes_on and standby.keeps(),
        )
        name = getattr(function, "__name__", "function")

        def run_all(on_line: Callable[[int, str], None] | None, stop: Stop | None) -> Run[Any]:
            def run_once(emulated: EmulatedCluster | None) -> Run[Any]:
                asked = replace(for_all, emulated=emulated)
                if cluster is None:
                    return _run_here(asked, layout, serialized, light, on_line, on_message, stop)
                return allocations.run_once(
                    settings, layout, name, asked, serialized, on_line, on_message, stop
                )

            run = run_once(emulated)
            if emulated is not None and emulated.is_measured:
                run = measured_again(run, emulated, run_once)
            run.total_seconds = time.monotonic() - began
            return run

        if wait:
            return run_all(output.show_line if stream else None, None)
        serialized = serialization.copied(serialized)  # the caller goes on, and may write to it
        return Handle(
            name,
            lambda handle: run_all(output.show_line if stream else handle.take_line, handle.stop),
        )
    except BaseException as error:
        failures.hide_our_frames(error)
        raise


def _run_here(
    asked: rank.Settings,
    layout: options.Layout,
    serialized: serialization.Serialized,
    light: bool,
    on_line: Callable[[int, str], None] | None,
    on_message: Callable[[int, Any], None] | None,
    stop: Stop | None,
) -> Run[Any]:
    """One launch on this machine. asked: of all ranks; each gets its own number, environment and rendezvous."""
    with (
        closing(serialization.Payload(serialized)) as payload,
        closing(rendezvous.Rendezvous()) as store,
    ):
        base = environment.inherited() | asked.environment
        variables = environment.environments(layout, store.address, store.port, base)
        settings = [asked.of(r, variables[r], store.path) for r in range(layout.world_size)]
        with (
            Interrupts(stop) as interrupts,
            standby.launching(layout.world_size, interrupts, light),
            Ranks(settings, payload, on_line, on_message, asked.together, interrupts) as ranks,
        ):
            if stop is not None:
                stop.pids = tuple(member.pid for member in ranks.members)
            answers = ranks.answers(asked.timeout)
        slowdown = 1.0 if asked.emulated is None else asked.emulated.slowdown
        return Run(answers, ranks.output.lines, layout, asked.record, slowdown)


def _require_torch(light: bool) -> None:
    if "torch" not in sys.modules:
        server.start_early(light)  # which imports it as well: both at once, not one after the other
    try:
        with waiting.saying("importing PyTorch"), server.uncollected():
            import torch.distributed
    except ImportError:
        raise ImportError(options.wrong_python("PyTorch")) from None
    if not torch.distributed.is_available():
        raise RuntimeError("this build of PyTorch has no torch.distributed: install another one")
