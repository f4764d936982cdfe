"""dtcourse cluster, submit, jobs, kubernetes."""

from __future__ import annotations

import sys
import time as clock
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dtcourse.cli.say import console, escape, sentences, table

if TYPE_CHECKING:
    from dtcourse.launch.cluster.jobs import Known

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command(context_settings=_PASS_ON)(submit)
    app.command()(jobs)
    app.command()(cluster)
    app.command(context_settings=_PASS_ON)(kubernetes)


@sentences
def cluster() -> None:
    """Print a cluster.toml to start from: what an instructor writes once for a cluster.

    Example: [bold]dtcourse cluster > cluster.toml[/bold]
    """
    from dtcourse.launch.cluster.settings import EXAMPLE

    typer.echo(EXAMPLE, nl=False)


@sentences
def submit(
    context: typer.Context,
    target: Annotated[str, typer.Argument(metavar="FILE.py:FUNCTION")],
    ranks: Annotated[int, typer.Option(help="Ranks in all.")] = 2,
    nodes: Annotated[
        int, typer.Option(help="Nodes. Default: as few as ranks_per_node allows.")
    ] = 1,
    cluster: Annotated[str, typer.Option(help="slurm, or a cluster.toml.")] = "slurm",
    requeue: Annotated[
        bool,
        typer.Option("--requeue", help="Let Slurm end the job and start it again (checkpoints!)."),
    ] = False,
    sweep: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=V1,V2", help="One job for each value; may be repeated."),
    ] = None,
    time: Annotated[
        int | None,
        typer.Option("--time", metavar="MINUTES", help="The time limit. Default: cluster.toml's."),
    ] = None,
    signal: Annotated[
        str | None,
        typer.Option(
            metavar="NAME@SECONDS", help="Sent to the ranks so long before the limit: USR2@90."
        ),
    ] = None,
) -> None:
    """Submit a function of a file as a batch job. Its own arguments follow as --name value.

    Examples: [bold]dtcourse submit train.py:step --ranks 8 --nodes 2 --batch_size 32[/bold],
    [bold]dtcourse submit train.py:step --sweep lr=0.1,0.3,1.0[/bold]
    """
    from dtcourse.launch import target as targets
    from dtcourse.launch.cluster import batch, remote

    settings = remote.find(cluster).with_limit(time, signal)
    function, _, arguments = targets.load(target)
    arguments |= targets.arguments(context.args)
    swept: dict[str, list[Any]] = {}
    for item in sweep or []:
        name, equals, values = item.partition("=")
        if not equals or not values:
            raise ValueError(f"--sweep {item}: a name and its values, as in --sweep lr=0.1,0.3")
        swept |= {name: [targets.value_of(text) for text in values.split(",")]}
    submitted = batch.submit(
        function, ranks, settings, nodes=nodes, requeue=requeue, sweep=swept, **arguments
    )
    for record, given in submitted:
        shown = ", ".join(f"{name}={value!r}" for name, value in given.items())
        console.print(f"job {record.job}: {escape(f'{record.name}({shown})')}")
    console.print("`dtcourse jobs` lists them, `dtcourse jobs NUMBER` follows one.")


