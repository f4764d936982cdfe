"""The template, which has the course loaded, and the spare ranks that are split off from it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

import dtcourse
from dtcourse import launch
from dtcourse.launch import (
    RankFailure,
    course_files,
    huge_pages,
    memory,
    send_message,
    standby,
    template,
)
from tests.launch.settling import LONG_PLAY, settle

pytestmark = pytest.mark.skipif(
    not template.POSSIBLE, reason="only where a process's threads can be counted (Linux)"
)

SETTLE = """
    import os, sys, time
    from dtcourse import launch
    from dtcourse.launch import standby, template

    def settle(ranks=2):
        while len(standby.pids()) < 1 + ranks or not template.is_complete():
            launch(abs, ranks, -1, init=False)
            time.sleep(0.1)
"""


def script(code, folder, **environment):
    """A fresh Python in `folder`, with a settle() of its own."""
    # "-c" has its folder first on sys.path, as a notebook has.
    path = {"PYTHONPATH": str(Path(dtcourse.__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-B", "-c", textwrap.dedent(SETTLE) + textwrap.dedent(code)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        env={**os.environ, **path, **environment}, start_new_session=True,
    )  # fmt: skip


def said(process):
    out, errors = process.communicate(timeout=200)
    assert errors == "", errors
    return out.splitlines()


def gone_within(seconds, pids):
    deadline = time.monotonic() + seconds
    while alive := [p for p in pids if psutil.pid_exists(p) and running(p)]:
        if time.monotonic() > deadline:
            return alive
        time.sleep(0.02)
    return []


def running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def loaded():
    return sorted(name for name in sys.modules if name.startswith("dtcourse."))


# --- the template --------------------------------------------------------------------------------------------------


def test_a_complete_template_that_is_killed_is_begun_anew_three_times(monkeypatch):
    """For want of memory, say. Ranks come from the first one, and no launch pays for yet another try."""
    begun = []

    class Killed:
        sources, server_pid = {}, 1
        look = tell = close = forget = lambda *_: None
        pid = lambda _: None  # noqa: E731

        def __init__(self, complete):
            begun.append(complete)
            self.is_complete = self.has_failed = complete
            self.is_ready = not complete
            self.process = SimpleNamespace(exitcode=-9 if complete else None)

    for name, value in {"Template": Killed, "_template": None, "_next": None, "_killed": 0}.items():
        monkeypatch.setattr(template, name, value)
    monkeypatch.setattr(template, "sources", dict)
    monkeypatch.setattr(template.server, "ensure_running", lambda: 1)
    template.start_early()
    assert all(template.refresh() for _ in range(10))
    assert begun == [False] + 4 * [True]


def test_it_has_one_thread():
    settle(2)
    launch(torch.ones, 2, 1)
    assert len(os.listdir(f"/proc/{template.pid()}/task")) == 1


def test_ranks_arrive_with_the_course_loaded_and_without_pictures_or_commands():
    settle(2)
    names = launch(loaded, 2)[1]
    for name in ("models.mlp", "data_parallel.ddp", "sharding.fully_shard", "collectives.ring"):
        assert f"dtcourse.{name}" in names
    assert not [n for n in names if n.startswith(("dtcourse.plots", "dtcourse.course"))]


def test_the_first_template_has_what_the_notebook_and_its_calls_name_and_serves_until_the_complete_one(
    tmp_path,
):
    """What the rank imports itself it does not need to have; nothing that is not named costs it time."""
    lines = said(script("""
        from dtcourse import compression

        def names():
            import dtcourse.models

        def has():
            return [f"dtcourse.{one}" in sys.modules for one in ("compression", "models", "checkpoint")]

        first = lambda: template.current() is not None and template.refresh() and template.pid()
        launch(names, 1, init=False)
        launch(names, 1, init=False)
        while not (begun := first()):
            time.sleep(0.02)
        print(template.is_complete(), *launch(has, 1, init=False)[0])
        settle()
        print(template.pid() != begun, *launch(has, 1, init=False)[0])
        limit = time.monotonic() + 60
        while os.path.exists(f"/proc/{begun}") and time.monotonic() < limit:
            time.sleep(0.02)
        print(os.path.exists(f"/proc/{begun}"))
    """, tmp_path))  # fmt: skip
    assert lines == ["False True True False", "True True True True", "False"]


def test_whose_a_module_is_costs_one_look_at_python_s_folders(monkeypatch):
    """sysconfig makes each path anew: for three thousand modules it had taken longer than to load the course."""
    looks = []
    monkeypatch.setattr(
        course_files.sysconfig,
        "get_path",
        lambda key, ask=sysconfig.get_path: looks.append(key) or ask(key),
    )
    course_files.users_modules()
    assert len(looks) <= 4 < len(sys.modules)


def test_ranks_find_no_finders_whose_pages_they_would_copy_to_make_them_forget():
    settle(2)
    assert max(launch(lambda: len(sys.path_importer_cache), 2)) < 30


def in_huge_pages(pid):
    """Bytes of a process's memory."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("AnonHugePages"))


