"""What a student reads where there is no Ray, or none that can be reached. Runs without Ray."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dtcourse import launch
from dtcourse.launch.cluster import jobs, ray, ray_connection, scheduler
from dtcourse.launch.cluster import settings as clusters
from dtcourse.launch.cluster.agent import Node
from dtcourse.launch.cluster.call import FAILED, REFUSED, Call, log_name
from dtcourse.launch.cluster.folder import Reader
from dtcourse.launch.cluster.ray_actor import Place
from dtcourse.launch.cluster.ray_connection import Node as Machine
from dtcourse.launch.cluster.ray_job import RayJob
from dtcourse.launch.cluster.ray_log import RayLog
from dtcourse.launch.cluster.settings import Settings
from dtcourse.launch.cluster.station import Station
from dtcourse.launch.options import Layout
from tests import optional_programs


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=f'pip install "{ray_connection.PACKAGE}"'):
        launch(lambda: 1, 2, cluster="ray")


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:1", "no Ray cluster can be reached at 127.0.0.1:1: `ray start --head`"),
        ("nonsense", "no Ray cluster can be reached at nonsense"),
        ("ray://127.0.0.1:10001", "and not Ray's client"),
    ],
)
def test_where_nothing_answers_it_says_what_to_start(address, sentence, monkeypatch):
    optional_programs.require("ray")
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(RuntimeError, match=sentence):
        launch(lambda: 1, 2, cluster="ray")


def test_a_cluster_toml_of_slurm_s_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(clusters.VARIABLE, raising=False)
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "cluster.toml").write_text('scheduler = "ray"\ncpus_per_rank = 2\n')
    (inner / "cluster.toml").write_text("cpus_per_rank = 3\n")
    monkeypatch.chdir(inner)
    assert clusters.find("slurm").cpus_per_rank == 3
    found = clusters.find("ray")
    assert (found.scheduler, found.cpus_per_rank) == ("ray", 2)
    assert scheduler.of(found).NAME == "Ray" and scheduler.of(Settings()).NAME == "Slurm"


def machines(*cpus, gpus=0):
    return [
        Machine(str(index), f"n{index}", {"CPU": float(count), "GPU": float(gpus)})
        for index, count in enumerate(cpus)
    ]


@pytest.mark.parametrize(
    ("cpus", "ranks", "asked", "nodes"),
    [
        ((8,), 8, 1, 1),
        ((4, 4), 8, 1, 2),
        ((4, 4), 4, 1, 1),
        ((4, 4), 4, 2, 2),
        ((1, 3, 4), 7, 1, 2),
        ((2, 2), 3, 1, 2),
    ],
)
def test_ranks_are_laid_out_on_as_few_nodes_as_have_room(cpus, ranks, asked, nodes, monkeypatch):
    monkeypatch.setattr(ray_connection, "nodes", lambda _: machines(*cpus))
    assert ray_connection.nodes_for(None, Settings(scheduler="ray"), ranks, asked) == nodes


@pytest.mark.parametrize(
    ("cpus", "ranks", "asked", "settings"),
    [
        ((4, 4), 9, 1, {}),
        ((5, 3), 8, 1, {}),
        ((8,), 4, 2, {}),
        ((8,), 8, 1, {"cpus_per_rank": 2}),
        ((8,), 2, 1, {"gpus_per_node": 1}),
        ((), 1, 1, {}),
    ],
)
def test_ranks_without_room_are_refused_with_what_there_is(
    cpus, ranks, asked, settings, monkeypatch
):
    monkeypatch.setattr(ray_connection, "nodes", lambda _: machines(*cpus))
    with pytest.raises(ValueError, match="have no room on this Ray cluster, which takes"):
        ray_connection.nodes_for(None, Settings(scheduler="ray", **settings), ranks, asked)


def test_a_rank_whose_machine_lacks_the_notebook_s_folder_works_in_its_job_s(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "job"
    folder.mkdir(mode=0o700)
    node = Node(folder, Station(0, "n0"))
    layout = Layout(1, 1, "cpu", 0, "gloo", 1)
    asked = {"directory": str(tmp_path / "gone"), "path": [], "interface": None}
    call = Call(layout, None, **asked)
    assert "has no folder" in node.lacks(call)
    call = Call(layout, None, **asked, shares=False)
    assert node.lacks(call) is None
    node.go_to(call)
    assert folder.samefile(".")


@pytest.mark.parametrize("what", ["dtcourse", "torch"])
def test_what_differs_between_machines_gets_the_advice_of_its_scheduler(
    what, tmp_path, monkeypatch
):
    """On Ray the machines share no folder, and cluster.toml names no Python."""
    monkeypatch.chdir(tmp_path)
    said = {}
    for shares in (True, False):
        folder = tmp_path / str(shares)
        folder.mkdir(mode=0o700)
        call = Call(Layout(1, 1, "cpu", 0, "gloo", 1), None, str(tmp_path), [], None, shares=shares)
        call.versions[what] = "another"
        with pytest.raises(SystemExit):
            Node(folder, Station(0, "n0")).settle(call)
        words = dict(unpack() for unpack in Reader(folder / log_name(0)).new())
        said[shares] = words[REFUSED]
    assert (
        "on each machine of the cluster" in said[False]
        and "the Python that runs Ray" in said[False]
    )
    assert "share" not in said[False] and "cluster.toml" not in said[False]
    assert ("all nodes share" if what == "dtcourse" else "`python` in cluster.toml") in said[True]


def test_a_launch_that_ray_has_taken_leaves_no_folder_whatever_becomes_of_its_notebook(
    tmp_path, monkeypatch
):
    """The folder goes as soon as Ray has what is in it: a notebook that is killed cannot remove it."""

    class Taken:
        number = "1"

        def __init__(self, ray, folder, call, settings):
            self.read = (folder / "call").read_bytes()

    monkeypatch.setattr(ray_connection, "connected", lambda: None)
    monkeypatch.setattr(ray, "RayJob", Taken)
    monkeypatch.setattr(ray, "_jobs", {})
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "call").write_bytes(b"asked")
    assert ray.submit([folder], None, Settings(scheduler="ray"), "step") == ["1"]
    assert ray._jobs["1"].read == b"asked"
    assert not folder.exists()


def test_a_launch_that_ray_refuses_leaves_no_folder(tmp_path, monkeypatch):
    class RayError(Exception):
        """Ray's own is none of Python's either."""

    def refused(*_):
        raise RayError("the object store is full")

    monkeypatch.setattr(ray_connection, "connected", lambda: None)
    monkeypatch.setattr(ray, "RayJob", refused)
    with pytest.raises(RayError):
        ray.submit([tmp_path], None, Settings(scheduler="ray"), "step")
    assert not tmp_path.exists()


@pytest.mark.parametrize("whose", ["ray", "slurm"])
def test_what_launches_on_ray_have_left_is_cleaned_where_there_is_no_slurm(
    whose, tmp_path, monkeypatch
):
    """A notebook that was killed before Ray had its launch. whose: cluster.toml; of Slurm's Ray knows nothing."""
    file = tmp_path / "cluster.toml"
    folder = {"ray": "jobs", "slurm": "scratch"}[whose]
    file.write_text(f'scheduler = "{whose}"\nfolder = "{tmp_path}/{folder}"\n')
    monkeypatch.setenv(clusters.VARIABLE, str(file))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))  # no sbatch
    left = Path(clusters.find("ray").folder).expanduser()  # where a launch on Ray keeps its own
    assert left == {"ray": tmp_path / "jobs", "slurm": tmp_path / ".dtcourse" / "jobs"}[whose]
    for name in ("20260101-000000-old-0123abcd", "20260101-000000-young-0123abcd"):
        (left / name).mkdir(mode=0o700, parents=True)
    os.utime(left / "20260101-000000-old-0123abcd", (0, 0))
    assert jobs.clean() == "1 folder removed"
    assert [path.name for path in left.iterdir()] == ["20260101-000000-young-0123abcd"]


