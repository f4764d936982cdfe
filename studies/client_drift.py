"""FedAvg's gap where clients differ, and what FedProx, SCAFFOLD and FedAdam regain of it, measured on digits.

    python studies/client_drift.py                    # until all is measured; writes studies/results/client_drift.json
    python studies/client_drift.py --budget 100       # stop after 100 s; call again to go on where it stopped

One layer on 1,438 images, a convex loss, and one process: what any number of ranks computes (tests/federated). Two
cases:

    ten      ten clients, Dirichlet's labels with alpha = 0.1; all take part in each round, with ten full-batch steps.
             "all data" is the same with images dealt without skew: clients hardly drift there.
    sorted   as in the SCAFFOLD paper's experiments with 0 % similarity (Karimireddy et al., 1910.06378, section 7):
             images sorted by their label, many clients, a fifth of them per round, steps on a fifth of a client's
             images each, one or five passes. Here there are 50 clients, digits instead of EMNIST, and
             the loss over training images instead of test accuracy.

A seed deals the images and draws the clients of a round. All methods of a seed share both, but for "all data", whose
deal is another; so differences are taken within a seed. Each method's learning rate is tuned, among rates that double,
on three other seeds, the same for all, by the loss after the last round; the best lies inside what was tried
(curves.tuned_lr). FedProx is tuned for each of several mu besides, FedAdam (tau = 0.01) for each of several learning
rates of its server ("all data, FedAdam" with 1 alone): family() says which is the best.

    runs["tuned | CASE | METHOD"]         ends {learning rate: [loss after the last round, by seed]}, best
    runs["rounds | CASE | METHOD | SEED"] losses [after each round, over all training images]; None where no number
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from dtcourse.course import curves, results_file
from dtcourse.course.results_file import key
from dtcourse.data import digits
from dtcourse.federated import (
    Clients,
    ClientWork,
    FedAdam,
    FedAvg,
    Scaffold,
    label_skew,
    quantity_skew,
)
from dtcourse.models import MLP

RESULTS = Path(__file__).parent / "results" / "client_drift.json"
FORMAT = 1
TUNING = 1000  # the first of the seeds on which learning rates are tuned
SIZES = (64, 10)
MUS, SERVER_LRS = (0.01, 0.1, 1.0), (0.1, 0.3, 1.0, 3.0)


@dataclass(frozen=True)
class Settings:
    """What may be passed, of what the numbers depend on; a file is continued only with the same (seeds may grow).

    Alpha, K, tau and the clients are in the code: after a change of these the file is deleted first.
    """

    rounds: int = 30
    tuning: int = 3  # seeds


@dataclass(frozen=True)
class Method:
    """mu: FedProx's; server_lr: FedAdam's; epochs: passes per round in the case "sorted"."""

    name: str
    kind: str = "FedAvg"
    mu: float = 0.0
    server_lr: float = 0.0
    epochs: int = 1


METHODS = {
    "ten": [
        Method("all data"),
        Method("FedAvg"),
        *(Method(f"FedProx, mu = {mu:g}", mu=mu) for mu in MUS),
        Method("SCAFFOLD", "SCAFFOLD"),
        *(Method(f"FedAdam, server {lr:g}", server_lr=lr) for lr in SERVER_LRS),
        Method("all data, FedAdam", server_lr=1.0),
    ],
    "sorted": [
        Method(f"{kind}, {epochs} epochs", kind, epochs=epochs)
        for epochs in (1, 5)
        for kind in ("FedAvg", "SCAFFOLD")
    ],
}
GUESS = {"ten": 2.0, "sorted": 0.5}


def clients_of(case: str, method: Method, seed: int) -> tuple[Clients, int, int | None]:
    """The clients, how many take part in a round, and a step's batch."""
    images = digits("train", flat=True)
    if case == "ten":
        alpha = math.inf if method.name.startswith("all data") else 0.1
        sizes = quantity_skew(len(images), 10, math.inf, seed)
        return (
            Clients(images.images, images.labels, label_skew(images.labels, sizes, alpha, seed)),
            10,
            None,
        )
    mixed = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    order = mixed[images.labels[mixed].argsort(stable=True)]
    parts = list(order.tensor_split(50))
    return Clients(images.images, images.labels, parts), 10, math.ceil(len(parts[0]) / 5)


