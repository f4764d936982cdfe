"""launch(..., cluster="ray") on a real Ray of two raylets, which this file starts on this machine and takes down."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.launch import Cancelled, RankFailure, RankTimeout, send_message
from dtcourse.launch.cluster import call, ray_connection, ray_job
from dtcourse.launch.cluster.record import JobFailed
from tests.launch.cluster.notebooks import notebook, until

pytestmark = [
    pytest.mark.needs("ray"),
    pytest.mark.slow,
    pytest.mark.stands_on("dtcourse/launch/", share=(1, 1)),
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # Ray's own
]
LONG = 600.0  # seconds: what a test does not wait for


@pytest.fixture(scope="module")
def cluster():
    import ray
    from ray.cluster_utils import Cluster

    before = os.environ.get("RAY_ADDRESS")
    two = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "node_name": "first", "include_dashboard": False},
    )
    try:
        os.environ["RAY_ADDRESS"] = two.address
        ray_connection.connected()  # by the first node: a test removes the second
        two.add_node(num_cpus=2, node_name="second")
        yield two
    finally:
        os.environ.pop("RAY_ADDRESS")
        if before is not None:
            os.environ["RAY_ADDRESS"] = before
        ray.shutdown()
        two.shutdown()


@pytest.fixture(autouse=True)
def nothing_is_left(cluster, tmp_path, monkeypatch):
    """Of any test: no placement group, no actor, no rank, no folder."""
    file = tmp_path / "cluster.toml"
    file.write_text(f'scheduler = "ray"\nfolder = "{tmp_path}/jobs"\n')
    monkeypatch.setenv("DTCOURSE_CLUSTER", str(file))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    yield file
    import ray

    if ray.is_initialized():
        groups = ray.util.placement_group_table().values()
        assert {group["state"] for group in groups} <= {"REMOVED"}
        until(lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"])
    until(lambda: not agents())
    jobs = tmp_path / "jobs"
    assert not jobs.exists() or not list(jobs.iterdir())


def agents():
    """The processes of actors, agents and ranks."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or [])
        if "ray_agent.main" in words or words.startswith("ray::NodeActor"):
            found.append(process.pid)
    return found


def ranks_folders():
    """Those of actors, where a worker of Ray's has its temporary files: not where this test has."""
    return set(Path("/tmp").glob("dtcourse-ray-*"))


def actor():
    """In a rank: the process of its actor, above the agent and the ranks' server."""
    return next(
        parent.pid for parent in psutil.Process().parents() if "ray::" in parent.cmdline()[0]
    )


def on_ray(function, world_size=3, *args, **options):
    return launch(function, world_size, *args, cluster="ray", **{"timeout": LONG, **options})


def test_the_same_function_runs_on_two_nodes_and_comes_back_like_a_launch_here(capsys, tmp_path):
    heard, told = [], tmp_path / "told"

    def step(offset, told):
        total = torch.tensor([dist.get_rank() + offset])
        dist.all_reduce(total)
        print("hello from", dist.get_rank())
        send_message({"rank": dist.get_rank()})
        while not os.path.exists(told):  # the notebook has heard of it while we run
            time.sleep(0.05)
        names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "SET_FOR_RANKS")
        return total, [os.environ[name] for name in names]

    def on_message(rank, message):
        heard.append((rank, message))
        if len(heard) == 3:
            told.touch()

    run = on_ray(
        step,
        offset=torch.tensor(10),
        told=str(told),
        on_message=on_message,
        record=True,
        backend="ring",
        env={"SET_FOR_RANKS": "yes"},
    )
    assert [total.item() for total, _ in run] == [33] * 3
    assert [place for _, place in run] == [
        ["0", "2", "0", "yes"],
        ["1", "2", "0", "yes"],
        ["0", "1", "1", "yes"],
    ]
    assert sorted(heard, key=lambda one: one[0]) == [(k, {"rank": k}) for k in range(3)]
    assert run.output == [[f"hello from {index}"] for index in range(3)]
    assert capsys.readouterr().out == "".join(f"rank {i} | hello from {i}\n" for i in range(3))
    assert str(run.layout).startswith("3 ranks as 2 nodes of 2 and 1 on the CPU, backend ring")
    assert run.traffic.bytes_sent() > 0
    assert {event.rank for event in run.timeline.events} == {0, 1, 2}
    run[0][0].add_(1)  # a result's tensor may be written to


