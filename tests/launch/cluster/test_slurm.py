"""launch(..., cluster="slurm") on a real Slurm of two nodes, which this file starts on this machine and takes down."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.launch import RankFailure, RankTimeout, progress, send_message
from dtcourse.launch.cluster import call, jobs, slurm, throwaway
from dtcourse.launch.cluster import settings as clusters
from dtcourse.launch.cluster.record import JobFailed
from dtcourse.launch.cluster.throwaway import ThrowawaySlurm
from tests import at_once
from tests.launch.cluster.notebooks import MINUTE, notebook, until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.stands_on("dtcourse/launch/", share=(1, 1)),  # a cluster is CI's, and always
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with ThrowawaySlurm(nodes=2, cpus=4) as slurm:
        yield slurm


came_back = []  # this test's launches on the cluster that have returned


@pytest.fixture(autouse=True)
def settings(cluster, tmp_path, monkeypatch):
    """A cluster.toml for one test; its text can be changed.

    After each test, its jobs that succeeded are completed for Slurm too. Node 0 serves the store: were it to leave
    first, the others would end with an error.
    """
    file = tmp_path / "cluster.toml"
    file.write_text(f'folder = "{tmp_path}/jobs"\nminutes = 10\n')
    monkeypatch.setenv("DTCOURSE_CLUSTER", str(file))
    came_back.clear()
    yield file
    until(lambda: states(tmp_path).count("COMPLETED") >= len(came_back) or not queue())
    ended = states(tmp_path)
    # Whatever a test did, the next one finds an empty queue.
    if queue():
        subprocess.run(["scancel", "--user", str(os.getuid())], check=False)
        until(lambda: not queue())
    assert ended.count("COMPLETED") >= len(came_back), ended


def states(tmp_path):
    """What Slurm says of this test's jobs."""
    return [job.state for job in jobs.known(tmp_path / "jobs")] if came_back else []


def queue():
    return subprocess.run(
        ["squeue", "--noheader"], capture_output=True, text=True, check=True
    ).stdout


def on_nodes(function, world_size=4, *args, nodes=2, **options):
    run = launch(function, world_size, *args, nodes=nodes, cluster="slurm", **options)
    came_back.append(run)
    return run


def folders(tmp_path):
    return sorted((tmp_path / "jobs").iterdir())


def test_the_same_function_runs_on_two_nodes_and_comes_back_like_a_launch_here(capsys):
    def step(offset):
        total = torch.tensor([dist.get_rank() + offset])
        dist.all_reduce(total)
        print("hello from", dist.get_rank())
        return total.item(), os.environ["SLURMD_NODENAME"], os.environ["LOCAL_RANK"]

    run = on_nodes(step, 4, offset=10)
    assert [value for value, _, _ in run] == [46] * 4
    assert [(node, local) for _, node, local in run] == [
        ("n1", "0"),
        ("n1", "1"),
        ("n2", "0"),
        ("n2", "1"),
    ], "rank order by node"
    assert run.output == [[f"hello from {index}"] for index in range(4)]
    assert capsys.readouterr().out == "".join(f"rank {i} | hello from {i}\n" for i in range(4))
    assert str(run.layout).startswith("4 ranks as 2 nodes of 2 on the CPU, backend gloo")
    assert run.seconds < run.total_seconds


def test_messages_progress_and_streamed_lines_arrive_while_the_ranks_run(capsys, tmp_path):
    heard, at_the_end = [], tmp_path / "told"

    def step(told):
        if dist.get_rank() == 2:
            for index in progress(range(3), "steps"):
                send_message({"step": index})
            print("printed", flush=True)
        while not os.path.exists(told):  # the notebook has heard of it while we run
            time.sleep(0.05)

    def on_message(rank, message):
        heard.append((rank, message))
        if len(heard) == 3:
            at_the_end.touch()

    on_nodes(step, 4, str(at_the_end), stream=True, on_message=on_message)
    assert heard == [(2, {"step": index}) for index in range(3)]
    assert capsys.readouterr().out == "rank 2 | printed\n"