@pytest.mark.parametrize(
    ("listens", "alive", "lives"),
    [(True, True, True), (False, True, False), (True, False, False)],
)
def test_a_machine_whose_raylet_was_killed_alone_is_lost_before_ray_misses_it(
    listens, alive, lives, monkeypatch
):
    door = socket.create_server(("127.0.0.1", 0))
    port = door.getsockname()[1]
    if not listens:
        door.close()
    known = {"NodeID": "a1", "NodeName": "second", "Alive": alive, "Resources": {}}
    where = {"NodeManagerAddress": "127.0.0.1", "NodeManagerPort": port}
    fake = SimpleNamespace(nodes=lambda: [known | where])
    assert ray_connection.lives(fake, "a1") is lives
    door.close()


def test_of_two_raylets_on_one_host_the_lost_one_alone_is_told(tmp_path, monkeypatch):
    """Ray calls both as their host; their names here differ while both live, and one is left when one is lost."""
    door = socket.create_server(("127.0.0.1", 0))
    where = {"NodeManagerAddress": "127.0.0.1", "NodeManagerPort": door.getsockname()[1]}
    raylets = [
        {"NodeID": one * 8, "NodeName": "host", "Alive": True, "Resources": {}} | where
        for one in "ab"
    ]
    late = raylets[0] | {"NodeID": "c" * 8, "NodeName": "third"}

    asked = []

    def actor(self, node, ranks):
        asked.append((node, ranks))
        place = Place(["a" * 8, "b" * 8, "c" * 8][node], "127.0.0.1", [])
        remotes = {"place": lambda: place, "start": lambda *_: None}
        return SimpleNamespace(**{n: SimpleNamespace(remote=one) for n, one in remotes.items()})

    def reserved(bundles):
        assert bundles == [{"CPU": 2.0}, {"CPU": 2.0}, {"CPU": 1.0}]
        return SimpleNamespace(id=b"12345678")

    fake = SimpleNamespace(
        nodes=lambda: raylets,
        get_runtime_context=lambda: SimpleNamespace(get_job_id=lambda: 1),
        util=SimpleNamespace(placement_group=lambda bundles, **_: reserved(bundles)),
        put=lambda one: one,
        get=lambda one: one,
        wait=lambda asked, timeout: (asked, []),
    )
    monkeypatch.setattr(RayJob, "_actor", actor)
    monkeypatch.setattr(ray_connection, "connected", lambda: fake)
    monkeypatch.setattr(ray, "_jobs", {})
    (tmp_path / "call").write_bytes(b"asked")
    call = Call(Layout(5, 3, "cpu", 0, "gloo", 1), None, str(tmp_path), [], None)
    (number,) = ray.submit([tmp_path], call, Settings(scheduler="ray"), "step")
    assert asked == [(0, 2), (1, 2), (2, 1)], "an actor a node, whose agent starts its ranks"
    for log in ray._jobs[number].logs:
        assert not [*log.new()]  # where its actor is
    raylets.append(late)  # which the job did not know by name
    _, nodes, _ = ray.state_of(number, "")
    assert nodes == "host-aaaaaa,host-bbbbbb,127.0.0.1"
    assert ray.lost_nodes(number, nodes) == []
    raylets[1]["Alive"] = False
    assert ray.lost_nodes(number, nodes) == ["host-bbbbbb"]
    door.close()


