"""What a student reads where the cluster, or what was asked of it, is at fault; and what is left of such jobs."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.launch import RankFailure, send_message
from dtcourse.launch.cluster import job, jobs, slurm, throwaway
from dtcourse.launch.cluster import settings as clusters
from dtcourse.launch.cluster.record import JobFailed
from dtcourse.launch.cluster.throwaway import ThrowawaySlurm
from tests.launch.cluster.notebooks import own_settings

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.stands_on("dtcourse/launch/", share=(1, 1)),
]


@pytest.fixture(scope="module")
def cluster():
    with ThrowawaySlurm(nodes=2, cpus=4, misses=300) as slurm:
        yield slurm


@pytest.fixture(autouse=True)
def settings(cluster, tmp_path, monkeypatch):
    """A cluster.toml for one test, and a home."""
    file = own_settings(tmp_path, monkeypatch)
    monkeypatch.setenv("HOME", str(tmp_path))
    return file


def add(settings, text):
    settings.write_text(settings.read_text() + text)


def in_shell(*words, **options):
    done = subprocess.run(map(str, words), capture_output=True, text=True, check=False, **options)
    return done.returncode, done.stdout + done.stderr


def dtcourse(*words):
    return in_shell(sys.executable, "-m", "dtcourse.cli", *words)


# --- what can never start ----------------------------------------------------------------------------------------


def test_more_time_than_the_partition_gives_is_refused(settings):
    settings.write_text(settings.read_text().replace("minutes = 10", "minutes = 100"))
    with pytest.raises(
        JobFailed, match=r"can never start, .*lower `minutes` in cluster.toml"
    ) as caught:
        launch(lambda: 1, 2, cluster="slurm")
    assert "PartitionTimeLimit" in str(caught.value)
    assert slurm.details("job", caught.value.job)["JobState"] == "CANCELLED"


def test_more_cpus_than_a_node_has_are_refused(settings):
    """By sbatch, whose first sentence has the reason."""
    add(settings, "cpus_per_rank = 5\n")
    with pytest.raises(
        ValueError, match="Slurm refused the job: CPU count per node can not be satisfied"
    ):
        launch(lambda: 1, 1, cluster="slurm")


def test_more_nodes_than_there_are_are_refused():
    with pytest.raises(
        JobFailed,
        match=r"can never start, .*asks for 3 nodes, and partition all gives a job at most 2",
    ):
        launch(lambda: 1, 3, nodes=3, cluster="slurm")


def test_a_job_that_begins_later_than_its_notebook_waits_is_refused(settings):
    """Slurm says that the time does not go together with a deadline, which is none of the user's."""
    add(settings, 'wait_minutes = 5\n[options]\nbegin = "now+2hours"\n')
    with pytest.raises(ValueError, match=r"begin at now\+2hours, later than .* `wait_minutes`"):
        launch(lambda: 1, 1, cluster="slurm")


def test_a_dependency_that_cannot_be_met_is_refused(settings):
    code, said = in_shell("sbatch", "--wait", "--output=/dev/null", "--wrap=exit 1")
    assert code == 1, said
    add(settings, f'[options]\ndependency = "afterok:{said.split()[-1]}"\n')
    with pytest.raises(JobFailed, match=r"can never start, .*DependencyNeverSatisfied"):
        launch(lambda: 1, 1, cluster="slurm")


