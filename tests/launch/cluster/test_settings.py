"""cluster.toml: what is read, what is refused with which sentence, and where ranks lie.
Nothing here needs a cluster."""

from __future__ import annotations

import pytest

from dtcourse import launch
from dtcourse.launch.cluster import remote
from dtcourse.launch.cluster import settings as clusters
from dtcourse.launch.cluster.settings import Settings


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A folder below none that has a cluster.toml, and a home without one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DTCOURSE_CLUSTER", raising=False)


WRONG = {
    "minutes = 0": r"minutes is a number of at least 1",
    "minutes = 1.5": r"minutes is a number of at least 1",
    "wait_minutes = -1": r"wait_minutes is a number above 0; got -1",
    "gpus_per_node = -1": r"gpus_per_node is a whole number, 0 for none; got -1",
    "gpus_per_node = true": r"gpus_per_node is a whole number",
    'partition = ""': r"partition is a text; got ''",
    'modules = "cuda"': r"modules is a list of texts; got 'cuda'",
    'scheduler = "lsf"': r'scheduler is "slurm" or "ray"; got \'lsf\'',
    "partitoin = 1": r"there is no setting 'partitoin'; known are scheduler, folder, partition",
    "minutes = ": r"is not TOML",
    'signal = "USR1@60"': r"signal is a name \(USR2 or HUP\).*got 'USR1@60'.*USR1 asks a rank for its stack",
    "signal = 60": r"signal is a name .*got 60",
    '[options]\ntime = "1:00"': r"time under \[options\] is the setting `minutes`",
    '[options]\nsignal = "USR2@1"': r"signal under \[options\] is the setting `signal`",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_in_the_file_is_named(text, tmp_path):
    (tmp_path / "cluster.toml").write_text(text)
    with pytest.raises(ValueError, match=WRONG[text]):
        clusters.find("slurm")


def test_the_file_is_looked_for_here_above_and_at_home(tmp_path, monkeypatch):
    assert clusters.find("slurm") == Settings(), "none: the cluster's own defaults"
    home = tmp_path / "home" / ".config" / "dtcourse"
    home.mkdir(parents=True)
    (home / "cluster.toml").write_text("minutes = 1")
    assert clusters.find("slurm").minutes == 1
    (tmp_path / "cluster.toml").write_text("minutes = 2")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert clusters.find("slurm").minutes == 2
    (tmp_path / "other.toml").write_text("minutes = 3")
    monkeypatch.setenv("DTCOURSE_CLUSTER", str(tmp_path / "other.toml"))
    assert clusters.find("slurm").minutes == 3
    assert clusters.find(str(tmp_path / "cluster.toml")).minutes == 2, "a path is meant"


@pytest.mark.parametrize("cluster", ["Slurm", "kubernetes", 4, "nowhere.toml"])
def test_a_cluster_that_is_none_is_refused(cluster):
    with pytest.raises(ValueError, match=r"cluster is \"slurm\"|there is no file"):
        launch(lambda: 1, 2, cluster=cluster)


def test_where_there_is_no_slurm_one_sentence_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match=r"there is no Slurm here \(sbatch.*login node"):
        launch(lambda: 1, 2, cluster="slurm")


def laid_out(settings, world_size, nodes=1, **asked):
    given = {"backend": None, "device": None, "threads": 1} | asked
    return remote.layout_on(settings, world_size, nodes=nodes, **given)


def test_ranks_lie_on_as_few_nodes_as_have_room_as_equally_as_can_be():
    for world_size, sizes in (
        (3, [3]),
        (4, [4]),
        (5, [3, 2]),
        (6, [3, 3]),
        (7, [4, 3]),
        (8, [4, 4]),
        (10, [4, 3, 3]),
    ):
        layout = laid_out(Settings(ranks_per_node=4), world_size)
        ranks = [list(layout.ranks_of(node)) for node in range(layout.nodes)]
        assert [len(of_one) for of_one in ranks] == sizes and max(sizes) == layout.ranks_per_node
        assert [rank for of_one in ranks for rank in of_one] == list(range(world_size)), (
            "in rank order"
        )
        nodes = [layout.node_of(rank) for rank in range(world_size)]
        assert nodes == sorted(nodes)
    assert Settings(ranks_per_node=4).nodes_for(10, 1, equal=True) == 5, (
        "torchrun's nodes are equal"
    )
    assert "5 ranks as 2 nodes of 3 and 2" in str(laid_out(Settings(ranks_per_node=4), 5))
    assert laid_out(Settings(ranks_per_node=4), 4, nodes=2).ranks_per_node == 2
    assert laid_out(Settings(), 64).nodes == 1, "nothing is said of room"
    with pytest.raises(ValueError, match=r"5 per node, and .* allows 4 \(ranks_per_node\)"):
        laid_out(Settings(ranks_per_node=4), 10, nodes=2)
    with pytest.raises(ValueError, match="5 ranks cannot be laid out as 2 nodes"):
        laid_out(Settings(), 5, nodes=2)


def test_the_signal_before_the_limit_leaves_a_short_job_half_of_its_time():
    assert Settings(minutes=30).warning == ("USR2", 90)
    assert Settings(minutes=1).warning == ("USR2", 30)
    changed = Settings(minutes=1).with_limit(10, "HUP@120")
    assert (changed.minutes, changed.warning) == (10, ("HUP", 120))
    assert Settings(minutes=7).with_limit(None, None).minutes == 7
    with pytest.raises(ValueError, match="minutes is a number of at least 1"):
        Settings().with_limit(0, None)


def test_nccl_where_each_rank_has_a_gpu_of_its_own():
    with_gpus = Settings(gpus_per_node=4)
    assert laid_out(with_gpus, 8, nodes=2).backend == "nccl"
    assert laid_out(with_gpus, 16, nodes=2).backend == "gloo", "eight ranks share four GPUs"
    assert laid_out(with_gpus, 8, nodes=2, device="cpu").backend == "gloo"
    assert laid_out(Settings(), 8, nodes=2).kind == "cpu"
    with pytest.raises(ValueError, match="gpus_per_node = 0"):
        laid_out(Settings(), 8, device="cuda")
    with pytest.raises(ValueError, match=r"needs a GPU for every rank: 8 ranks per node, 4 GPUs"):
        laid_out(with_gpus, 16, nodes=2, backend="nccl")


def test_a_jobs_folder_that_cannot_be_made_is_named(tmp_path):
    from dtcourse.launch.cluster import folder

    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"jobs' folder .*file/jobs cannot be written"):
        folder.create(tmp_path / "file" / "jobs", "step")
