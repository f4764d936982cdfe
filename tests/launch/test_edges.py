"""The corners of launch: bad moments to interrupt, exceptions that do not travel well, a notebook that also forks.

Each of these failed once.
"""

from __future__ import annotations

import ast
import gc
import html
import importlib
import math
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import time
import tomllib
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.launch import (
    RankFailure,
    progress,
    reporting,
    send_message,
    serialization,
    server,
    standby,
)
from tests.launch.settling import LONG_PLAY, settle


def run_script(code, **options):
    """A fresh Python: its first launch has to start the fork server."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, timeout=240, **options,
    )  # fmt: skip


def ranks_left():
    """Children of the fork server and of the template that do not wait for the next launch."""
    family = psutil.Process(server.pid()).children(recursive=True)
    return {child.pid for child in family} - standby.pids()


def fds():
    return psutil.Process().num_fds()


# --- exceptions on their way ---------------------------------------------------------------------------------------


def test_an_exception_that_pickles_but_cannot_be_rebuilt_still_says_what_happened():
    class ShapeError(Exception):
        def __init__(self, got, wanted):
            super().__init__(f"got {got}, wanted {wanted}")

    def step():
        raise ShapeError(3, 4)

    with pytest.raises(RankFailure, match="rank 0 of 1 raised ShapeError: got 3, wanted 4"):
        launch(step, 1)


def test_an_exception_whose_text_cannot_be_made_is_still_named():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    def step():
        raise Mute

    with pytest.raises(RankFailure, match="rank 0 of 1 raised Mute"):
        launch(step, 1)


def test_on_message_raising_ends_the_launch_with_that_exception_and_leaves_nothing():
    def talk():
        send_message("hello")
        time.sleep(600)

    def listen(rank, message):
        raise LookupError(f"rank {rank} said {message}")

    settle(2)
    before = fds()
    with pytest.raises(LookupError, match="said hello"):
        launch(talk, 2, on_message=listen)
    gc.collect()
    assert ranks_left() == set()
    assert fds() <= before
    assert list(launch(dist.get_rank, 2)) == [0, 1]


def test_on_message_may_launch():
    got = []
    launch(
        lambda: send_message("go"), 1, on_message=lambda *_: got.extend(launch(dist.get_rank, 2))
    )
    assert got == [0, 1]


# --- what is printed last ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_last_line_without_its_end_is_shown(stream, capfd):
    def talk():
        print("first\npart", end="")

    run = launch(talk, 2, stream=stream)
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == [f"rank {r} | {text}" for r in range(2) for text in ("first", "part")]
    assert run.output == [["first", "part"]] * 2


def test_what_a_failing_rank_printed_last_is_shown(capfd):
    def talk():
        for i in range(20_000):
            print("x" * 50, i)
        print("the last words", end="")
        raise ValueError

    with pytest.raises(RankFailure):
        launch(talk, 1)
    assert capfd.readouterr().out.splitlines()[-1] == "rank 0 | the last words"


def test_what_is_printed_while_leaving_is_shown(capfd):
    def talk():
        class Farewell:
            def __del__(self):
                print("torn down")

        dist.farewell = Farewell()  # goes when the process does
        import atexit
        from multiprocessing import util

        atexit.register(lambda: print("at exit"))
        util.Finalize(None, lambda: print("goodbye"), exitpriority=1)

    launch(talk, 1)
    assert "rank 0 | goodbye" in capfd.readouterr().out.splitlines()


@pytest.mark.skipif(torch.cuda.is_available(), reason="NCCL is asked to take its group down")
def test_a_group_ends_with_its_ranks_and_is_not_closed_one_connection_after_the_other(capfd):
    """gloo waits up to 10 ms for each, which was half of a launch."""

    def reduce():
        def destroy(*_):
            print("destroyed")

        dist.destroy_process_group = destroy
        total = torch.tensor([1.0])
        work = dist.all_reduce(total, async_op=True)
        work.wait()
        return total.item(), os.getpid()

    found = list(launch(reduce, 3))
    assert [total for total, _ in found] == [3.0] * 3
    assert "destroyed" not in capfd.readouterr().out
    assert not {pid for _, pid in found} & set(psutil.pids())


def test_streamed_parts_of_lines_do_not_mix(capfd):
    def talk():
        for piece in ("one", " line", " of ", "mine\n"):
            print(piece, end="", flush=True)
            dist.barrier()

    launch(talk, 3, stream=True)
    assert sorted(capfd.readouterr().out.splitlines()) == [
        f"rank {r} | one line of mine" for r in range(3)
    ]


# --- what ranks have loaded ---------------------------------------------------------------------------------------


@LONG_PLAY
def test_a_program_may_have_more_preloaded_before_its_first_launch():
    done = run_script("""
        import sys
        from dtcourse import launch
        from dtcourse.launch import server

        def loaded():
            return "colorsys" in sys.modules

        server.preload("colorsys")
        print(launch(loaded, 1)[0])
        try:
            server.preload("this")
        except RuntimeError as error:
            print(error)
    """)  # fmt: skip
    said = (
        "True\nthe fork server has started already: say what to preload before the first launch\n"
    )
    assert done.stdout == said, done.stderr


def test_imports_for_ranks_are_not_searched_for_garbage(tmp_path, monkeypatch):
    (tmp_path / "who_collects.py").write_text("import gc\nit_does = gc.isenabled()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    server.load(["who_collects"])
    assert not importlib.import_module("who_collects").it_does and gc.isenabled()
    gc.disable()
    try:
        server.load([])
        assert not gc.isenabled(), "somebody had switched it off"
    finally:
        gc.enable()


# --- time limits ---------------------------------------------------------------------------------------------------


def test_the_time_limit_begins_when_the_ranks_do():
    """The first launch of a notebook starts the fork server, which imports PyTorch:
    seconds that are not the function's."""
    done = run_script("""
        import time
        from dtcourse import launch
        from dtcourse.launch import server

        server.PRELOAD[:] = ["time_taker", *server.PRELOAD]
        print(launch(abs, 1, -3, timeout=2)[0])
    """, env={**os.environ, "PYTHONPATH": os.pathsep.join([TIME_TAKER, *sys.path])})  # fmt: skip
    assert done.stdout == "3\n", done.stderr