def test_a_job_that_only_waits_is_not_refused_and_a_script_says_why_it_waits(settings, tmp_path):
    """Its node is drained, and comes back."""
    add(settings, '[options]\nnodelist = "n2"\n')
    script = tmp_path / "script.py"
    script.write_text(
        "from dtcourse import launch\n"
        "from dtcourse.launch.cluster import job\n"
        "job.PATIENCE = 1.0\n"
        "def step():\n    return 7\n"
        "if __name__ == '__main__':\n    print(list(launch(step, 1, cluster='slurm')))\n"
    )
    in_shell("scontrol", "update", "nodename=n2", "state=drain", "reason=fan")
    said = tmp_path / "said"
    with open(said, "w") as file:
        process = subprocess.Popen([sys.executable, script], stdout=file, stderr=file)
        deadline = time.monotonic() + 120
        while "waits for 1 node (Slurm's reason: " not in said.read_text():
            assert time.monotonic() < deadline and process.poll() is None, said.read_text()
            time.sleep(0.1)
        from dtcourse.course.doctor import cluster as doctor

        settings.write_text(f'folder = "{tmp_path}/jobs"\n')
        found = {finding.name + finding.found for finding in doctor.examine("slurm")}
        stuck = jobs.of_all_users()
        in_shell("scontrol", "update", "nodename=n2", "state=resume")
        assert process.wait(120) == 0
    assert said.read_text().endswith("[7]\n")
    # The doctor's own job may still be leaving its node; what waits comes first.
    user, _, function, nodes, state, since, reason = stuck[0]
    assert (user, function, nodes, state) == (getpass.getuser(), "step", "1", "PENDING")
    assert since.startswith("since 20") and reason not in ("", "None")
    assert {"Slurm1 node up: n1", "Slurmn2 is drained (fan)"} <= found, found


# --- what is left of jobs, and how they are found ----------------------------------------------------------------


def test_a_refused_job_leaves_no_folder(settings, tmp_path):
    add(settings, 'partition = "gpu"\n')
    with pytest.raises(ValueError, match="this cluster has all, urgent"):
        launch(lambda: 1, 1, cluster="slurm")
    assert not list((tmp_path / "jobs").iterdir())


def test_folders_of_jobs_that_were_never_taken_go_too(tmp_path):
    kinds = {
        "20260101-000000-step-0123abcd": True,
        "20260101-000000-young-0123abcd": False,
        "mine": True,
    }
    for name, old in kinds.items():
        folder = tmp_path / "jobs" / name
        folder.mkdir(mode=0o700, parents=True)
        if old:
            os.utime(folder, (0, 0))
    assert jobs.clean(tmp_path / "jobs") == "1 folder removed"
    assert {path.name for path in (tmp_path / "jobs").iterdir()} == set(list(kinds)[1:])


def test_the_number_of_an_array_lists_its_jobs_and_ends_them(tmp_path):
    train = tmp_path / "train.py"
    train.write_text("import time\n\ndef step(lr):\n    time.sleep(600)\n")
    code, said = dtcourse("submit", f"{train}:step", "--ranks", 1, "--sweep", "lr=1,2")
    assert code == 0, said
    array = said.split()[1].split("_")[0]
    code, said = dtcourse("jobs", array)
    assert code == 0 and f"{array}_0" in said and f"{array}_1" in said, said
    code, said = dtcourse("jobs", array, "--cancel")
    assert code == 0, said
    deadline = time.monotonic() + 60
    while {one.state for one in jobs.tasks(array)} - slurm.OVER:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_job_that_was_sent_with_a_file_is_found_without_it(tmp_path, monkeypatch):
    """With that file's settings, and only while it is there."""
    other = tmp_path / "elsewhere" / "short.toml"
    other.parent.mkdir()
    other.write_text(f'folder = "{tmp_path}/others"\nminutes = 3\n')
    monkeypatch.chdir(other.parent)
    assert list(launch(lambda: 5, 1, cluster="short.toml")) == [5]
    monkeypatch.chdir(tmp_path)
    (found,) = jobs.known()
    assert found.folder.parent == tmp_path / "others" and found.record.minutes == 3
    assert clusters.of_file(found.record.source).minutes == 3
    assert list(jobs.reattach(found.record.job)) == [5]
    other.unlink()
    assert jobs.known() == [] and len(jobs.known(tmp_path / "others")) == 1


