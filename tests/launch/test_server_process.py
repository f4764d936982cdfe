"""How the fork server begins: its imports without the garbage collector, and nothing left where it does not begin."""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from dtcourse.launch import server, server_process, sockets


def told(code: str, folder, **environment: str):
    """What a script in `folder` prints last, as JSON. A file, "-c" sees the folder in another way."""
    file = folder / "script.py"
    file.write_text(textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, check=False, timeout=240,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_it_imports_without_the_collector_and_its_ranks_have_one_that_sees_their_own_objects_alone(
    tmp_path,
):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "who_collects.py").write_text("import gc\nit_does = gc.isenabled()\n")
    found = told(
        """
        import json, sys
        from dtcourse.launch import server
        server.preload("who_collects")
        from dtcourse import launch

        def rank():
            import gc
            loaded = sys.modules.get("who_collects")
            return loaded and loaded.it_does, gc.isenabled(), gc.get_freeze_count() > 100_000

        print(json.dumps(list(launch(rank, 2, init=False))))
        """,
        tmp_path,
        PYTHONPATH=os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)]),
        PYTHONDONTWRITEBYTECODE="1",
    )
    assert found == [[False, True, True]] * 2


@pytest.mark.slow
def test_what_it_cannot_import_and_a_folder_beside_the_script_stop_no_launch(tmp_path):
    (tmp_path / "numpy.py").write_text("raise RuntimeError('the folder came before Python')\n")
    found = told(
        """
        import json
        from dtcourse.launch import server
        server.preload("no_such_module")
        import os, sys
        sys.path.pop(0)
        from dtcourse import launch
        runs = [list(launch(abs, 2, -3, init=False))]
        pids = [server.pid()]
        os.kill(pids[0], 9)
        os.waitid(os.P_PID, pids[0], os.WEXITED | os.WNOWAIT)
        runs += [list(launch(abs, 2, -3, init=False))]
        print(json.dumps([runs, server.pid() not in pids]))
        """,
        tmp_path,
    )
    assert found == [[[3, 3], [3, 3]], True]


@pytest.mark.parametrize("masks", [False, True])
def test_one_that_does_not_begin_leaves_no_file_open_and_no_signal_masked(monkeypatch, masks):
    def fail(*_):
        raise BlockingIOError("no more processes")

    sockets.free_address()  # a process keeps its folder of sockets, with a lock
    before = len(os.listdir("/dev/fd")), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    frozen = gc.get_freeze_count()  # by conftest.py, which another test looks for
    monkeypatch.setattr(os, "fork", fail)
    with pytest.raises(BlockingIOError):
        server_process.start(server_process.as_copy(()) if masks else fail)
    if not frozen:
        gc.unfreeze()  # as_copy had frozen what is loaded
    assert (len(os.listdir("/dev/fd")), signal.pthread_sigmask(signal.SIG_BLOCK, ())) == before


def test_where_nothing_is_imported_nobody_counts_what_is_frozen(monkeypatch):
    """Each launch asks for PyTorch. In a process with millions of objects the count takes a twentieth of a second."""

    def fail():
        raise AssertionError("counted")

    importlib.import_module("torch.distributed")
    monkeypatch.setattr(gc, "get_freeze_count", fail)
    with server.uncollected():
        importlib.import_module("torch.distributed")
    assert gc.isenabled()