def test_what_ranks_share_lies_in_huge_pages_where_the_kernel_has_them():
    before = in_huge_pages(os.getpid())
    content = bytearray(range(256)) * (4 * huge_pages.SIZE // 256)
    huge_pages.gather()
    assert content == bytearray(range(256)) * (4 * huge_pages.SIZE // 256)
    if in_huge_pages(os.getpid()) <= before or memory.available() <= memory.ENOUGH:
        pytest.skip("a kernel that gathers no pages (before Linux 6.1), or little memory")
    settle(2)
    assert in_huge_pages(template.pid()) > 4 * huge_pages.SIZE


def test_it_holds_nothing_of_the_users_never_touches_a_gpu_and_draws_no_random_number(tmp_path):
    """Modules beside the notebook, some with names of Python's own, that the course imports; and
    what a rank draws without a seed is the same from the fork server and from the template."""
    for name in ("beside", "xml", "webdataset", "sklearn"):
        (tmp_path / f"{name}.py").write_text("mine = True\n")
    lines = said(script("""
        def state():
            import torch
            return "dtcourse.models" in sys.modules, torch.cuda.is_initialized(), torch.rand(3).tolist()

        before = launch(state, 1)[0]
        import beside
        settle()
        after = launch(state, 1)[0]
        print(before[0], after[0], after[1], before[2] == after[2])

        def mine():
            return sorted(n for n, m in list(sys.modules.items()) if vars(m).get("mine") is True)

        def theirs():
            import beside, webdataset
            return mine()

        settle()
        print(mine(), launch(theirs, 2)[1], launch(mine, 2)[1])
    """, tmp_path))  # fmt: skip
    assert lines == ["False True False True", "['beside'] ['beside', 'webdataset'] []"]


@LONG_PLAY
def test_an_edited_file_of_the_course_and_another_course_first_on_the_path_are_what_ranks_import(
    tmp_path,
):
    for folder in (tmp_path, tmp_path / "elsewhere"):
        shutil.copytree(
            Path(dtcourse.__file__).parent, folder / "dtcourse",
            ignore=shutil.ignore_patterns("__pycache__", "checks"),
        )  # fmt: skip
    lines = said(script(f"""
        from pathlib import Path
        from dtcourse.data import position

        def look():
            from dtcourse.data import position
            return getattr(position, "EDITED", "as it was")

        settle()
        first = template.pid()
        print(launch(look, 2)[1])
        file = Path(position.__file__)
        file.write_text(file.read_text() + "\\nEDITED = 'edited'\\n")
        print(launch(look, 2)[1])
        waiting = standby.pids()
        settle()
        print(launch(look, 2)[1], template.pid() != first, first in standby.pids())

        elsewhere = {str(tmp_path / "elsewhere")!r}
        sys.path.insert(0, elsewhere)

        def where():
            import dtcourse
            return dtcourse.__file__

        print(launch(where, 2)[1].startswith(elsewhere))
    """, tmp_path))  # fmt: skip
    assert lines == ["as it was", "edited", "edited True False", "True"]


def test_an_editor_s_lock_beside_the_sources_stops_no_launch(tmp_path, monkeypatch):
    """Emacs marks an edited file by a link that leads nowhere; a file may also go while we look."""
    (tmp_path / "room").mkdir()
    files = [tmp_path / "room" / f"idea_{number}.py" for number in range(20)]
    for file in files:
        file.write_text("idea = 1\n")
        file.with_name(f".#{file.name}").symlink_to("somebody@somewhere.1234")
    monkeypatch.setattr(course_files, "COURSE", str(tmp_path))
    assert sorted(course_files.sources()) == sorted(map(str, files))


def test_ctrl_c_while_a_template_is_begun_comes_when_that_is_done(monkeypatch):
    settle(2)
    done = []

    def begin():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        done.append("begun")

    with monkeypatch.context() as patched:
        patched.setattr(template, "start_early", begin)
        with pytest.raises(KeyboardInterrupt):
            launch(abs, 2, -1)
    assert done == ["begun"]
    launch(abs, 2, -1)
    assert len(standby.pids()) == 3, "spares are asked for again"


@pytest.mark.parametrize(
    "who",
    [
        "template",
        *(pytest.param(one, marks=LONG_PLAY) for one in ("spares", "all")),
        "server and all",
    ],
)
def test_what_dies_while_it_waits_is_replaced_and_nobody_notices(who):
    waiting = settle(3)
    of = {"template": {template.pid()}, "spares": waiting - {template.pid()}}
    for pid in of.get(who, waiting):
        os.kill(pid, signal.SIGKILL)
    if who == "server and all":
        from dtcourse.launch import server

        os.kill(server.pid(), signal.SIGKILL)
    assert list(launch(lambda: int(os.environ["RANK"]), 3)) == [0, 1, 2]
    assert not gone_within(30, of.get(who, waiting))
    assert settle(3) & of.get(who, waiting) == set()


def test_a_template_that_dies_takes_no_running_rank_along():
    settle(2)

    def work():
        send_message("up")
        time.sleep(1.0)
        return os.environ["RANK"]

    first = template.pid()
    run = launch(work, 2, on_message=lambda rank, _: rank or os.kill(first, signal.SIGKILL))
    assert list(run) == ["0", "1"]

    def die():
        send_message("up")
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGKILL)

    settle(2)
    first = template.pid()
    with pytest.raises(RankFailure, match="stopped answering"):
        launch(die, 1, on_message=lambda *_: os.kill(first, signal.SIGKILL))


def test_one_of_three_spares_dies_while_it_waits():
    victim = (settle(3) - {template.pid()}).pop()
    os.kill(victim, signal.SIGKILL)
    name = "multiprocessing.process"

    def who():
        return os.environ["RANK"], sys.modules[name].current_process().name

    assert list(launch(who, 3)) == [(str(r), f"rank {r}") for r in range(3)]


# --- spares --------------------------------------------------------------------------------------------------------


def test_each_spare_is_a_rank_once():
    spares = settle(2) - {template.pid()}
    first, second = set(launch(os.getpid, 2)), set(launch(os.getpid, 2))
    assert first == spares and not first & second


def test_they_are_limited_in_number_and_memory():
    for _ in range(2):
        launch(abs, 12, -1, init=False)
    spares = standby.pids() - {template.pid()}
    assert len(spares) == standby.MOST
    for pid in spares:
        own = psutil.Process(pid).memory_full_info().uss
        assert own < 40e6, f"a waiting spare has {own / 1e6:.0f} MB of its own"
    settle(2)


def test_none_are_kept_where_memory_is_short(monkeypatch):
    settle(2)
    monkeypatch.setattr(memory, "available", lambda: memory.ENOUGH)
    launch(abs, 2, -1)
    assert standby.pids() == {template.pid()}


def test_none_is_split_off_while_a_rank_runs():
    settle(2)
    seen = []

    def look(rank, message):
        launch(abs, 2, -1, init=False)  # which ends while this one still runs
        seen.append(len(standby.pids()))

    launch(lambda: send_message("go"), 1, on_message=look)
    assert seen == [1], "the template alone"


def test_directory_path_environment_and_arguments_come_with_the_call(tmp_path, monkeypatch):
    settle(2)
    (tmp_path / "made_later.py").write_text("answer = 42\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SET_LATER", "yes")
    monkeypatch.delenv("PATH")
    monkeypatch.setattr(sys, "argv", ["changed"])

    def look():
        import made_later

        return (
            os.getcwd(),
            sys.argv,
            os.environ["SET_LATER"],
            "PATH" in os.environ,
            made_later.answer,
        )

    waiting = standby.pids()
    run = launch(lambda: (os.getpid(), look()), 2)
    assert {pid for pid, _ in run} <= waiting, "they were there before all this"
    assert run[1][1] == (str(tmp_path), ["changed"], "yes", False, 42)


def test_a_module_that_was_edited_is_what_the_next_rank_imports(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "mine_to_edit.py"
    for text in ("one", "twenty"):
        file.write_text(f"text = {text!r}\n")
        settle(2)

        def look():
            import mine_to_edit

            return mine_to_edit.text

        assert list(launch(look, 2)) == [text] * 2


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, *(pytest.param(one, marks=LONG_PLAY) for one in (signal.SIGTERM, None))]
)
def test_they_go_with_the_notebook(tmp_path, how):
    process = script("""
        settle(3)
        print(*standby.pids(), flush=True)
        sys.stdin.readline()
    """ if how is None else """
        settle(3)
        print(*standby.pids(), flush=True)
        time.sleep(300)
    """, tmp_path)  # fmt: skip
    waiting = [int(pid) for pid in process.stdout.readline().split()]
    assert len(waiting) >= 4 and all(map(running, waiting))
    server = psutil.Process(waiting[0]).parent().pid
    if how is not None:
        process.send_signal(how)
    process.communicate(timeout=60)
    assert gone_within(30, [*waiting, server]) == []