def test_an_error_names_its_rank_with_its_traceback_and_ends_the_others():
    def step():
        if dist.get_rank() == 2:
            raise ValueError("bad shape")
        dist.barrier()

    with pytest.raises(RankFailure, match="rank 2 of 3 raised ValueError: bad shape") as caught:
        on_ray(step)
    assert isinstance(caught.value.__cause__, ValueError)
    assert "in step" in str(caught.value), "with its traceback"


def test_where_the_others_go_on_a_failure_takes_the_result_s_place():
    def step():
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return dist.get_rank()

    run = on_ray(step, on_failure="continue")
    assert [run[0], run[2]] == [0, 2]
    assert str(run[1]).startswith("rank 1 of 3 was killed by SIGKILL")


def test_at_the_time_limit_all_ranks_say_where_they_are():
    def step():
        if dist.get_rank() == 1:
            dist.recv(torch.zeros(1), 0)

    with pytest.raises(RankTimeout, match=r"not done after 2 s") as caught:
        on_ray(step, 2, timeout=2.0)
    assert "waited in recv()" in caught.value.waiting[1]
    assert caught.value.waiting[0] == "had returned from the function"


def test_an_actor_that_is_killed_is_told_with_its_ranks():
    def step():
        send_message(actor())
        dist.barrier()
        time.sleep(LONG)

    def on_message(rank, pid):
        if rank == 2:
            os.kill(pid, signal.SIGKILL)

    with pytest.raises(RankFailure, match="rank 2 of 3 was killed: its node's actor died"):
        on_ray(step, on_message=on_message)


def test_a_launch_that_is_cancelled_leaves_nothing():
    begun = threading.Event()

    def step():
        send_message("here")
        time.sleep(LONG)

    handle = on_ray(step, 2, wait=False, on_message=lambda *_: begun.set())
    assert begun.wait(LONG)
    handle.cancel()
    with pytest.raises(Cancelled):
        handle.result()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_a_notebook_that_is_interrupted_or_killed(number, tmp_path):
    cells = """
        import pathlib, sys, time
        from dtcourse import launch
        from dtcourse.launch import send_message

        def step():
            send_message("here")
            time.sleep(600)

        if __name__ == "__main__":
            begun = pathlib.Path(sys.argv[1])
            launch(step, 2, cluster="ray", timeout=None, on_message=lambda *_: begun.touch())
    """
    before = ranks_folders()
    with notebook(tmp_path, cells, tmp_path / "begun") as process:
        until(lambda: process.poll() is not None or (tmp_path / "begun").exists())
        assert process.poll() is None and len(agents()) >= 2
        process.send_signal(number)
        assert process.wait(120) != 0
    until(lambda: not agents())
    until(lambda: ranks_folders() <= before)


def test_ten_students_at_once_get_their_own_results(nothing_is_left):
    """There is room for two of them at a time; what fails is one student's alone, and nothing is left."""
    nothing_is_left.write_text(nothing_is_left.read_text() + "wait_minutes = 10\n")

    def total(number):
        value = torch.tensor([number])
        dist.all_reduce(value)
        if number == 7 and dist.get_rank():
            raise ValueError(f"the mistake of student {number}")
        return value.item()

    def student(number):
        try:
            return list(on_ray(total, 2, number))
        except RankFailure as failure:
            return str(failure)

    with ThreadPoolExecutor(10) as pool:
        found = dict(enumerate(pool.map(student, range(10))))
    assert "rank 1 of 2 raised ValueError: the mistake of student 7" in found.pop(7)
    assert found == {number: [2 * number] * 2 for number in found} and len(found) == 9


