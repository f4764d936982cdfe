"""One job that holds the nodes for many launches: what it takes, and that nothing is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.launch import (
    Cancelled,
    RankFailure,
    RankTimeout,
    cluster,
    magic,
    send_message,
)
from dtcourse.launch.cluster import allocations, slurm
from dtcourse.launch.cluster import held as held_nodes
from dtcourse.launch.cluster.record import JobFailed
from dtcourse.launch.cluster.throwaway import ThrowawaySlurm
from tests.launch.cluster.notebooks import notebook, own_settings, queue, until
from tests.launch.test_kernel import Kernel

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.stands_on("dtcourse/launch/", share=(1, 1)),
]


@pytest.fixture(scope="module")
def nodes():
    with ThrowawaySlurm(nodes=3, cpus=4) as slurm:
        yield slurm


@pytest.fixture(autouse=True)
def settings(nodes, tmp_path, monkeypatch):
    file = own_settings(tmp_path, monkeypatch)
    yield file
    cluster.release()
    assert not queue(), "whatever a test holds is given back"
    until(lambda: not of_jobs(nodes))


def of_jobs(nodes):
    """The processes that Slurm's jobs have left on the nodes."""
    found = []
    for process in psutil.process_iter():
        try:
            around = process.environ()
        except psutil.Error:
            continue
        if around.get("SLURM_CONF") == str(nodes.configuration) and "SLURM_JOB_ID" in around:
            found.append(process)
    return found


def on_nodes(function, world_size=4, *args, nodes=2, **options):
    return launch(function, world_size, *args, nodes=nodes, cluster="slurm", **options)


def where():
    total = torch.ones(1)
    dist.all_reduce(total)
    return os.environ["SLURM_JOB_ID"], os.environ["SLURMD_NODENAME"], total.item()


def job_of(run):
    (job,) = {value[0] for value in run}
    return job


def test_launches_in_the_block_share_one_job_and_are_otherwise_like_any(tmp_path, monkeypatch):
    module = tmp_path / "mine.py"
    monkeypatch.syspath_prepend(str(tmp_path))

    def step(x):
        import mine

        print("hello from", dist.get_rank())
        if dist.get_rank() == 3:
            send_message(x)
        return os.environ["SLURM_JOB_ID"], x * mine.FACTOR, os.environ.get("SET_LATER"), os.getcwd()

    heard = []
    with cluster.allocation(nodes=2, idle_minutes=5) as held:
        module.write_text("FACTOR = 2")
        first = on_nodes(step, 4, 10, on_message=lambda *told: heard.append(told))
        module.write_text("FACTOR = 300")
        monkeypatch.setenv("SET_LATER", "yes")
        monkeypatch.chdir(tmp_path)
        second = on_nodes(step, 4, torch.ones(2))
        third = on_nodes(where, 3, nodes=1)
        assert queue() == [held.record.job]
    assert job_of(first) == job_of(second) == job_of(third) == held.record.job
    assert [value[1:3] for value in first] == [(20, None)] * 4
    assert first.output == [[f"hello from {index}"] for index in range(4)]
    assert heard == [(3, 10)]
    assert second[0][1].tolist() == [300, 300] and second[0][2:] == ("yes", str(tmp_path))
    assert [value[1:] for value in third] == [("n1", 3.0)] * 3
    assert slurm.details("job", held.record.job)["JobState"] == "COMPLETED"


def test_a_launch_that_fails_leaves_the_nodes_to_the_next_one(tmp_path):
    def raises():
        if dist.get_rank() == 3:
            raise ValueError("bad shape")
        time.sleep(600)  # no message says that the other has gone

    def is_killed():
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    def hangs():
        if dist.get_rank() == 0:
            dist.barrier()
        time.sleep(600)

    with cluster.allocation(nodes=2) as held:
        with pytest.raises(RankFailure, match="rank 3 of 4 raised ValueError: bad shape"):
            on_nodes(raises)
        with pytest.raises(RankFailure, match="rank 1 of 4 was killed by SIGKILL"):
            on_nodes(is_killed)
        with pytest.raises(RankTimeout, match=r"rank 0 waited in barrier"):
            on_nodes(hangs, timeout=1.0)
        with (
            pytest.raises(JobFailed, match=r"has no folder .*only here"),
            pytest.MonkeyPatch.context() as at,
        ):
            at.setattr(os, "getcwd", lambda: str(tmp_path / "only here"))
            on_nodes(where)
        assert job_of(on_nodes(where)) == held.record.job


def test_ctrl_c_ends_a_launch_and_not_the_allocation():
    def step():
        send_message("begun")
        time.sleep(600)

    fired = []

    def press(*told):
        fired.append(told)
        if len(fired) == 1:
            threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()

    with cluster.allocation(nodes=2) as held:
        with pytest.raises(KeyboardInterrupt) as caught:
            on_nodes(step, on_message=press)
        assert any("its ranks on n1, n2 were ended" in note for note in caught.value.__notes__)
        assert job_of(on_nodes(where)) == held.record.job


