"""A script's first launch: from a light server, where the call shows that it needs none of PyTorch's larger parts."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import sysconfig
import textwrap
from datetime import timedelta
from importlib.machinery import PathFinder
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD

import dtcourse
from dtcourse.collectives import ring
from dtcourse.launch import parts, send_message, sendable
from tests.launch.settling import LONG_PLAY

# In a rank: its parent, and that one's; whether torch._dynamo is loaded (named so that the call does not mention it).
SETUP = """
import json, os, signal, sys, threading, time

import psutil

from dtcourse import launch
from dtcourse.launch import RankFailure, send_message, server

def look():
    parent = os.getppid()
    with open(f"/proc/{parent}/stat") as file:
        above = int(file.read().rpartition(")")[2].split()[1])
    return parent, above, any(name[6:] == "_dynamo" for name in sys.modules)

def train():
    import torch

    before = look()
    torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=1.0)
    return before

def gone(pid):
    while psutil.pid_exists(pid):
        time.sleep(0.02)
    return True

"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def told(code: str):
    """What a fresh Python prints, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", SETUP + textwrap.dedent(code)],
        capture_output=True, text=True, check=False, timeout=240,
        env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(dtcourse.__file__))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout.splitlines()[-1])


# --- which calls ---------------------------------------------------------------------------------------------------


def of_main(function):
    """The same function as a script has it: it travels by value, and its module is __main__."""
    function.__module__, function.__qualname__ = "__main__", function.__name__
    space = {
        "__name__": "__main__",
        **{k: globals()[k] for k in function.__code__.co_names if k in globals()},
    }
    made = type(function)(function.__code__, space, function.__name__, function.__defaults__)
    made.__module__ = "__main__"
    return made


def sums():
    """Not that torch.optim or fully_shard were used."""
    import torch.distributed

    total = torch.tensor([dist.get_rank() + 1.0])
    torch.distributed.all_reduce(total)
    return total.item()


def learns():
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    dist.all_reduce(model.weight.grad)
    return [p.grad for p in model.parameters()]


def tells():
    send_message(np.ones(3))
    return ring.all_reduce(torch.ones(3))


def optimizes():
    return torch.optim.Adam([torch.ones(1, requires_grad=True)])


def optimizes_by_name():
    return SGD([torch.ones(1, requires_grad=True)])


def wraps():
    return nn.parallel.DistributedDataParallel(nn.Linear(2, 2))


def shards():
    from torch.distributed.fsdp import fully_shard

    fully_shard(nn.Linear(2, 2))


def distributes():
    from torch.distributed.tensor import DTensor

    return DTensor


def places():
    import torch.distributed.tensor

    return torch.distributed.tensor.Shard


def uses_a_technique():
    import dtcourse.sharding

    return dtcourse.sharding


def uses_what_is_installed():
    import sklearn.datasets

    return sklearn.datasets


def compiles():
    return torch.compile(sums)


@pytest.fixture
def as_in_a_fresh_process(monkeypatch):
    """Other tests have left modules, and folders with modules, that are called as a function's variables are.

    cloudpickle sends a package's module along where it is loaded and the code has its name, as that of torch.tensor.
    """
    for name in [
        name for name in sys.modules if f"{name}.".startswith("torch.distributed.tensor.")
    ]:
        monkeypatch.delitem(sys.modules, name)
    installed = [sysconfig.get_path("purelib")]
    finder = SimpleNamespace(find_spec=lambda name: PathFinder.find_spec(name, installed))
    monkeypatch.setattr(parts, "PathFinder", finder)
    monkeypatch.setattr(parts, "sys", SimpleNamespace(modules={"__main__": None}))


@pytest.mark.parametrize("function", [sums, learns, tells, functools.partial(sums)])
def test_calls_that_need_no_part(function, as_in_a_fresh_process):
    made = (
        functools.partial(of_main(sums))
        if isinstance(function, functools.partial)
        else of_main(function)
    )
    call = sendable.serialize_call(
        made, (1, timedelta(1)), {"model": nn.Linear(2, 2), "x": torch.ones(3)}
    )
    assert parts.are_needless(call)


@pytest.mark.parametrize(
    "function",
    [
        optimizes, optimizes_by_name, wraps, shards, distributes, places, uses_a_technique,
        uses_what_is_installed, compiles,
    ],
)  # fmt: skip
def test_calls_that_may_need_one(function):
    assert not parts.are_needless(sendable.serialize_call(of_main(function), (), {}))


def test_what_comes_from_a_module_may_need_one_and_what_is_long_is_not_searched():
    """A function of a module travels by name, and tells nothing of what it does."""
    assert not parts.are_needless(sendable.serialize_call(told, (), {}))
    assert not parts.are_needless(
        sendable.serialize_call(of_main(sums), (list(range(50_000)),), {})
    )
    assert not parts.are_needless(
        sendable.serialize_call(of_main(sums), (SGD([torch.ones(1)], 1.0),), {})
    )


def test_the_ground_floor_needs_none():
    """And so do those of the standard library that the table names as a whole."""
    code = f"import sys, {', '.join(sorted(parts.GROUND))}; print({list(parts.PARTS)} & sys.modules.keys())"
    code = code.replace(str(list(parts.PARTS)), str(set(parts.PARTS)))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# --- the first launch ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_first_launch_that_needs_no_part_waits_for_none_and_the_light_server_goes_with_it():
    first, second, pid, ended = told("""
        first = launch(look, 2)[1]
        print(json.dumps([first, launch(look, 2)[1], server.pid(), gone(first[0])]))
    """)
    assert first == [first[0], pid, False] and first[0] != pid, "from a child of the server"
    assert second[0] == pid and second[2], "from the server, which has all by now"
    assert ended


@pytest.mark.slow
def test_a_first_launch_that_needs_one_finds_it_loaded():
    parent, _, loaded, pid, open_files = told("""
        found = launch(train, 2)[1]
        print(json.dumps([*found, server.pid(), len(os.listdir("/proc/self/fd"))]))
    """)
    assert (parent, loaded) == (pid, True)
    after_light = told("""
        launch(look, 2)
        print(json.dumps(len(os.listdir("/proc/self/fd"))))
    """)
    assert after_light == open_files


@pytest.mark.slow
@LONG_PLAY
def test_one_that_goes_on_behind_others_or_emulates_has_no_light_server():
    behind, emulated = (
        told(f"""
            from dtcourse.emulation import EmulatedDevice
            run = launch(look, 2, {options})
            run = getattr(run, "result", lambda: run)()
            print(json.dumps([*run[1], server.pid()]))
        """)
        for options in ("wait=False", "devices=EmulatedDevice(flops=1e9, bandwidth=1e9)")
    )
    assert behind[0] == behind[3] and emulated[0] == emulated[3]


# --- what goes wrong -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "victim",
    [*(pytest.param(one, marks=LONG_PLAY) for one in ("light", "server")), "both"],
)
def test_killed_while_its_ranks_run_they_answer_and_the_next_launch_works(victim):
    runs, follows = told(f"""
        def work():
            send_message(look()[:2])
            time.sleep(0.5)
            return os.environ["RANK"]

        def kill(rank, pids):
            if rank == 0:
                light, full = pids
                for pid in dict(light=[light], server=[full], both=pids)[{victim!r}]:
                    os.kill(pid, signal.SIGKILL)

        runs = [list(launch(work, 2, on_message=kill))]
        first = server.pid()
        runs.append(list(launch(abs, 2, -3)))
        runs.append(list(launch(abs, 2, -3)))
        print(json.dumps([runs, server.pid() != first]))
    """)
    assert runs == [["0", "1"], [3, 3], [3, 3]]
    assert follows == (victim != "light")


@pytest.mark.slow
@LONG_PLAY
def test_killed_as_soon_as_it_is_there_the_server_serves():
    found, pid = told("""
        def kill():
            while not server.pid() or not (found := psutil.Process(server.pid()).children()):
                time.sleep(0.001)
            found[0].kill()

        threading.Thread(target=kill).start()
        print(json.dumps([list(launch(look, 2)), server.pid()]))
    """)
    assert len(found) == 2 and all(pid in (parent, above) for parent, above, _ in found)


@pytest.mark.slow
def test_how_a_rank_of_it_ends_is_told():
    message, again = told("""
        def die():
            os.kill(os.getpid(), signal.SIGKILL)

        try:
            launch(die, 2)
        except RankFailure as error:
            print(json.dumps([str(error), list(launch(abs, 2, -3))]))
    """)
    assert "was killed by SIGKILL" in message and again == [3, 3]


@pytest.mark.slow
@LONG_PLAY
def test_a_launch_that_is_refused_keeps_no_server_waiting():
    refused, parent, pid = told("""
        try:
            launch(look, 3, nodes=2)
        except ValueError as error:
            refused = str(error)
        pid = server.pid()
        print(json.dumps([refused, launch(look, 2)[1][0], pid]))
    """)
    assert "3 ranks" in refused and parent == pid


@pytest.mark.slow
@LONG_PLAY
def test_a_launch_within_it_has_its_ranks_from_there_too():
    inner, outer = told("""
        def talk():
            send_message("go")
            time.sleep(0.2)
            return look()

        found = []
        outer = launch(talk, 1, on_message=lambda *_: found.append(launch(train, 2)[1]))[0]
        print(json.dumps([found[0], outer]))
    """)
    assert inner == outer


@pytest.mark.slow
@LONG_PLAY
def test_a_process_that_the_notebook_forks_meanwhile_keeps_it_from_nothing():
    light, in_child, after = told("""
        heard, said = os.pipe()
        children = []

        def talk():
            send_message("go")
            time.sleep(0.2)
            return look()

        def fork(*_):
            children.append(os.fork())
            if not children[0]:
                os.write(said, str(server._light).encode())
                time.sleep(300)
                os._exit(0)

        light = launch(talk, 1, on_message=fork)[0]
        after = launch(look, 2)[1]
        ended = gone(light[0])
        os.kill(children[0], signal.SIGKILL)
        print(json.dumps([ended, os.read(heard, 100).decode(), after[2]]))
    """)
    assert light and in_child == "None" and after