@pytest.mark.parametrize(
    ("name", "summary"),
    [("second", "was lost with its node, second"), (None, "was killed: its node's actor died")],
)
def test_an_actor_that_has_gone_is_told_of_all_ranks_of_its_node(name, summary):
    class Gone(Exception):
        pass

    def get(_):
        raise Gone("the actor died")

    kinds = {"RayError": Gone, "RayTaskError": KeyError, "ActorUnavailableError": OSError}
    fake = SimpleNamespace(
        wait=lambda asked, timeout: (asked, []), get=get, exceptions=SimpleNamespace(**kinds)
    )
    actor = SimpleNamespace(place=SimpleNamespace(remote=object))
    log = RayLog(fake, actor, range(2, 4), lambda _: name)
    log.place = Place("a1", "127.0.0.1", [])
    ((word, failed),) = [unpack() for unpack in log.new()]
    assert word == FAILED
    assert [one.rank for one in failed] == [2, 3]
    assert all(one.summary.startswith(summary) for one in failed)


@pytest.mark.parametrize("kind", [ConnectionError, type("AuthenticationError", (Exception,), {})])
def test_a_notebook_without_its_cluster_s_token_is_told_of_it(kind, monkeypatch):
    """Ray 2.60 says "Failed to connect" where the token is another or none is asked for, and has an error of its own
    where there is no file with one."""

    def init(**_):
        raise kind("Failed to connect to Ray cluster")

    monkeypatch.setattr(ray_connection, "_answers", lambda _: True)
    with pytest.raises(RuntimeError, match=r"If one runs here: .* RAY_AUTH_MODE=token"):
        ray_connection._connect(SimpleNamespace(init=init), "auto")
    with pytest.raises(RuntimeError, match="RAY_AUTH_MODE=token") as caught:
        ray_connection._connect(SimpleNamespace(init=init), "10.0.0.1:6379")
    assert "Failed to connect" in str(caught.value) and "`ray start --head`" not in str(
        caught.value
    )


def test_a_machine_that_has_not_joined_is_told_how(monkeypatch):
    """In Ray 2.60's words."""

    def init(**_):
        raise RuntimeError("No node info found matching attributes: '' when trying to resolve node")

    monkeypatch.setattr(ray_connection, "_answers", lambda _: True)
    with pytest.raises(RuntimeError, match="this machine has not joined the Ray cluster") as caught:
        ray_connection._connect(SimpleNamespace(init=init), "10.0.0.1:6379")
    assert "`ray start --address=10.0.0.1:6379` here" in str(caught.value)
    assert "RAY_AUTH_MODE" not in str(caught.value)


def test_what_ray_has_to_say_of_its_own_is_not_printed_into_the_cell(monkeypatch):
    """Of a raylet that ended it prints the last lines of the log, in colours, whatever log_to_driver says."""
    worker = SimpleNamespace(_worker_logs_enabled=True)
    asked = {}
    fake = SimpleNamespace(
        init=lambda **options: asked.update(options), _private=SimpleNamespace(worker=worker)
    )
    ray_connection._connect(fake, "auto")
    assert asked["log_to_driver"] is False and worker._worker_logs_enabled is False


def test_that_switch_is_ray_s(capfd, monkeypatch):
    optional_programs.require("ray")
    from ray._private import worker

    line = {"lines": ["[state-dump] of a raylet"], "pid": "raylet", "is_err": False}
    for enabled, shown in ((True, 1), (False, 0)):
        monkeypatch.setattr(worker, "_worker_logs_enabled", enabled)
        worker.print_to_stdstream(line, ignore_prefix=False)
        said = capfd.readouterr()
        assert (said.out + said.err).count("state-dump") == shown