def test_a_file_that_somebody_has_laid_in_the_working_folder_is_not_run(tmp_path, monkeypatch):
    """In a shared folder another user's `submitit.py` would run as whoever submits from there."""
    laid = tmp_path / "shared"
    laid.mkdir()
    for name in ("submitit", "cloudpickle", "torch", "dtcourse"):
        (laid / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\n")
    monkeypatch.chdir(laid)
    assert list(launch(lambda: 5, 1, cluster="slurm")) == [5]
    assert not (tmp_path / "ran").exists()


@pytest.mark.needs("users")
def test_folders_of_other_users_are_neither_listed_nor_in_the_way(tmp_path):
    """In a scratch folder that all share."""
    assert list(launch(lambda: 5, 1, cluster="slurm")) == [5]
    (mine,) = jobs.known()
    for name in ("20200101-000000-theirs-0123abcd", "20990101-000000-theirs-0123abcd"):
        theirs = mine.folder.parent / name
        shutil.copytree(mine.folder, theirs)
        os.utime(theirs, (0, 0))
        subprocess.run(["chown", "-R", "nobody", theirs], check=True)
    (found,) = jobs.known()
    assert found.folder == mine.folder
    assert jobs.find(mine.record.job).folder == mine.folder
    assert jobs.clean() == "0 folders removed"
    assert len(list(mine.folder.parent.iterdir())) == 3


# --- what a node says --------------------------------------------------------------------------------------------


def test_a_python_without_the_course_is_named_with_what_it_said(settings, tmp_path):
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    add(settings, f'python = "{bare}/bin/python"\n')
    with pytest.raises(JobFailed) as caught:
        launch(lambda: 1, 1, cluster="slurm")
    assert "No module named 'dtcourse'" in str(caught.value), caught.value
    assert "The Python on the nodes is not the course's own: `python` in cluster.toml" in str(
        caught.value
    )


def test_five_ranks_lie_on_two_nodes_and_know_it(settings):
    add(settings, "ranks_per_node = 4\n")

    def step():
        total = torch.ones(1)
        dist.all_reduce(total)
        names = ("SLURMD_NODENAME", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
        return total.item(), *(os.environ[name] for name in names)

    found = list(launch(step, 5, cluster="slurm"))
    assert found[:3] == [(5.0, "n1", str(i), "3", "0") for i in range(3)]
    assert found[3:] == [(5.0, "n2", str(i), "2", "1") for i in range(2)]


def test_a_job_that_is_cancelled_prints_nothing_of_its_own(capsys):
    def step():
        send_message(os.environ["SLURM_JOB_ID"])
        time.sleep(600)

    def cancel(_, number):
        in_shell("scancel", number)

    with pytest.raises(JobFailed, match="was cancelled"):
        launch(step, 1, cluster="slurm", on_message=cancel)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("cut_first", [False, True])
def test_a_node_that_dies_in_a_collective_is_named_before_slurm_misses_it(cut_first, monkeypatch):
    """With Slurm's own patience of 300 s, on a cluster of its own.

    cut_first: its cable, so that no connection ends, and no other rank has anything to say of it
    """
    if cut_first:
        monkeypatch.setattr(job, "SILENT", 10.0)  # instead of a minute
    with ThrowawaySlurm(nodes=2, cpus=4, misses=300) as doomed:
        names = {}

        def step():
            send_message(os.environ["SLURMD_NODENAME"])
            while True:
                dist.all_reduce(torch.ones(1))

        def kill(rank, name):
            names[rank] = name
            if len(names) == 4:
                ends(doomed)

        def ends(doomed):
            if not cut_first:
                return doomed.kill_node("n2")
            for process in throwaway._processes_of(doomed.folder, "n2"):
                process.suspend()

        with pytest.raises(RankFailure) as caught:
            launch(step, 4, nodes=2, cluster="slurm", on_message=kill, timeout=None)
        said = str(caught.value)
        assert said.startswith(
            "node n2 went silent; ranks 2, 3 were on it. rank 2 of 4 was lost with its node, n2"
        )
        assert {failure.rank for failure in caught.value.failures} >= {2, 3}
        assert slurm.lost_nodes("", "n[1-2]") == [], "Slurm has not missed it yet"


@pytest.mark.needs("users")
def test_nodes_without_names_print_no_warnings_of_torch(monkeypatch):
    """As on a network without reverse DNS, where each rank's client wonders at each connection."""
    nameless = (
        'mount --bind /dev/null /etc/hosts && mount --bind /dev/null /etc/resolv.conf && exec "$@"'
    )

    def step():
        dist.barrier()

    with ThrowawaySlurm(nodes=2, inside=("unshare", "--mount", "sh", "-c", nameless, "sh")):
        assert launch(step, 2, nodes=2, cluster="slurm").output == [[], []]
        monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "WARNING")
        asked_for = launch(step, 2, nodes=2, cluster="slurm").output
        assert "The hostname of the client socket cannot be retrieved" in asked_for[0][0]