def losses(
    settings: Settings, case: str, method: Method, lr: float, seed: int
) -> list[float | None]:
    """The loss over all training images after each round; None from where it is no number any more."""
    clients, sampled, batch = clients_of(case, method, seed)
    model = MLP(SIZES, seed=0)
    work = ClientWork(F.cross_entropy, lr, 10 if batch is None else 5 * method.epochs, batch)
    if method.kind == "SCAFFOLD":
        federated: FedAvg = Scaffold(model, clients, work, sampled, seed)
    else:
        server = FedAdam(method.server_lr, tau=1e-2) if method.server_lr else None
        federated = FedAvg(model, clients, work, sampled, seed, mu=method.mu, server=server)
    found: list[float | None] = []
    for _ in range(settings.rounds):
        report = federated.round()
        with torch.no_grad():
            loss = F.cross_entropy(model(clients.inputs), clients.targets).item()
        fine = (
            math.isfinite(loss) and len(report.trained) == len(report.drawn) and None not in found
        )
        found.append(round(loss, 5) if fine else None)
    return found


def tune(settings: Settings, case: str, method: Method) -> dict[str, Any]:
    """The learning rate whose median loss after the last round is lowest."""
    began = time.monotonic()

    def ends(lrs: list[float]) -> list[list[float]]:
        seeds = range(TUNING, TUNING + settings.tuning)
        every = [[losses(settings, case, method, lr, seed)[-1] for lr in lrs] for seed in seeds]
        return [[math.inf if end is None else end for end in row] for row in every]

    best, tried = curves.tuned_lr(ends, GUESS[case])
    told = {
        f"{lr:g}": [end if math.isfinite(end) else None for end in by] for lr, by in tried.items()
    }
    return {"ends": told, "best": best, "seconds": time.monotonic() - began}


def measure(settings: Settings, case: str, method: Method, lr: float, seed: int) -> dict[str, Any]:
    """One run of the second kind."""
    began = time.monotonic()
    return {"losses": losses(settings, case, method, lr, seed), "seconds": time.monotonic() - began}


def load(out: Path, settings: Settings) -> dict[str, Any]:
    """The results so far, of the same settings and methods."""
    names = {case: [method.name for method in methods] for case, methods in METHODS.items()}
    what = (__doc__ or "").splitlines()[0]
    return results_file.load(out, what, format=FORMAT, settings=asdict(settings), methods=names)


def study(out: Path, settings: Settings, seeds: int, budget: float | None = None) -> bool:
    """Measure what is missing; True if all is there."""
    torch.set_num_threads(1)
    results = load(out, settings)
    every = [(case, method) for case, methods in METHODS.items() for method in methods]
    tuning = [
        (
            key("tuned", case, method.name),
            lambda case=case, method=method: tune(settings, case, method),
        )
        for case, method in every
    ]
    if not results_file.run_missing(results, out, tuning, seeds, budget):
        return False

    def jobs() -> Iterator[results_file.Job]:
        for seed in range(seeds):
            for case, method in every:
                lr = results["runs"][key("tuned", case, method.name)]["best"]
                yield (
                    key("rounds", case, method.name, seed),
                    lambda case=case, method=method, lr=lr, seed=seed: measure(
                        settings, case, method, lr, seed
                    ),
                )

    return results_file.run_missing(results, out, jobs(), seeds, budget)


def family(results: dict[str, Any], case: str, name: str) -> str:
    """Of the methods whose names begin so, the one with the lowest median loss on the tuning seeds."""
    runs = results["runs"]

    def median(method: str) -> float:
        tuned = runs[key("tuned", case, method)]
        ends = tuned["ends"][f"{tuned['best']:g}"]
        return statistics.median(math.inf if end is None else end for end in ends)

    return min((one for one in results["methods"][case] if one.startswith(name)), key=median)


def after(results: dict[str, Any], case: str, method: str, rounds: int) -> list[float]:
    """By seed, the loss after so many rounds; infinite where it is no number."""
    runs = (results["runs"][key("rounds", case, method, seed)] for seed in range(results["seeds"]))
    ends = [run["losses"][rounds - 1] for run in runs]
    return [math.inf if end is None else end for end in ends]


def summary(results: dict[str, Any]) -> Iterator[str]:
    """A line for each method: losses after some rounds, and the interval of the difference from FedAvg."""
    rounds = results["settings"]["rounds"]
    for case, names in results["methods"].items():
        yield f"{case}: loss over all training images, medians of {results['seeds']} seeds"
        for name in names:
            lr = results["runs"][key("tuned", case, name)]["best"]
            base = "FedAvg" if case == "ten" else name.replace("SCAFFOLD", "FedAvg")
            ends = {at: after(results, case, name, at) for at in (10, rounds)}
            words = ", ".join(f"{statistics.median(by):.4f} after {at}" for at, by in ends.items())
            low, high = curves.paired_interval(ends[rounds], after(results, case, base, rounds))
            yield f"  {name:20s} lr {lr:<6g} {words}; - {base} {low:+.4f} to {high:+.4f}"


def main(arguments: list[str] | None = None) -> None:
    """The study's command."""
    results_file.command(arguments, __doc__, RESULTS, Settings(), study, load, summary)


if __name__ == "__main__":
    main()