def test_a_process_that_the_notebook_forks_neither_uses_nor_keeps_them(tmp_path):
    process = script("""
        settle(2)
        if os.fork() == 0:
            print(len(standby.pids()), launch(abs, 2, -5, init=False)[1], flush=True)
            time.sleep(300)
            os._exit(0)
        time.sleep(300)
    """, tmp_path)  # fmt: skip
    try:
        assert process.stdout.readline() == "0 5\n"
        parent = psutil.Process(process.pid)
        child = next(c for c in parent.children() if "forkserver" not in " ".join(c.cmdline())
                     and "resource_tracker" not in " ".join(c.cmdline()))  # fmt: skip
        theirs = {c.pid for c in child.children(recursive=True)} | {child.pid}
        ours = [c.pid for c in parent.children(recursive=True) if c.pid not in theirs]
        assert len(ours) >= 4, "a server, a template, two spares"
        tracker = [c.pid for c in parent.children() if "resource_tracker" in " ".join(c.cmdline())]
        process.kill()
        left = gone_within(30, set(ours) - set(tracker))
        assert left == [], "the child held something that tells them that we live"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)


def test_a_rank_from_a_spare_may_use_data_loader_workers_and_choose_how_they_start():
    import multiprocessing

    # What this process has settled on (an earlier test may have asked) a rank settles on as well.
    multiprocessing.set_start_method(None, force=True)
    settle(2)

    def load():
        import multiprocessing

        multiprocessing.set_start_method("fork")
        data = torch.utils.data.DataLoader(list(range(4)), batch_size=2, num_workers=1)
        return [batch.tolist() for batch in data]

    assert launch(load, 2)[1] == [[0, 1], [2, 3]]


def test_python_s_own_list_of_children_does_not_show_them():
    import multiprocessing

    settle(2)
    assert multiprocessing.active_children() == []