@sentences
def jobs(
    job: Annotated[str | None, typer.Argument(help="A job's number; none lists all.")] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="End the job.")] = False,
    clean: Annotated[
        bool,
        typer.Option("--clean", help="Remove the folders of jobs that ended over a week ago."),
    ] = False,
    all_users: Annotated[
        bool,
        typer.Option("--all-users", help="Whose jobs wait or run now, and what those wait for."),
    ] = False,
    folder: Annotated[
        Path | None, typer.Option(help="The jobs' folder. Default: that of cluster.toml.")
    ] = None,
) -> None:
    """List the jobs that launch and submit have handed to the cluster; follow or end one.

    Examples: [bold]dtcourse jobs[/bold], [bold]dtcourse jobs 12[/bold], [bold]dtcourse jobs 12 --cancel[/bold]
    """
    from dtcourse.launch.cluster import jobs as submitted
    from dtcourse.launch.cluster import slurm

    if all_users:
        listed = table("user", "job", "function", "nodes", "state", "time", "reason")
        for one in submitted.of_all_users():
            listed.add_row(*map(escape, one))
        console.print(listed if listed.rows else "no jobs of dtcourse wait or run")
        return
    if clean:
        console.print(submitted.clean(folder))
        return
    if job is None:
        _list(submitted.known(folder))
        return
    if array := submitted.tasks(job, folder):
        if cancel:
            slurm.cancel(job)
            console.print(f"all jobs of array {job} were asked to end")
            return
        _list(array)
        console.print(
            f"Array {job} has these jobs; `dtcourse jobs {array[0].record.job}` follows one."
        )
        return
    if cancel:
        found = submitted.find(job, folder)
        slurm.cancel(found.record.job)
        console.print(f"job {job} was asked to end")
        return
    try:
        run = submitted.reattach(job, folder, stream=True)
    except RuntimeError as error:
        console.print(f"[red]{escape(str(error))}[/red]", soft_wrap=True)
        raise typer.Exit(1) from None
    console.print(f"rank 0 returned {escape(repr(run[0]))}", soft_wrap=True)


def _list(found: list[Known]) -> None:
    if not found:
        console.print("no jobs")
        return
    listed = table("job", "function", "ranks", "nodes", "submitted", "state", "folder")
    for one in found:
        when = clock.strftime("%Y-%m-%d %H:%M", clock.localtime(one.record.submitted))
        layout = one.record.layout
        ranks, nodes = str(layout["world_size"]), str(layout["nodes"])
        listed.add_row(
            one.record.job, one.record.name, ranks, nodes, when, one.state, str(one.folder)
        )
    console.print(listed)


@sentences
def kubernetes(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="FILE.py:FUNCTION", help="As it lies in the image.")
    ],
    ranks: Annotated[int, typer.Option(help="Ranks in all.")] = 2,
    nodes: Annotated[int, typer.Option(help="Pods. Default: as few as ranks_per_node allows.")] = 1,
    cluster: Annotated[str, typer.Option(help="A cluster.toml; slurm looks for it.")] = "slurm",
    image: Annotated[
        str | None, typer.Option(help="The container image. Default: that of cluster.toml.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Default: the function's, the user's and four digits.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(help="Default: that of cluster.toml, else kubectl's own.")
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="gloo, nccl, ring, ... Default: what the nodes have.")
    ] = None,
    trainjob: Annotated[
        bool, typer.Option("--trainjob", help="Kubeflow's TrainJob, not Kubernetes' own Job.")
    ] = False,
) -> None:
    """Print what runs a function of a file on Kubernetes: an Indexed Job with its Service, or a TrainJob.

    The function's own arguments follow as --name value. Nothing is sent anywhere: kubectl does that.

    Example: [bold]dtcourse kubernetes train.py:step --ranks 8 --nodes 2 --image registry.example/course:1 |
    kubectl apply -f -[/bold]
    """
    from dtcourse.launch.cluster import settings
    from dtcourse.launch.cluster.kubernetes import manifests, yaml_text
    from dtcourse.launch.cluster.kubernetes.training import plan

    training = plan(
        settings.find(cluster),
        target,
        ranks,
        arguments=context.args,
        nodes=nodes,
        image=image,
        namespace=namespace,
        name=name,
        backend=backend,
    )
    if trainjob:
        made = [manifests.train_job(training)]
    else:
        made = [manifests.service(training), manifests.job(training)]
    sys.stdout.write(yaml_text.to_yaml(made))
    where = f" --namespace {training.namespace}" if training.namespace else ""
    kind, label = (
        ("trainjob", "jobset.sigs.k8s.io/jobset-name")
        if trainjob
        else ("job", "batch.kubernetes.io/job-name")
    )
    # Not into the pipe to kubectl: for whoever started it.
    typer.echo(
        f"kubectl logs{where} --follow --prefix --selector {label}={training.name}\n"
        f"kubectl delete{where} {kind} {training.name}",
        err=True,
    )
