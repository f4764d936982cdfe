"""Runs examples (a technique's name and a program), many in one launch, and says what is wrong with each."""

from __future__ import annotations

import collections
import gc
import os
import pickle
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.launch import RankFailure, RankTimeout
from dtcourse.verify import NotEqual, compare
from dtcourse.verify.harness import Steps
from dtcourse.verify.programs import Program, Truth, in_one_process
from tests.fuzz.fitting import refusal_of
from tests.fuzz.mistakes import MISTAKES
from tests.fuzz.techniques import FLAT, TALKING_LESS, TECHNIQUES
from tests.fuzz.unequal import UNEQUAL

Example = tuple[str, Program]
Outcome = Steps | str  # what a training left behind, or what it raised

EVERYTHING = TECHNIQUES | FLAT | TALKING_LESS | UNEQUAL | MISTAKES
TOLERANCE = 1e-9
# With a technique that deadlocks, and with one that no time limit of gloo's ends.
# A busy machine takes its time for all.
SLOWNESS = float(os.environ.get("DTCOURSE_TEST_SLOWNESS") or 1)
PATIENCE, LIMIT = timedelta(seconds=60 * SLOWNESS), 300 * SLOWNESS
tried: collections.Counter[str] = collections.Counter()  # what became of the examples


# --- in the ranks -----------------------------------------------------------------------------------------------


def trained(example: Example) -> Steps:
    name, program = example
    return EVERYTHING[name].run(program)


def work_through(
    examples: list[tuple[int, Any]],
    folder: Path,
    patience: timedelta = PATIENCE,
    run: Callable[[Any], Any] = trained,
) -> None:
    """Trains each. Outcomes go into files: if a rank dies of an example, those before it are kept."""
    warnings.simplefilter("ignore")
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.group.WORLD.get_group_store()  # type: ignore[union-attr]
    # A group that one rank destroys while another forms it never stands.
    together(store, "begun")
    dist.destroy_process_group()
    for number, example in examples:
        # A group for each: where a rank leaves one, the others hear of it only when nothing there holds the group any
        # more, and models of earlier examples may.
        here = dist.PrefixStore(f"example {number}", store)
        dist.init_process_group("gloo", rank=rank, world_size=size, store=here, timeout=patience)
        together(here, "formed")
        (folder / f"{number}.{rank}.begun").touch()
        outcome: Any
        try:
            outcome = run(example)
        except Exception as error:
            dist.destroy_process_group()  # at once: the others may wait for this rank
            outcome = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"
        if not dist.is_initialized():
            gc.collect()  # the model holds the group, in a circle
        (folder / f"{number}.{rank}").write_bytes(pickle.dumps(outcome))
        together(here, "end")
        if dist.is_initialized():
            dist.destroy_process_group()


def together(store: dist.Store, place: str) -> None:
    """Returns when all ranks are at one place."""
    store.set(f"{place} {os.environ['RANK']}", b"")
    names = [f"{place} {rank}" for rank in range(int(os.environ["WORLD_SIZE"]))]
    store.wait(names, 2 * PATIENCE)


# --- here -------------------------------------------------------------------------------------------------------


def outcomes_of(
    examples: Sequence[Any],
    ranks: int,
    patience: timedelta = PATIENCE,
    run: Callable[[Any], Any] = trained,
) -> list[list[Any]]:
    """Each example's outcomes, by rank: what `run` returns, or words of what it raised. Ranks that wait for each other
    do so for `patience`.
    """
    left = list(enumerate(examples))
    outcomes: list[list[Any]] = [[] for _ in examples]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        while left:
            died: Exception | None = None
            try:
                launch(
                    work_through, ranks, left, folder, patience, run, backend="gloo", timeout=LIMIT
                )
            except (RankFailure, RankTimeout) as failure:
                died = failure
            for number, _ in left:
                files = [folder / f"{number}.{rank}" for rank in range(ranks)]
                if not all(file.exists() for file in files):
                    if died is None or not list(folder.glob(f"{number}.*.begun")):
                        raise AssertionError("the launch failed, and not by an example") from died
                    outcomes[number] = [str(died)] * ranks
                    break
                outcomes[number] = [pickle.loads(file.read_bytes()) for file in files]
            left = [(n, example) for n, example in left if not outcomes[n]]
    return outcomes


def complaints(examples: list[Example], ranks: int, patience: timedelta = PATIENCE) -> list[str]:
    """What is wrong with each; nothing where it is right, refused as it should be, or not for the technique."""
    said = ["" for _ in examples]
    fitting: list[tuple[int, Truth]] = []
    for number, (name, program) in enumerate(examples):
        truth = in_one_process(program)
        if EVERYTHING[name].unfit(program, truth):
            tried["not for the technique"] += 1
        else:
            fitting.append((number, truth))
    outcomes = outcomes_of([examples[number] for number, _ in fitting], ranks, patience)
    for (number, truth), by_rank in zip(fitting, outcomes, strict=True):
        said[number] = complaint(examples[number], truth, by_rank)
    return said


def tell(name: str, program: Program) -> None:
    """What a printed script calls: says what is wrong with one example."""
    print(name, program, complaints([(name, program)], program.ranks)[0] or "is right", sep="\n")


def complaint(example: Example, truth: Truth, outcomes: list[Outcome]) -> str:
    """What is wrong with the outcomes of one example, or nothing."""
    name, program = example
    technique = EVERYTHING[name]
    errors = {rank: text for rank, text in enumerate(outcomes) if isinstance(text, str)}
    if errors:
        refusal = refusal_of(list(errors.values()), name, program, truth)
        tried[f"refused: {refusal}" if refusal else "raised"] += 1
        text = "\n".join(f"rank {rank}: {error}" for rank, error in errors.items())
        return "" if refusal else text
    tried["compared"] += 1
    where = ""
    try:
        for rank, steps in enumerate(outcomes):
            assert isinstance(steps, Steps)
            for number, expected in enumerate(truth.steps.gradients):
                where = f"step {number}, rank {rank}"
                got = steps.gradients[number]
                compare(
                    chosen(got, truth, technique.none_is_zero),
                    chosen(expected, truth, technique.none_is_zero),
                    TOLERANCE,
                )
            where = f"after all steps, rank {rank}"
            right = truth.steps.parameters
            compare({n: steps.parameters[n] for n in right}, right, TOLERANCE, "parameter")
    except NotEqual as difference:
        return f"{where}: {difference}"
    return ""


def chosen(gradients: Any, truth: Truth, none_is_zero: bool) -> Any:
    """Gradients of what is trained. One without elements says nothing: it may be there or not."""
    result = {}
    for name in sorted(truth.trained):
        like = truth.steps.parameters[name]
        if like.numel():
            missing = gradients[name] is None and none_is_zero
            result[name] = torch.zeros_like(like) if missing else gradients[name]
    return result