def test_a_launch_waits_for_a_cluster_that_is_busy_and_not_for_ever(nothing_is_left):
    ray = ray_connection.connected()
    nothing_is_left.write_text(nothing_is_left.read_text() + "wait_minutes = 0.05\n")
    others = ray.util.placement_group([{"CPU": 2}, {"CPU": 1}], strategy="STRICT_SPREAD")
    ray.get(others.ready())
    try:
        with pytest.raises(JobFailed, match=r"in the queue \(1 of 4 CPUs are free\)"):
            on_ray(lambda: 1, 2)
    finally:
        ray.util.remove_placement_group(others)


def test_large_arguments_and_results_come_through_unharmed():
    given = torch.arange(10_000_000, dtype=torch.float64)  # 80 MB

    def step(given):
        return given * 2 if dist.get_rank() == 1 else given[-1].item()

    run = on_ray(step, 2, given)
    assert run[0] == 9_999_999
    torch.testing.assert_close(run[1], 2 * given, rtol=0, atol=0)


def test_a_job_has_a_time_limit_of_its_own(nothing_is_left, monkeypatch):
    monkeypatch.setattr(ray_job, "MINUTE", 1.0)
    nothing_is_left.write_text(nothing_is_left.read_text() + "minutes = 1\n")
    with pytest.raises(JobFailed, match="reached its time limit of 1 minute"):
        on_ray(lambda: time.sleep(LONG), 1)


def test_other_sources_on_a_machine_are_refused_with_what_to_do_on_ray(monkeypatch):
    monkeypatch.setattr(call, "_digest", lambda: "another")
    with pytest.raises(JobFailed, match="has other source files of dtcourse") as caught:
        on_ray(lambda: 1, 1)
    assert "on each machine of the cluster what the notebook has" in str(caught.value)


def test_what_ray_has_not_is_refused(nothing_is_left, cluster, monkeypatch):
    from dtcourse.launch import cluster as clusters

    with pytest.raises(ValueError, match=r"5 ranks with 1 CPU each have no room .* takes 4 \("):
        on_ray(lambda: 1, 5)
    with pytest.raises(ValueError, match="laid out as 3 nodes"):
        on_ray(lambda: 1, 3, nodes=3)
    with pytest.raises(ValueError, match="there are no batch jobs"):
        clusters.submit(lambda: 1, 1, cluster="ray")
    with (
        pytest.raises(ValueError, match="holds no nodes"),
        clusters.allocation(1, cluster="ray"),
    ):
        pass
    nothing_is_left.write_text(nothing_is_left.read_text() + 'partition = "gpu"\n')
    with pytest.raises(ValueError, match="partition is Slurm's"):
        on_ray(lambda: 1, 1)


@pytest.mark.parametrize("alone", [True, False])
def test_a_node_that_is_lost_is_named_with_its_ranks(alone, cluster, capfd):
    """The last tests, since they take the second node away. alone: of its processes only the raylet is killed, as the
    system does where memory is short, while its ranks are busy."""
    if not cluster.worker_nodes:
        cluster.add_node(num_cpus=2, node_name="second")
    (second,) = cluster.worker_nodes

    def step():
        send_message("here")
        while True:
            dist.all_reduce(torch.ones(1)) if alone else time.sleep(1)

    begun = []

    def on_message(rank, _):
        begun.append(rank)
        if len(begun) == 4 and alone:
            os.kill(second.all_processes["raylet"][0].process.pid, signal.SIGKILL)
        elif len(begun) == 4:
            cluster.remove_node(second, allow_graceful=False)

    try:
        with pytest.raises(RankFailure, match="was lost with its node, second") as caught:
            on_ray(step, 4, nodes=2, on_message=on_message)
    finally:
        if second in cluster.worker_nodes:
            cluster.remove_node(second, allow_graceful=False)
    lost = [one.rank for one in caught.value.failures if "was lost with its node" in one.summary]
    assert lost in ([0, 1], [2, 3])
    said = "".join(capfd.readouterr())
    assert "state-dump" not in said and "\x1b[" not in said, (
        "Ray's own log does not stand in the cell"
    )