TIME_TAKER = ""


@pytest.fixture(autouse=True, scope="module")
def time_taker(tmp_path_factory):
    """A module that takes three seconds to import."""
    global TIME_TAKER
    folder = tmp_path_factory.mktemp("slow")
    (folder / "time_taker.py").write_text("import time; time.sleep(3)\n")
    TIME_TAKER = str(folder)


@pytest.mark.parametrize("limit", [None, math.inf, 1e12])
def test_no_limit_and_limits_longer_than_the_system_can_count(limit):
    assert list(launch(dist.get_rank, 2, timeout=limit)) == [0, 1]


@pytest.mark.parametrize("limit", [0, -1, math.nan, "5", True])
def test_what_is_no_time_limit(limit):
    with pytest.raises(ValueError, match="timeout is in seconds, more than 0, or None"):
        launch(dist.get_rank, 2, timeout=limit)


# --- starting ------------------------------------------------------------------------------------------------------


def test_too_many_open_files_is_one_sentence_and_leaves_nothing():
    settle(2)
    before = fds()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 40, hard))
    try:
        with pytest.raises(OSError, match=r"64 ranks need .* open files.*ulimit -n"):
            launch(dist.get_rank, 64)
        assert fds() <= before
        assert list(launch(dist.get_rank, 2)) == [0, 1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert ranks_left() == set()


def test_a_rank_that_dies_before_it_reads_its_function():
    """Half a gigabyte of list does not fit any buffer: the launcher still writes when the rank goes away."""
    ballast = list(range(3_000_000))  # pickled in line, about 15 MB

    class Deadly:
        def __reduce__(self):
            return os._exit, (7,)

    with pytest.raises(RankFailure, match="left with exit code 7 before it returned"):
        launch(lambda a, b: None, 2, Deadly(), ballast)


def test_a_server_that_was_killed_is_started_again():
    launch(dist.get_rank, 2)
    first = server.pid()
    os.kill(first, signal.SIGKILL)
    assert list(launch(dist.get_rank, 2)) == [
        0,
        1,
    ]  # by spares, perhaps, before anybody has noticed
    while psutil.pid_exists(first) and psutil.Process(first).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert list(launch(dist.get_rank, 2)) == [0, 1]
    assert server.pid() != first


@LONG_PLAY
def test_a_process_forked_off_the_notebook_can_launch_too_and_all_may_choose_how_they_start_processes():
    launch(dist.get_rank, 2)
    done = run_script("""
        import multiprocessing, os
        from dtcourse import launch

        def step():
            multiprocessing.set_start_method("spawn")
            return multiprocessing.get_start_method()

        launch(abs, 1, -1)
        child = os.fork()
        if child == 0:
            ok = launch(abs, 1, -2)[0] == 2
            os._exit(0 if ok else 1)
        print(os.waitpid(child, 0)[1], launch(abs, 1, -3)[0], launch(step, 1)[0])
        multiprocessing.set_start_method("spawn")
    """)
    assert done.stdout == "0 3 spawn\n", done.stderr


def test_processes_of_a_rank_start_as_they_would_under_torchrun():
    expected = multiprocessing.get_context().get_start_method()
    assert launch(multiprocessing.get_start_method, 1)[0] == expected


def test_values_of_env_may_be_numbers():
    assert launch(lambda: os.environ["STEPS"], 1, env={"STEPS": 3})[0] == "3"


# --- interrupts at bad moments --------------------------------------------------------------------------------------


@LONG_PLAY
def test_an_interrupt_while_the_server_starts_neither_kills_nor_prints():
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent("""
            import sys
            from dtcourse import launch
            from dtcourse.launch import server
            import torch

            server.PRELOAD[:] = ["time_taker", *server.PRELOAD]
            try:
                print("starting", flush=True)
                launch(abs, 1, -1)
            except KeyboardInterrupt:
                first = server.pid()
                print(launch(abs, 1, -2)[0], server.pid() == first, flush=True)
        """)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([TIME_TAKER, *sys.path])},
    )  # fmt: skip
    process.stdout.readline()
    family = psutil.Process(process.pid)
    while not any("forkserver" in " ".join(c.cmdline()) for c in family.children()):
        time.sleep(0.02)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=120)
    assert (out, errors) == ("2 True\n", "")


