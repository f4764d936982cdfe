"""A tracked run, taken into MLflow: parameters, metrics over the ranks, artefacts, environment, model versions.

    pip install --group tracking                     # mlflow; the course itself does not need it
    to_mlflow(Record.load("runs/ddp-lr-0.1"), "sqlite:///runs/mlflow.db")

No server: the database is a file (SQLite), and so are the artefacts. Look at it with
`mlflow ui --backend-store-uri sqlite:///runs/mlflow.db`.
"""

from __future__ import annotations

from typing import Any

from dtcourse.profiling.tracking_files import Record


def to_mlflow(record: Record, uri: str, *, experiment: str = "dtcourse") -> str:
    """Copies one run into MLflow and returns the id that it has there.

    uri:        of the database: "sqlite:///path/to/mlflow.db"; artefacts lie beside the record, in mlflow-artifacts
    experiment: what MLflow calls a group of runs

    A metric's mean keeps its name; its least and most over the ranks are "loss.min" and "loss.max". Environment and
    state become tags. Raises ValueError where mlflow is missing, or for a run that has not finished.
    """
    try:
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise ValueError(
            "to_mlflow needs mlflow, which is not installed: pip install --group tracking"
        ) from None
    if record.state != "finished":
        raise ValueError(f"the run {record.name!r} is {record.state}, so it has no metrics yet")
    client: Any = MlflowClient(tracking_uri=uri, registry_uri=uri)
    found = client.get_experiment_by_name(experiment)
    if found is None:
        beside = (record.path.parent / "mlflow-artifacts").resolve().as_uri()
        number = client.create_experiment(experiment, artifact_location=beside)
    else:
        number = found.experiment_id
    run = client.create_run(number, run_name=record.name).info.run_id
    metrics = [
        Metric(name if part == "mean" else f"{name}.{part}", each[part], 0, each["step"])
        for name, steps in record.metrics.items()
        for each in steps
        for part in ("mean", "min", "max")
    ]
    tags = {**record.environment, "began": record.began, "ended": record.ended}
    for first in range(0, max(len(metrics), 1), 900):  # MLflow takes a thousand in a batch
        client.log_batch(
            run,
            metrics=metrics[first : first + 900],
            params=[Param(key, str(value)) for key, value in record.parameters.items()]
            if not first
            else [],
            tags=[RunTag(key, str(value)) for key, value in tags.items()] if not first else [],
        )
    for name in record.artifacts:
        folder = name.rpartition("/")[0] or None
        client.log_artifact(run, str(record.path / "artifacts" / name), folder)
    for each in record.models:
        client.log_artifact(run, str(record.path / each["file"]), "models")
        if not client.search_registered_models(f"name = '{each['name']}'"):
            client.create_registered_model(each["name"])
        uploaded = client.get_run(run).info.artifact_uri
        client.create_model_version(
            each["name"], source=f"{uploaded}/{each['file']}", run_id=run,
            tags={"step": str(each["step"]), "sha256": each["sha256"]},
        )  # fmt: skip
    client.set_terminated(run)
    return run
