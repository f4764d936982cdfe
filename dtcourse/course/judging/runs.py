"""Running an answer on ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any

from dtcourse.course.judging import attempts, books, defining, ready_made, sentences, tampering
from dtcourse.course.judging.defining import Written
from dtcourse.course.judging.process import LARGEST
from dtcourse.course.judging.requirements import (
    KINDS,
    CheckFailed,
    Refused,
    Stopped,
)
from dtcourse.course.reproducible import scrub
from dtcourse.launch import each
from dtcourse.launch.each import Each

TIMEOUT = 20.0


@dataclass
class Results(Sequence):
    """What an answer returned, by rank, and what was measured: the judge's copy, made of plain data."""

    values: list[Any]
    seconds: float
    traffic_rows: list[list[Any]] = field(default_factory=list)
    traffic_calls: list[list[Any]] = field(default_factory=list)
    algorithmic: bool = False
    event_rows: list[list[Any]] = field(default_factory=list)

    def __getitem__(self, index: Any) -> Any:
        return self.values[index]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def traffic(self) -> Any:
        """A dtcourse.collectives.counted.Traffic (record=True)."""
        from dtcourse.collectives.counted import Row, Traffic

        rows = [Row(*row) for row in self.traffic_rows]
        calls = {(rank, operation, phase): n for rank, operation, phase, n in self.traffic_calls}
        return Traffic(rows, calls, self.algorithmic)

    @property
    def timeline(self) -> Any:
        """A dtcourse.events.Timeline (record=True)."""
        from dtcourse.events import Event, Timeline

        keys = ("name", "kind", "rank", "start", "end", "bytes", "lane", "detail")
        return Timeline(Event(**dict(zip(keys, row, strict=True))) for row in self.event_rows)


def plain(value: Any, depth: int = 0, to_answer: bool = False) -> Any:
    """The value as data that can travel safely: tensors (on the CPU), numbers, text, lists, tuples, dicts, None.

    to_answer: bytes too. None come back: to read an empty one calls a constructor, and an answer could give it any size

    Raises CheckFailed for anything else, by name.
    """
    import torch

    if depth > 20:
        raise CheckFailed("What came back is nested more than 20 deep.")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if to_answer and type(value) is bytes:
        return value
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_nested:
            raise CheckFailed("A sparse or nested tensor came back, where a dense one is expected.")
        # What expand() shows many times has its whole size from here on.
        if (size := value.numel() * value.element_size()) > LARGEST:
            raise CheckFailed(
                f"A tensor of {size / 1e6:,.0f} MB came back, and {LARGEST >> 20} MB is the most."
            )
        dense = value.detach().to("cpu", copy=False).resolve_conj().resolve_neg()
        return dense.as_subclass(torch.Tensor).clone(memory_format=torch.contiguous_format)
    if type(value) in (list, tuple):
        return type(value)(plain(one, depth + 1, to_answer) for one in value)
    if type(value) is dict:
        return {
            plain(key, depth + 1, to_answer): plain(one, depth + 1, to_answer)
            for key, one in value.items()
        }
    numpy = sys.modules.get("numpy")
    if numpy and issubclass(type(value), numpy.ndarray | numpy.generic):
        return plain(value.tolist(), depth + 1)
    raise CheckFailed(
        f"A {type(value).__name__} came back, where tensors, numbers, text, lists, tuples or dicts are expected."
    )


def guarded(
    step: Callable[..., Any],
    functions: tuple[Any, ...] | CheckFailed,
    args: tuple[Any, ...],
    watched: tuple[str, ...] = (),
) -> Any:
    """In a rank: run the step, and tell what the answer has changed of what measures it, and called of `watched`.

    functions: those of the answer, or why there are none
    """
    attempts.watch()
    if isinstance(functions, CheckFailed):
        return _told(functions)
    # A job among its arguments measures what the answer tries (trial_ranks.py).
    steps: list[Callable[..., Any]] = [step, *(f for f in args if isinstance(f, FunctionType))]
    before, books_before = tampering.marks(*steps), books.instruments()
    # One that is refused fails, so that no other rank waits for it.
    with ready_made.Watch(watched) as watch:
        result = plain(step(*functions, *args))
    changed = tampering.changed(before, *steps) + books.exchanged(books_before)
    changed += ["sys.setprofile"] * (not watch.kept)
    return {"value": result, "changed": changed, "called": list(watch.called)}


def _told(error: CheckFailed) -> dict[str, str]:
    """As data: the other side builds none of the errors that a rank has sent (launch/distrust.py)."""
    return {"failed": type(error).__name__, "sentence": str(error)}