def test_interrupts_in_a_row_leave_no_rank():
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent("""
            import time
            from dtcourse import launch
            from dtcourse.launch import send_message

            def sleep():
                send_message("up")
                time.sleep(300)

            def wait_for_it():
                try:
                    launch(sleep, 6, timeout=None, on_message=lambda *_: print("up", flush=True))
                except KeyboardInterrupt:
                    print("interrupted", flush=True)

            def until_quiet(function):
                while True:
                    try:
                        return function()
                    except KeyboardInterrupt:
                        pass

            until_quiet(wait_for_it)
            until_quiet(lambda: print("next", flush=True))
            until_quiet(lambda: time.sleep(300))
        """)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        for _ in range(6):
            assert process.stdout.readline() == "up\n"
        below = [
            c for c in psutil.Process(process.pid).children(recursive=True)
            if psutil.Process(c.ppid()).pid != process.pid
        ]  # fmt: skip
        assert len(below) == 7, "the light server and its ranks"
        for pause in (
            0.21,
            0.002,
            0.002,
            0.004,
            0.01,
        ):  # the stacks are asked for in the first 0.2 s
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(pause)
        _, alive = psutil.wait_procs(below, timeout=60)
        assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []
    finally:
        process.kill()
        process.communicate()


# --- what travels, and bars ----------------------------------------------------------------------------------------


def test_marks_on_a_parameter_travel():
    expert = torch.nn.Parameter(torch.ones(2))
    expert.is_expert = True
    assert launch(lambda p: (p.is_expert, p.sum().item()), 1, expert)[0] == (True, 2.0)


def test_a_complex_tensor_travels_out_of_band():
    tensor = torch.full((100,), 1 + 2j)
    _, buffers = serialization.serialize(tensor.conj())
    assert [b.nbytes for b in buffers] == [800]
    assert torch.equal(launch(lambda: tensor.conj(), 1)[0], tensor.conj())


@LONG_PLAY
def test_a_name_that_a_package_has_a_module_of_travels():
    """torch.distributed.config is a module of a class of its own; a global `config` beside `dist` asked for it."""
    code = """
        import torch.distributed as dist
        from dtcourse import launch

        config = {"width": 3}

        def step():
            return config["width"] + dist.get_rank()

        print(list(launch(step, 2)))
    """
    done = run_script(code)
    assert done.stdout.strip() == "[3, 4]", done.stderr


def test_a_bar_that_is_left_early_says_where(monkeypatch):
    said = []
    monkeypatch.setattr(reporting, "_channel", lambda kind, content: said.append(content))
    for i in progress(range(100), "search"):
        if i == 3:
            break
    assert said[-1] == ("search", 3, 100)


def test_the_label_of_a_bar_is_text_and_not_markup(monkeypatch):
    bar = object.__new__(reporting._NotebookBar)
    bar.label = "<b>loss & accuracy"
    bundle = bar._bundle(1, 2)
    assert html.escape("<b>loss & accuracy") in bundle["text/html"]
    assert bundle["text/plain"].startswith("<b>loss & accuracy")


# --- what it stands on ---------------------------------------------------------------------------------------------


def test_the_ground_floor_imports_only_what_the_package_itself_depends_on():
    """tqdm was in an extra, so that progress() failed in a script of somebody who had installed dtcourse alone."""
    root = Path(reporting.__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    depends_on = {re.match(r"[\w-]+", line)[0] for line in project["dependencies"]}
    files = [
        *(root / "dtcourse/launch").glob("*.py"),
        root / "dtcourse/events.py",
        root / "dtcourse/device.py",
    ]
    assert len(files) > 10
    imported = {}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            imported |= {name.partition(".")[0]: file.name for name in names}
    # IPython: only where it runs
    for name in imported.keys() - sys.stdlib_module_names - {"dtcourse", "IPython"}:
        assert name in depends_on, f"{imported[name]} imports {name}"


def test_a_ctrl_c_that_waited_while_a_rank_was_split_off_is_not_the_ranks():
    done = run_script(
        """
        import os, signal
        from dtcourse.launch import own_process

        if os.fork() == 0:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            os.kill(os.getpid(), signal.SIGINT)
            own_process.leave_terminal()
            print("nothing so far", flush=True)
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                print("and a later one")
        else:
            os.wait()
        """
    )
    assert done.stdout.splitlines() == ["nothing so far", "and a later one"], done.stderr
