"""A run's record holds what all ranks logged; files are whole; what is wrong is refused before anything hangs."""

from __future__ import annotations

import json
import math

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import launch
from dtcourse.profiling import tracking, tracking_files
from dtcourse.profiling.tracking import Experiment
from dtcourse.profiling.tracking_files import Record, over_ranks
from dtcourse.profiling.tracking_mlflow import to_mlflow


def trained(folder):
    rank, refusals = dist.get_rank(), []
    for name, parameters in (
        ("other lr", {"lr": 0.1 * (1 + rank)}),
        ("../out", {}),
        ("odd", {"model": [nn.Linear(1, 1)] * rank}),
    ):
        try:
            Experiment(folder, name, parameters=parameters)
        except ValueError as error:
            refusals.append(str(error))
    with Experiment(folder, "ddp", parameters={"lr": 0.1, "hidden": [8, 8]}) as run:
        for step in range(3):
            run.log(step, loss=torch.tensor(step + 10.0 * rank), speed=5)
        if rank == 0:
            run.log(7, accuracy=math.nan)
        (folder / f"file-{rank}").write_text(f"of {rank}")
        run.artifact(folder / f"file-{rank}", f"kept/file-{rank}")
        versions = [run.model(nn.Linear(2, 2), step=step) for step in (0, 2)]
    with pytest.raises(KeyError), Experiment(folder, "broken") as run:
        run.log(0, loss=1.0)
        raise KeyError("planted")
    return refusals, versions


def test_a_run_on_two_ranks(tmp_path):
    (first, versions), (second, _) = launch(trained, 2, tmp_path, backend="gloo", device="cpu")
    assert versions == [1, 2]
    assert first[0] == second[0] and "rank 1 has lr=0.2 where rank 0 has 0.1" in first[0]
    assert first[1].startswith("a run's name has letters") and "'../out'" in first[1]
    assert first[2].startswith("rank 1: a parameter is a number")

    record = Record.load(tmp_path / "ddp")
    assert (record.state, record.ranks, record.failed) == ("finished", 2, {})
    assert record.parameters == {"lr": 0.1, "hidden": [8, 8]}
    assert torch.__version__.startswith(record.environment["torch"].split("+")[0])
    assert record.environment["backend"].endswith("gloo")
    assert record.metrics["loss"][2] == {"step": 2, "mean": 7.0, "min": 2.0, "max": 12.0, "ranks": 2}  # fmt: skip
    only = record.metrics["accuracy"][0]
    assert (only["step"], only["ranks"]) == (7, 1) and math.isnan(only["mean"])
    assert record.own_metrics(1)["loss"] == {0: 10.0, 1: 11.0, 2: 12.0}
    for rank in (0, 1):
        kept = tmp_path / "ddp" / "artifacts" / "kept" / f"file-{rank}"
        assert kept.read_text() == f"of {rank}"
        assert record.artifacts[f"kept/file-{rank}"]["sha256"] == tracking._sha256(kept)
    assert [(m["version"], m["step"]) for m in record.models] == [(1, 0), (2, 2)]
    state = torch.load(tmp_path / "ddp" / record.models[1]["file"])
    assert state["weight"].shape == (2, 2)
    assert not list(tmp_path.rglob("*.partial*"))

    broken = Record.load(tmp_path / "broken")
    assert broken.state == "running" and broken.failed == dict.fromkeys((0, 1), "KeyError: 'planted'")  # fmt: skip
    assert broken.own_metrics(0) == {"loss": {0: 1.0}}
    assert record.differences(broken) == {"lr": (0.1, None), "hidden": ([8, 8], None)}
    with pytest.raises(ValueError, match="rank 2 of 'ddp' has written nothing; the run had 2"):
        record.own_metrics(2)
    with pytest.raises(ValueError, match=r"'broken' is running|needs mlflow"):
        to_mlflow(broken, "sqlite://")


def test_what_is_no_metric_no_file_and_no_run_is_refused(tmp_path):
    with Experiment(tmp_path, "one") as run:
        run.log(0, loss=1.0)
        for step, metrics, said in (
            (0, {"loss": 2.0}, "loss of step 0 is logged already, as 1.0; got 2.0"),
            (-1, {"loss": 2.0}, "whole number, 0 or more; got -1"),
            (1, {"loss": "2"}, "a metric is a number; got loss='2'"),
            (1, {"loss": True}, "got loss=True"),
        ):
            with pytest.raises(ValueError, match=said):
                run.log(step, **metrics)
        with pytest.raises(ValueError, match="there is no file"):
            run.artifact(tmp_path / "none")
        (tmp_path / "file").write_text("x")
        with pytest.raises(ValueError, match="an artefact's name has letters"):
            run.artifact(tmp_path / "file", "../../file")
        run.artifact(tmp_path / "file")
        with pytest.raises(ValueError, match="an artefact 'file' already"):
            run.artifact(tmp_path / "file")
    with pytest.raises(ValueError, match="is over"):
        run.log(3, loss=1.0)
    with pytest.raises(ValueError, match=r"there is a run 'one' in .* already"):
        Experiment(tmp_path, "one")
    with pytest.raises(ValueError, match=r"run.json is missing"):
        Record.load(tmp_path)


def test_a_write_that_is_cut_off_leaves_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "run.json"
    tracking_files.write(file, {"a": math.inf, "b": [-math.inf, 1]})
    assert tracking_files.read(file) == {"a": math.inf, "b": [-math.inf, 1]}
    json.loads(file.read_text(), parse_constant=pytest.fail)  # plain JSON

    def cut_off(path, text):
        path.write_bytes(text[:5].encode())
        raise OSError("disk full")

    monkeypatch.setattr(type(file), "write_text", cut_off)
    with pytest.raises(OSError, match="disk full"):
        tracking_files.write(file, {"a": 2})
    assert tracking_files.read(file)["a"] == math.inf
    (tmp_path / "cut").write_bytes(b'{"a"')
    with pytest.raises(ValueError, match="is no record of a run"):
        tracking_files.read(tmp_path / "cut")


def test_a_diverged_rank_is_seen_in_whatever_order():
    for ranks in ([math.nan, 1.0], [1.0, math.nan]):
        found = over_ranks([{"loss": {0: value}} for value in ranks])["loss"][0]
        assert all(math.isnan(found[part]) for part in ("mean", "min", "max"))
    found = over_ranks([{"loss": {0: math.inf}}, {"loss": {0: 1.0}}])["loss"][0]
    assert (found["mean"], found["min"], found["max"]) == (math.inf, 1.0, math.inf)


@pytest.mark.needs("mlflow")
def test_a_run_goes_into_mlflow(tmp_path):
    from mlflow.tracking import MlflowClient

    with Experiment(tmp_path, "one", parameters={"lr": 0.1}) as run:
        for step in range(3):
            run.log(step, loss=3.0 - step)
        (tmp_path / "file").write_text("x")
        run.artifact(tmp_path / "file", "kept/file")
        run.model(nn.Linear(2, 2), step=2)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    number = to_mlflow(Record.load(tmp_path / "one"), uri)
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    found = client.get_run(number)
    assert found.data.params == {"lr": "0.1"}
    assert [each.value for each in client.get_metric_history(number, "loss")] == [3.0, 2.0, 1.0]
    assert found.data.metrics["loss.max"] == 1.0
    assert found.data.tags["ranks"] == "1"
    assert [each.path for each in client.list_artifacts(number, "kept")] == ["kept/file"]
    versions = client.search_model_versions("name = 'model'")
    assert [(str(each.version), each.run_id) for each in versions] == [("1", number)]