def test_what_has_no_room_gets_a_job_of_its_own():
    """A launch on more nodes, and one while another runs."""
    begun, go = threading.Event(), []

    def step(folder):
        send_message("begun")
        while not os.path.exists(f"{folder}/go"):
            time.sleep(0.02)
        return (os.environ["SLURM_JOB_ID"],)

    with cluster.allocation(nodes=1, ranks_per_node=2) as held:
        folder = held.folder
        thread = threading.Thread(
            target=lambda: go.append(
                on_nodes(step, 2, str(folder), nodes=1, on_message=lambda *_: begun.set())
            )
        )
        thread.start()
        assert begun.wait(120)
        beside = job_of(on_nodes(where, 2, nodes=1))
        (folder / "go").touch()
        thread.join(120)
        assert job_of(go[0]) == held.record.job
        assert beside != held.record.job != job_of(on_nodes(where, 2, nodes=2))
    # Nobody gives back a job of a launch's own: it ends by itself, a moment after its ranks' answers have come.
    until(lambda: not queue())


def test_nodes_without_a_launch_are_given_back_and_the_next_one_asks_anew(settings):
    settings.write_text(settings.read_text() + "keep = true\nidle_minutes = 0.03\n")
    first = job_of(on_nodes(where))
    until(lambda: not queue())
    assert slurm.details("job", first)["JobState"] == "COMPLETED"
    assert job_of(on_nodes(where)) != first


def test_a_call_that_its_nodes_never_saw_is_made_again(settings, monkeypatch):
    """They are given back in the moment in which it is ordered."""
    settings.write_text(settings.read_text() + "keep = true\nidle_minutes = 0.03\n")
    first = job_of(on_nodes(where))
    until(lambda: not queue())
    monkeypatch.setattr(held_nodes.Allocation, "is_good", lambda self: self.is_open)
    assert job_of(on_nodes(where)) != first


def test_a_notebook_keeps_its_nodes_until_it_needs_more_or_releases_them(settings):
    settings.write_text(settings.read_text() + "keep = true\n")
    first, second = (job_of(on_nodes(where, 2, nodes=1)) for _ in range(2))
    more, fewer = job_of(on_nodes(where, 4, nodes=2)), job_of(on_nodes(where, 2, nodes=1))
    assert first == second != more == fewer
    assert queue() == [more]
    assert cluster.release() == f"given back: job {more} (2 nodes)"
    assert cluster.release() == "no nodes are held" and not queue()


def test_nodes_that_would_not_see_an_edit_of_the_course_are_asked_for_anew(settings, monkeypatch):
    settings.write_text(settings.read_text() + "keep = true\n")
    first = job_of(on_nodes(where, 1, nodes=1))
    monkeypatch.setattr(held_nodes.course_files, "sources", lambda: {"edited": (1, 1)})
    assert job_of(on_nodes(where, 1, nodes=1)) != first


def test_nodes_whose_time_is_nearly_over_are_asked_for_anew(settings):
    text = settings.read_text().replace("minutes = 10", "minutes = 20")
    settings.write_text(text + "keep = true\nkeep_minutes = 20\n")
    first, second = (job_of(on_nodes(where, 1, nodes=1)) for _ in range(2))
    assert first == second, "with half of the time left"
    (one,) = allocations._kept
    one._until -= 11 * 60
    assert job_of(on_nodes(where, 1, nodes=1)) != first


def test_an_agent_that_is_killed_ends_its_allocation_and_the_next_launch_works(nodes, settings):
    settings.write_text(settings.read_text() + "keep = true\n")

    def step():
        send_message(os.environ["SLURM_JOB_ID"])
        time.sleep(600)

    first = job_of(on_nodes(where))

    def kill(*_):
        ours = {process.pid: process for process in of_jobs(nodes)}
        for process in ours.values():
            with suppress(psutil.Error):
                if process.ppid() not in ours and process.name().startswith("python"):
                    process.kill()

    with pytest.raises((JobFailed, RankFailure)):
        on_nodes(step, on_message=kill)
    assert job_of(on_nodes(where)) != first


def test_a_folder_that_others_can_open_is_not_read_by_the_nodes():
    with cluster.allocation(nodes=2) as held:
        assert job_of(on_nodes(where)) == held.record.job
        fill = held_nodes.remote.fill

        def and_open(folder, *args):
            fill(folder, *args)
            folder.chmod(0o755)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(held_nodes.remote, "fill", and_open)
            with pytest.raises((JobFailed, PermissionError), match=r"job|yours alone"):
                on_nodes(where)


def test_a_launch_that_nobody_waits_for_runs_on_the_nodes_that_are_held():
    def waits():
        send_message("begun")
        time.sleep(600)

    begun = threading.Event()
    with cluster.allocation(nodes=2) as held:
        assert job_of(on_nodes(where, wait=False).result()) == held.record.job
        handle = on_nodes(waits, wait=False, on_message=lambda *_: begun.set())
        assert begun.wait(120)
        handle.cancel()
        with pytest.raises(Cancelled) as caught:
            handle.result()
        assert any("its ranks on n1, n2 were ended" in note for note in caught.value.__notes__)
        assert job_of(on_nodes(where)) == held.record.job


