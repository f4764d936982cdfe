"""All tools at once over a script or its twin, none of them told what is wrong: each one's sentence, or None.

hang         the flight recorder's records, read by diagnose_hang
replicas, seeds, data order, numbers, memory, bytes, files, groups, optimizers, loads, ties   dtcourse/debugging/unasked
gradients    what the ranks returned against what the script's reference() computes in one process, by dtcourse.verify
layouts      without a reference: the losses on these ranks against those on one

The last two say that the result is wrong, and how; the others, where the cause is. So on a script that is silently
wrong one of the others and one of these may both be right.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dtcourse.debugging.gallery.running import Outcome, as_file, reference_of, run
from dtcourse.debugging.gallery.script import Script, read
from dtcourse.debugging.hang import diagnose_hang
from dtcourse.debugging.losses import compare_layouts
from dtcourse.debugging.unasked.draws import Draws, alike
from dtcourse.debugging.unasked.files import Writes, written_wrongly
from dtcourse.debugging.unasked.groups import TakenDown, asked_for_afterwards
from dtcourse.debugging.unasked.growth import LiveBytes, grows
from dtcourse.debugging.unasked.loads import Loads, left_out
from dtcourse.debugging.unasked.messages import Sends, more_than_needed
from dtcourse.debugging.unasked.numbers import FirstNotFinite, made
from dtcourse.debugging.unasked.optimizers import OptimizerSteps, step_on_nothing
from dtcourse.debugging.unasked.reads import Reads, read_as_they_should
from dtcourse.debugging.unasked.replicas import ReplicaSums, drifted
from dtcourse.debugging.unasked.ties import Ties, without_answer
from dtcourse.debugging.unasked.watch import Says, Watch, sentences
from dtcourse.verify import NotEqual, compare

# The watch in each rank, and what is said of all that it saw. The order is the one in which they are begun.
WATCHES: dict[type[Watch], Says] = {
    ReplicaSums: drifted,
    Draws: alike,
    Reads: read_as_they_should,
    FirstNotFinite: made,
    LiveBytes: grows,
    Sends: more_than_needed,
    TakenDown: asked_for_afterwards,
    Writes: written_wrongly,
    OptimizerSteps: step_on_nothing,
    Loads: left_out,
    Ties: without_answer,
}
COMPARISONS = ("gradients", "layouts")
TOOLS = ("hang", *(watch.name for watch in WATCHES), *COMPARISONS)
TOLERANCE = 1e-4


@dataclass
class Examined:
    """What came of it: each tool's sentence, or None, and how the run ended."""

    sentences: dict[str, str | None]
    outcome: Outcome
    speaking: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.speaking = [tool for tool, said in self.sentences.items() if said]

    def __str__(self) -> str:
        lines = [f"{tool:11} {said or '-'}" for tool, said in self.sentences.items()]
        return "\n".join([f"It {self.outcome.end}.", *lines])


def examine(script: Script | str | Path, repaired: bool = False) -> Examined:
    """Runs a script, or its repaired twin, with every tool watching.

    Raises ValueError where the file is no script of the gallery.
    """
    if not isinstance(script, Script):
        script = read(script)
    with as_file(script.path.name, script.repaired if repaired else script.text) as file:
        outcome = run(file, script.ranks, list(WATCHES), hangs=True)
        said: dict[str, str | None] = {
            "hang": str(diagnose_hang(outcome.records)) if _hangs(outcome) else None
        }
        said |= sentences(WATCHES, outcome.seen, outcome.results)
        said["gradients"] = said["layouts"] = None
        if outcome.end == "ended" and script.has_reference:
            said["gradients"] = against(reference_of(file), outcome.results)
        elif outcome.end == "ended":
            said["layouts"] = _on_one_rank(file, script.ranks, outcome.results)
    return Examined(said, outcome)


def _hangs(outcome: Outcome) -> bool:
    return bool(outcome.records.of) and bool(diagnose_hang(outcome.records))


def against(right: dict[str, Any], results: list[Any]) -> str | None:
    """The first rank and number in which what the ranks returned is not what is right; of a rank what it has.

    In the order in which the reference names them: what comes first in a step is nearer to the mistake.
    """
    for rank, mine in enumerate(results):
        for name in filter((mine or {}).__contains__, right):
            got, expected = _by_name(name, mine[name]), _by_name(name, right[name])
            if got is None:
                continue
            if isinstance(mine[name], dict):  # of a rank that has a part of the model, that part
                expected = {key: value for key, value in expected.items() if key in got}
            try:
                compare(got, expected, TOLERANCE, what=name.removesuffix("s"))
            except NotEqual as different:
                return f"On rank {rank}, {different}"
    return None


def _by_name(name: str, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, dict):
        return {k: None if v is None else torch.as_tensor(v) for k, v in value.items()}
    return {name: torch.as_tensor(value, dtype=torch.float64).detach()}


def _on_one_rank(file: Path, ranks: int, results: list[Any]) -> str | None:
    losses = [(mine or {}).get("losses") for mine in results]
    if ranks == 1 or not any(losses):
        return None
    alone = run(file, 1)
    if alone.end != "ended" or not (alone.results[0] or {}).get("losses"):
        return None
    found = compare_layouts(
        {"1 rank": alone.results[0]["losses"], f"{ranks} ranks": losses}, TOLERANCE
    )
    return found.sentence if found else None