def check_definition(written: Written) -> None:
    """Have a rank define an answer, within the time limit. Raises CheckFailed where it cannot be."""
    _ranks(_definition, 1, written.takes, {"init": False}, written.pieces, written.takes)


def _definition(pieces: Any, takes: tuple[str, ...]) -> Any:
    functions = defining.arrived(pieces, takes)
    return _told(functions) if isinstance(functions, CheckFailed) else {}


def attempt(
    step: Callable[..., Any],
    functions: dict[str, Any] | Written,
    world_size: int,
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> Results:
    """Run step(functions..., *args) on ranks.

    functions: the answer's by name, where this process may hold them; as they were written else

    Raises CheckFailed with a sentence: not written yet, raised, hung, ended its process, refused.
    """
    from dtcourse.launch import standby

    options = dict(options)
    watched, known_to = tuple(options.pop("watched", ())), options.pop("known_to", None)
    names = functions.takes if isinstance(functions, Written) else tuple(functions)
    sent: Any = functions if isinstance(functions, Written) else tuple(functions.values())
    around: Any = nullcontext()
    if known_to is not None and isinstance(functions, Written):
        # Nor has a rank that it is not known to had it in a launch before.
        sent, around = replace(functions, known_to=tuple(known_to)), standby.aside()
    for_ranks = _by_rank(args, world_size)
    with around:
        run = _ranks(guarded, world_size, names, options, step, sent, for_ranks, watched)
    if changed := [name for one in run for name in one["changed"]]:
        standby.discard_kept()
        raise Refused(tampering.sentence(changed))
    if called := [name for one in run for name in one["called"]]:
        raise Refused(
            f"the answer calls {called[0]}, by whatever name, and this exercise asks you to write that yourself"
        )
    results = Results([one["value"] for one in run], float(run.seconds))
    if options.get("record"):
        results.traffic_rows = [list(row) for row in run.traffic.rows]
        results.traffic_calls = [[*key, n] for key, n in run.traffic.call_counts.items()]
        results.algorithmic = bool(run.traffic.algorithmic)
        results.event_rows = [
            [e.name, e.kind, e.rank, e.start, e.end, e.bytes, e.lane, _plain_detail(e.detail)]
            for e in run.timeline.events
        ]
    return results


def _by_rank(args: tuple[Any, ...], world_size: int) -> Any:
    """The step's arguments as one of a launch: where some are each rank's own, so is the whole."""
    own = each.by_rank(args, world_size)
    whole = [tuple(a.values[rank] if isinstance(a, Each) else a for a in args) for rank in own]
    return Each(whole) if own else args


def _ranks(
    function: Callable[..., Any],
    world_size: int,
    takes: tuple[str, ...],
    options: dict[str, Any],
    *args: Any,
) -> Any:
    """launch(function, world_size, *args), with a CheckFailed for whatever goes wrong; `takes` names the answer."""
    from dtcourse.launch import RankFailure, RankTimeout, deadlock, launch

    options = {"timeout": TIMEOUT, "device": "cpu", **options}
    names = ", ".join(f"`{name}`" for name in takes)
    try:
        with deadlock.found_early():
            run = launch(function, world_size, *args, **options)
    except RankTimeout as error:
        raise Stopped(sentences.waiting(error, names, world_size, options["timeout"])) from None
    except RankFailure as error:
        raise sentences.failure(error, names, world_size) from None
    except TypeError as error:
        if "pickle" not in str(error):
            raise
        raise CheckFailed(f"{names} cannot be sent to the ranks: {scrub(str(error))}") from None
    for one in run:
        if "failed" in one:
            raise KINDS.get(str(one["failed"]), CheckFailed)(str(one["sentence"]))
    return run


def _plain_detail(detail: dict[str, Any]) -> dict[str, Any]:
    return {str(key): one for key, one in detail.items() if type(one) in (bool, int, float, str)}


class InKernel:
    """An answer in the kernel of the student's own notebook."""

    def __init__(self, functions: dict[str, Any]) -> None:
        self.functions = functions

    def run(self, step: Callable[..., Any], world_size: int, *args: Any, **options: Any) -> Results:
        """See `framework.Answer.run`."""
        return attempt(step, self.functions, world_size, args, options)

    def call(
        self, step: Callable[..., Any], *args: Any, timeout: float = TIMEOUT, **options: Any
    ) -> Any:
        """See `framework.Answer.call`."""
        options |= {"timeout": timeout, "init": False}
        return attempt(step, self.functions, 1, args, options)[0]