def test_a_function_of_a_cell_is_submitted_as_a_batch_job(capsys):
    def step(x, offset=0):
        print("x is", x)
        return x + offset, where()[2]

    job = cluster.submit(step, 2, nodes=2, minutes=3, signal="USR2@60", x=1)
    assert list(job.result()) == [(1, 2.0)] * 2
    assert capsys.readouterr().out == "rank 0 | x is 1\nrank 1 | x is 1\n"
    until(lambda: job.state() == "COMPLETED")
    assert slurm.details("job", job.number)["TimeLimit"] == "00:03:00"
    both = cluster.submit(step, 1, sweep={"x": [1, 2]}, offset=10)
    assert [list(one.result()) for one in both] == [[(11, 1.0)], [(12, 1.0)]]
    assert repr(both[1]) == f"<job {both[1].number}: step(offset=10, x=2)>"
    until(lambda: not queue())


def test_the_magic_of_a_notebook_gives_its_nodes_back(settings, capsys):
    settings.write_text(settings.read_text() + "keep = true\n")
    held = job_of(on_nodes(where))
    magic.run("release")
    assert capsys.readouterr().out == f"given back: job {held} (2 nodes)\n"
    with pytest.raises(ValueError, match=r"%dtcourse knows one word, release"):
        magic.run("relaese")


CELLS = """
    import os, sys, time
    from dtcourse import launch
    from dtcourse.launch import cluster
    from dtcourse.launch.cluster import presence

    def step(folder):
        open(f"{folder}/begun", "w").close()
        while "busy" in sys.argv:
            time.sleep(0.05)

    if __name__ == "__main__":
        if "alone" in sys.argv:
            presence.PATIENCE = 2.0
            presence._guard = lambda job: None
        with cluster.allocation(nodes=2):
            launch(step, 2, sys.argv[1], nodes=2, cluster="slurm", timeout=None)
            open(f"{sys.argv[1]}/returned", "w").close()
            if "ends" in sys.argv:
                os._exit(0)
            time.sleep(600)
"""


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (("idle",), signal.SIGTERM),
        (("idle", "alone"), signal.SIGKILL),
        (("idle", "ends"), None),
        (("busy",), signal.SIGKILL),
    ],
    ids=str,
)
def test_a_notebook_that_ends_leaves_no_nodes_held(tmp_path, nodes, words, number):
    with notebook(tmp_path, CELLS, tmp_path, *words) as process:
        mark = Path(tmp_path, "begun" if "busy" in words else "returned")
        until(mark.exists)
        if number is not None:
            process.send_signal(number)
        process.wait()
        until(lambda: not queue())
    until(lambda: not of_jobs(nodes))


def test_an_allocation_that_still_waits_is_given_back_too():
    wrapped = ["--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=srun sleep 300"]
    subprocess.run(["sbatch", *wrapped], check=True, capture_output=True)
    (other,) = queue()
    with cluster.allocation(nodes=2):
        assert len(queue()) == 2
    assert queue() == [other]
    subprocess.run(["scancel", other], check=True)
    until(lambda: not queue())


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"nodes": 0}, "nodes"),
        ({"idle_minutes": 0}, "idle_minutes is a number above 0"),
        ({"ranks_per_node": -1}, "ranks_per_node"),
        ({"cluster": "pbs"}, 'cluster is "slurm"'),
    ],
)
def test_what_cannot_be_held_is_refused(asked, says):
    with pytest.raises(ValueError, match=says), cluster.allocation(**asked):
        pass


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_a_kernel_that_is_restarted_gives_its_nodes_back(tmp_path, settings, nodes, busy):
    """Kernels end their children before themselves; what gives the nodes back is not among them."""
    settings.write_text(settings.read_text() + "keep = true\n")
    kernel = Kernel(tmp_path)
    try:
        waits = f"while {busy}: time.sleep(0.05)"
        request = kernel.send(f"""
            import time
            from dtcourse import launch

            def step():
                open("begun", "w").close()
                {waits}

            launch(step, 2, nodes=2, cluster="slurm", timeout=None)
            open("returned", "w").close()
        """)
        until((tmp_path / ("begun" if busy else "returned")).exists)
        if not busy:
            kernel.outcome(request)
            job = queue()[0]
            shown = kernel.run("%dtcourse release").printed
            assert shown == f"given back: job {job} (2 nodes)\n"
            assert kernel.run('launch(step, 2, nodes=2, cluster="slurm")').error is None
        assert len(queue()) == 1
        kernel.manager.restart_kernel()
        until(lambda: not queue())
    finally:
        kernel.stop()
    until(lambda: not of_jobs(nodes))