def test_large_arguments_and_results_come_through_unharmed():
    given = torch.arange(25_000_000, dtype=torch.float64)  # 200 MB

    def step(given):
        return given * (dist.get_rank() + 1) if dist.get_rank() == 1 else given[-1].item()

    run = on_nodes(step, 2, given, nodes=1)
    assert run[0] == 24_999_999
    torch.testing.assert_close(run[1], 2 * given, rtol=0, atol=0)


def test_the_course_s_own_backend_records_what_each_rank_sent_and_when():
    def step():
        dist.all_reduce(torch.ones(1000))

    before = time.monotonic()
    run = on_nodes(step, 4, backend="ring", record=True)
    here = launch(step, 4, backend="ring", record=True)
    assert run.traffic.matrix() == here.traffic.matrix() and run.traffic.bytes_sent() > 0
    assert {event.rank for event in run.timeline.events} == {0, 1, 2, 3}
    assert before <= run.timeline.start <= time.monotonic(), "on the notebook's own clock"


def test_emulated_times_are_those_of_a_launch_here():
    from dtcourse.emulation import EmulatedDevice, EmulatedNetwork

    device = EmulatedDevice(flops=1e12, bandwidth=1e11)
    network = EmulatedNetwork(latency=1e-5, bandwidth=1e9)

    def step():
        x = torch.ones(256, 256)
        dist.all_reduce(x @ x)

    runs = [
        launch(step, 4, nodes=2, devices=device, network=network, backend="ring", cluster=where)
        for where in (None, "slurm")
    ]
    assert runs[0].emulated_seconds == runs[1].emulated_seconds > 0


def test_an_error_on_one_node_names_its_rank_and_ends_the_other_node():
    def step():
        if dist.get_rank() == 3:
            raise ValueError("bad shape")
        dist.barrier()

    with pytest.raises(RankFailure, match="rank 3 of 4 raised ValueError: bad shape") as caught:
        on_nodes(step)
    assert isinstance(caught.value.__cause__, ValueError)
    assert "in step" in str(caught.value), "with its traceback"
    assert not queue(), "the job is gone when launch raises"


def test_where_the_others_go_on_a_failure_takes_the_result_s_place():
    def step():
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return dist.get_rank()

    heard = []
    run = on_nodes(step, on_failure="continue", on_message=lambda *told: heard.append(told))
    assert [run[0], run[2], run[3]] == [0, 2, 3]
    assert str(run[1]).startswith("rank 1 of 4 was killed by SIGKILL")
    assert [index for index, _ in heard] == [1]


def test_a_time_limit_of_slurm_s_one_of_a_launch_and_a_node_that_dies_are_told_apart(tmp_path):
    """Side by side, on a Slurm of their own: it looks for jobs past their limit twice in a minute, and takes as long
    to miss a node."""
    toml = tmp_path / "a minute.toml"
    toml.write_text(f'folder = "{tmp_path}/jobs"\nminutes = 1\n')

    def step(waits=()):
        send_message((os.environ["SLURM_JOB_ID"], os.environ["SLURMD_NODENAME"]))
        if dist.get_rank() in waits:
            dist.barrier()
        time.sleep(600)

    def error(ranks, *args, expected, timeout=None, **options):
        with pytest.raises(expected) as caught:
            launch(step, ranks, *args, cluster=str(toml), timeout=timeout, **options)
        return caught.value

    def at_slurm_s_limit():
        asked = []

        def let_the_minute_pass(_, message):
            if not asked:
                asked.append(slurm.details("job", message[0])["TimeLimit"])
                end = ["scontrol", "update", f"JobId={message[0]}", "EndTime=now"]
                subprocess.run(end, check=True)

        return asked, error(1, expected=JobFailed, nodes=1, on_message=let_the_minute_pass)

    def at_the_launch_s_limit():
        numbers = set()
        return numbers, error(
            *(4, (0, 1, 3)),
            expected=RankTimeout,
            timeout=2.0,
            nodes=2,
            on_message=lambda _, message: numbers.add(message[0]),
        )

    def where_a_node_dies():
        names, killed = {}, []

        def kill(rank, message):
            names[rank] = message[1]
            if len(names) == 4:
                killed.append(time.monotonic())
                doomed.kill_node(names[2])

        found = error(4, expected=RankFailure, nodes=2, on_message=kill)
        return names, time.monotonic() - killed[0], found

    # Each job fills its nodes.
    with ThrowawaySlurm(nodes=5, cpus=2) as doomed:
        ended, stopped, lost = at_once.returned(
            [at_slurm_s_limit, at_the_launch_s_limit, where_a_node_dies]
        )
        asked, error_of_slurm = ended
        assert asked == ["00:01:00"]
        assert "reached its time limit of 1 minute" in str(error_of_slurm)
        assert slurm.details("job", error_of_slurm.job)["JobState"] == "TIMEOUT"

        (number,), timeout = stopped
        assert set(timeout.waiting) == {0, 1, 2, 3}
        assert "time.sleep" in timeout.waiting[2] or "in step" in str(timeout)
        assert slurm.details("job", number)["JobState"] in slurm.OVER

        names, seconds, failure = lost
        assert names[0] == names[1] != names[2] == names[3]
        assert f"rank 2 of 4 was lost with its node, {names[2]}" in str(failure)
        assert {one.rank for one in failure.failures} >= {2, 3}
        assert seconds < 2 * MINUTE


def test_ctrl_c_cancels_the_job_and_leaves_nothing(tmp_path):
    mark = tmp_path / "alive"

    def step(mark):
        send_message("begun")
        while True:
            with open(mark, "w") as file:
                file.write(str(time.time()))
            time.sleep(0.05)

    def on_message(*_):
        # From another thread, as the kernel's: the signal arrives in the middle of following the job.
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()

    fired = []

    def once(*told):
        if not fired:
            fired.append(told)
            on_message(*told)

    with pytest.raises(KeyboardInterrupt) as caught:
        on_nodes(step, 4, str(mark), on_message=once)
    assert any("was cancelled" in note for note in caught.value.__notes__)
    assert not queue()
    last = mark.read_text()
    time.sleep(1.0)
    assert mark.read_text() == last, "its ranks are gone"


def test_two_jobs_at_once_share_the_cluster_and_a_full_one_makes_the_next_wait(settings, tmp_path):
    """Two that take one CPU each run at once on one node; one that takes all of both nodes waits for them."""
    begun, go, runs = set(), tmp_path / "go", {}

    def step(number, go):
        send_message(number)
        dist.barrier()
        while not os.path.exists(go):
            time.sleep(0.05)
        return number, os.environ["SLURMD_NODENAME"]

    def one(number, nodes):
        runs[number] = on_nodes(
            *(step, nodes, number, str(go)),
            nodes=nodes,
            on_message=lambda _, message: begun.add(message),
        )

    threads = [threading.Thread(target=one, args=(number, 1)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    until(lambda: begun == {1, 2})
    settings.write_text(settings.read_text() + "cpus_per_rank = 4\n")
    threads.append(threading.Thread(target=one, args=(3, 2)))
    threads[-1].start()
    shown = ["squeue", "--noheader", "--states=PENDING", "--format=%r"]
    until(lambda: subprocess.run(shown, capture_output=True, text=True).stdout == "Resources\n")
    assert begun == {1, 2}
    go.touch()
    for thread in threads:
        thread.join(2 * MINUTE)
    found = {number: list(run) for number, run in runs.items()}
    assert found == {1: [(1, "n1")], 2: [(2, "n1")], 3: [(3, "n1"), (3, "n2")]}


def test_a_job_that_waits_longer_than_its_instructor_allows_is_cancelled(settings):
    subprocess.run(
        ["sbatch", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=srun sleep 300"],
        check=True,
        capture_output=True,
    )
    settings.write_text(settings.read_text() + "wait_minutes = 0.05\n")
    with pytest.raises(JobFailed, match=r"waited for more than 0.05 minutes in the queue"):
        on_nodes(lambda: 1)
    assert len(queue().splitlines()) == 1, "the other job is not ours to cancel"


def test_a_batch_job_outlives_its_notebook_and_another_one_finds_it_again(tmp_path):
    cells = """
        import os, time
        import torch.distributed as dist
        from dtcourse.launch.cluster import batch, remote

        def step(folder):
            print("begun", flush=True)
            open(f"{folder}/begun-{dist.get_rank()}", "w").close()
            while not os.path.exists(f"{folder}/go"):
                time.sleep(0.05)
            return dist.get_rank() * 10

        if __name__ == "__main__":
            import sys
            batch.submit(step, 2, remote.find("slurm"), nodes=1, folder=sys.argv[1])
            time.sleep(600)
        """
    with notebook(tmp_path, cells, tmp_path) as process:
        until((tmp_path / "begun-1").exists)
        process.kill()
    (found,) = jobs.known(tmp_path / "jobs")
    assert found.state == "RUNNING"
    (tmp_path / "go").touch()
    run = jobs.reattach(found.record.job, tmp_path / "jobs")
    assert list(run) == [0, 10]
    assert run.output == [["begun"], ["begun"]]
    until(lambda: jobs.find(found.record.job, tmp_path / "jobs").state == "COMPLETED")


def test_another_version_on_the_nodes_is_refused_before_anything_is_unpickled(monkeypatch):
    own = call.versions()
    for name, other, says in (
        ("torch", "1.0", r"has torch .*, the notebook has 1\.0: use one environment"),
        ("dtcourse", "0", r"has other source files of dtcourse than the notebook"),
    ):
        monkeypatch.setattr(call, "versions", lambda name=name, other=other: {**own, name: other})
        with pytest.raises(JobFailed, match=says):
            on_nodes(lambda: 1, nodes=1)


def test_a_python_that_the_nodes_do_not_have_is_said(settings):
    settings.write_text(settings.read_text() + 'python = "/opt/nowhere/bin/python"\n')
    with pytest.raises(JobFailed, match=r"/opt/nowhere/bin/python"):
        on_nodes(lambda: 1)


def test_a_partition_that_does_not_exist_is_refused_with_those_that_do(settings):
    settings.write_text(settings.read_text() + 'partition = "gpu"\n')
    with pytest.raises(ValueError, match=r"'gpu'; this cluster has all, urgent"):
        on_nodes(lambda: 1)


def test_a_working_directory_that_the_nodes_do_not_have_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getcwd", lambda: str(tmp_path / "only here"))
    with pytest.raises(JobFailed, match=r"has no folder .*only here, in which the notebook runs"):
        on_nodes(lambda: 1)


def test_a_jobs_folder_that_the_nodes_do_not_share_is_said(tmp_path, settings):
    """The nodes see another, empty file system where the notebook has its jobs."""
    hidden = tmp_path / "jobs"
    hidden.mkdir(mode=0o700)
    inside = (
        "unshare",
        "--mount",
        "sh",
        "-c",
        f'mount -t tmpfs none "{hidden}" && exec "$@"',
        "sh",
    )
    if subprocess.run([*inside, "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount (root, or a container that may)")
    with ThrowawaySlurm(nodes=2, inside=inside):
        with pytest.raises(JobFailed, match="Most often they do not share that folder"):
            on_nodes(lambda: 1)


def test_another_user_s_folder_is_not_read_and_a_number_given_again_is_not_the_old_job(tmp_path):
    on_nodes(lambda: 1, 1, nodes=1)
    (folder,) = folders(tmp_path)
    assert folder.stat().st_mode & 0o777 == 0o700
    written = (folder / "job.json").read_text()
    record = json.loads(written)
    folder.chmod(0o750)
    with pytest.raises(PermissionError, match="only a folder that is yours alone"):
        jobs.reattach(record["job"], tmp_path / "jobs")
    folder.chmod(0o700)
    # As where Slurm has counted up to its last number, and begun again.
    (folder / "job.json").write_text(json.dumps({**record, "comment": "of another cluster"}))
    assert [job.state for job in jobs.known(tmp_path / "jobs")] == ["GONE"]
    (folder / "job.json").write_text(written)


def test_the_store_listens_on_the_cluster_s_interface_alone_whatever_is_exported(monkeypatch):
    """An address that a shell exported once does not lead the ranks astray."""
    for name, value in {"MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "1", "RANK": "7"}.items():
        monkeypatch.setenv(name, value)

    def step():
        import psutil

        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        found = [
            c.laddr.ip
            for c in psutil.net_connections("tcp")
            if c.status == psutil.CONN_LISTEN and c.laddr.port == port
        ]
        return dist.get_rank(), address, found

    assert list(on_nodes(step, 2)) == [(rank, "127.0.0.1", ["127.0.0.1"]) for rank in (0, 1)]


TRAIN = """
import os, time
from pathlib import Path

import torch.distributed as dist


def step(lr, folder="", steps=4):
    done = Path(folder or ".") / "checkpoint"
    first = int(done.read_text()) if done.exists() else 0
    for index in range(first, steps):
        dist.barrier()
        if dist.get_rank() == 0 and folder:
            done.write_text(str(index + 1))
            (Path(folder) / f"step-{index}").touch()
            while index == 1 and not int(os.environ.get("SLURM_RESTART_COUNT", 0)):
                time.sleep(0.05)  # until Slurm takes the nodes away
    print("from step", first, flush=True)
    return lr * 2
"""


@pytest.fixture
def train(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(TRAIN)
    return file


def dtcourse(*words):
    done = subprocess.run(
        [sys.executable, "-m", "dtcourse.cli", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def numbers(text):
    return [line.split(":")[0].removeprefix("job ") for line in text.splitlines() if "job " in line]


def test_a_sweep_is_a_job_array_with_one_job_for_each_value(train, tmp_path):
    code, said = dtcourse(
        "submit", f"{train}:step", "--ranks", 2, "--nodes", 1, "--sweep", "lr=0.5,1.5"
    )
    assert code == 0, said
    assert "step(lr=0.5)" in said and "step(lr=1.5)" in said
    submitted = [number for number in numbers(said) if number[:1].isdigit()]
    assert len({number.split("_")[0] for number in submitted}) == 1, "one array"
    answers = [list(jobs.reattach(number, tmp_path / "jobs")) for number in submitted]
    assert answers == [[1.0, 1.0], [3.0, 3.0]]
    code, said = dtcourse("jobs")
    assert code == 0 and said.count("COMPLETED") + said.count("RUNNING") == 2, said


def test_a_requeued_job_goes_on_from_its_checkpoint(train, tmp_path):
    code, said = dtcourse(
        *("submit", f"{train}:step", "--ranks", 2, "--nodes", 2, "--requeue"),
        *("--lr", 3, "--folder", tmp_path),
    )
    assert code == 0, said
    (number,) = [number for number in numbers(said) if number[:1].isdigit()]
    deadline = time.monotonic() + MINUTE
    while not (tmp_path / "step-1").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    subprocess.run(["scontrol", "requeue", number], check=True)
    code, said = dtcourse("jobs", number)
    assert code == 0, said
    assert "rank 0 returned 6" in said
    assert "from step 2" in said and "from step 0" not in said, "what the first try said is gone"
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [f"step-{i}" for i in range(4)]


def test_the_doctor_tries_every_node():
    code, said = dtcourse("doctor", "--cluster", "slurm")
    assert code == 0, said
    assert "2 nodes up: n1, n2" in said and "2 nodes met and answered" in said
    assert f"torch {torch.__version__}" in said and "interface lo" in said
    assert "Launches run on the cluster." in said


def test_all_launches_of_a_lesson_can_be_sent_to_the_cluster(cluster, request):
    from dtcourse.emulation import EmulatedNetwork
    from dtcourse.launch import shared_folder, use_cluster

    request.addfinalizer(lambda: use_cluster(None))
    assert shared_folder() is None

    def step(folder=None):
        node = os.environ.get("SLURMD_NODENAME")
        return node if folder is None else (node, os.path.isdir(folder))

    use_cluster("slurm")
    with tempfile.TemporaryDirectory(dir=shared_folder()) as folder:
        assert list(launch(step, 2, folder, nodes=2)) == [("n1", True), ("n2", True)]
        assert Path(folder).is_relative_to(clusters.find("slurm").folder)
    here = launch(step, 2, network=EmulatedNetwork(latency=1e-5, bandwidth=1e9))
    assert list(here) == [None, None], "what is emulated stays here"
    assert list(launch(step, 2, cluster="here")) == [None, None]
    use_cluster(None)
    assert list(launch(step, 2)) == [None, None] and shared_folder() is None


def test_a_cluster_that_is_none_is_refused_before_the_first_launch():
    from dtcourse.launch import use_cluster

    with pytest.raises(ValueError, match="there is no file"):
        use_cluster("nowhere.toml")
    assert list(launch(lambda: 1, 2)) == [1, 1]


def test_ranks_have_cores_of_their_own_where_slurm_binds_the_node_s_task():
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")

    def step():
        return sorted(os.sched_getaffinity(0)), torch.get_num_threads()

    with ThrowawaySlurm(nodes=1, cpus=2, binds=True):
        bound = launch(step, 2, nodes=1, cluster="slurm")
        assert [len(cores) for cores, _ in bound] == [1, 1] and bound[0][0] != bound[1][0]
        assert [threads for _, threads in bound] == [1, 1]
    free = on_nodes(step, 2, nodes=1)
    assert [set(cores) for cores, _ in free] == [os.sched_getaffinity(0)] * 2, "nothing is bound"


# --- modules and containers: how clusters bring software to their nodes ------------------------------------------

MODULE = """
module() {
    [ "$1" = load ] && [ -d "$MODULESHOME/known/$2" ] || { echo "ERROR: Unable to locate $2" >&2; return 1; }
    export "LOADED=$LOADED $2" "PATH=$MODULESHOME/known/$2:$PATH"
}
"""


@pytest.fixture(params=["an exported function", "its init script"])
def modules(request, tmp_path, monkeypatch):
    """Environment modules as a job finds them: `module` is a function of the shell that
    submits, or only MODULESHOME."""
    home = tmp_path / "modules"
    for name in ("gcc/13", "cuda/12.8"):
        (home / "known" / name).mkdir(parents=True)
        tool = home / "known" / name / "which-software"
        tool.write_text(f"#!/bin/sh\necho {name}\n")
        tool.chmod(0o755)
    monkeypatch.setenv("MODULESHOME", str(home))
    if request.param == "an exported function":
        monkeypatch.setenv("BASH_FUNC_module%%", "()" + MODULE.strip().removeprefix("module()"))
    else:
        (home / "init").mkdir()
        (home / "init" / "bash").write_text(MODULE)


def test_modules_are_loaded_in_their_order_before_the_ranks_start(settings, modules):
    def step():
        found = subprocess.run(["which-software"], capture_output=True, text=True, check=True)
        return os.environ["LOADED"].split(), found.stdout.strip()

    settings.write_text(settings.read_text() + 'modules = ["gcc/13", "cuda/12.8"]\n')
    # The one that was loaded last stands first in the PATH.
    assert list(on_nodes(step, 1, nodes=1)) == [(["gcc/13", "cuda/12.8"], "cuda/12.8")]


def test_a_module_that_is_not_there_ends_the_job_with_a_sentence(settings, modules):
    settings.write_text(settings.read_text() + 'modules = ["gcc/13", "cuda/99"]\n')
    with pytest.raises(JobFailed) as caught:
        on_nodes(lambda: 1, 1, nodes=1)
    assert "Unable to locate cuda/99" in str(caught.value)
    assert "`module load cuda/99` failed (`modules` in cluster.toml)" in str(caught.value)


# Reads srun's options as pyxis documents them, and runs the task where nothing can be seen but the image and the
# mounts: bubblewrap stands for enroot. The image is this machine's own software.
PYXIS = """
import json, os, sys

words, kept, options = sys.argv[1:], [], {{}}
command = words.index({python!r})
for word in words[:command]:
    if word.startswith("--container-"):
        name, _, value = word.partition("=")
        options[name] = value
    else:
        kept.append(word)
with open({calls!r}, "a") as file:
    print(json.dumps(options), file=file)
inside = ["bwrap", "--dev", "/dev", "--proc", "/proc"]
for folder in {image!r}:
    inside += ["--ro-bind", folder, folder]
for mount in options["--container-mounts"].split(","):
    inside += ["--bind", *mount.split(":")]
os.execv({srun!r}, [{srun!r}, *kept, *inside, "--", *words[command:]])
"""


@pytest.mark.needs("bubblewrap")
def test_a_container_sees_its_image_and_the_folders_of_the_job(settings, tmp_path, monkeypatch):
    here, data, outside = (tmp_path / name for name in ("here", "data", "outside"))
    for folder in (here, data, outside, tmp_path / "bin"):
        folder.mkdir()
    monkeypatch.chdir(here)
    root = Path(call.__file__).parents[3]
    image = {"/usr", "/bin", "/lib", "/lib64", "/etc", sys.prefix, sys.base_prefix, str(root)}
    image = sorted(folder for folder in image if os.path.exists(folder))
    srun = shutil.which("srun")
    calls = str(tmp_path / "calls")
    stand_in = tmp_path / "bin" / "srun"
    script = tmp_path / "pyxis.py"
    script.write_text(PYXIS.format(python=sys.executable, calls=calls, image=image, srun=srun))
    # Not Python itself: the path of one may have spaces.
    line = shlex.join([sys.executable, str(script)])
    stand_in.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    settings.write_text(
        settings.read_text()
        + f'container = "example/course:1"\n[options]\ncontainer-mounts = "{data}:{data}"\n'
    )

    def step(*folders):
        total = torch.ones(1)
        dist.all_reduce(total)
        return total.item(), os.getcwd(), [os.path.isdir(folder) for folder in folders]

    found = list(on_nodes(step, 4, str(data), str(outside)))
    assert found == [(4.0, str(here), [True, False])] * 4
    jobs_folder = tmp_path / "jobs"
    mounts = f"{jobs_folder}:{jobs_folder},{here}:{here},{data}:{data}"
    [asked] = map(json.loads, Path(calls).read_text().splitlines())
    assert asked == {"--container-image": "example/course:1", "--container-mounts": mounts}


# --- a Slurm that does not come up -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("daemon", "does", "sentence"),
    [
        (
            "slurmctld",
            "echo 'fatal: Incorrect permissions on state save loc' >&2; exit 1",
            "slurmctld ended with exit code 1, and said: fatal: Incorrect permissions on state save loc",
        ),
        (
            "munged",
            "echo 'munged: Error: Failed to check keyfile' >&2; exit 3",
            "munged ended with exit code 3, and said: munged: Error: Failed to check keyfile",
        ),
        ("slurmd", "exit 1", "slurmd-n1 ended with exit code 1"),
    ],
)
def test_a_slurm_that_does_not_come_up_says_why_at_once(
    tmp_path, monkeypatch, daemon, does, sentence
):
    broken = tmp_path / "bin" / daemon
    broken.parent.mkdir()
    broken.write_text(f"#!/bin/sh\n{does}\n")
    broken.chmod(0o755)
    before = os.environ["SLURM_CONF"]
    monkeypatch.setenv("PATH", f"{broken.parent}:{os.environ['PATH']}")
    slurm, why = throwaway.start(nodes=1)
    assert slurm is None and why == f"Slurm did not come up on this machine: {sentence}"
    assert os.environ["SLURM_CONF"] == before


def test_a_slurm_that_is_not_installed_is_said(monkeypatch):
    monkeypatch.setattr(throwaway, "NEEDED", ("sbatch", "no-such-program"))
    assert throwaway.start() == (None, "there is no Slurm here: no-such-program not found")


def test_what_a_command_by_hand_has_to_say_is_taken_by_this_slurm(settings):
    settings.write_text(
        'partition = "urgent"\nminutes = 3\nmodules = ["x"]\n'
        '[options]\nexclusive = true\ncontainer-name = "x"\n'
    )
    asked = slurm.asked_by_hand(clusters.find("slurm"))
    assert asked == ["--partition=urgent", "--time=3", "--exclusive"]
    show = ["sh", "-c", "squeue --noheader --jobs=$SLURM_JOB_ID --format='%P %l'"]
    done = subprocess.run(["srun", *asked, *show], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["urgent", "3:00"]
