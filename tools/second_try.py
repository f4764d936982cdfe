"""A test that failed is run once more, alone. If it passes then, it has passed, and the summary says that it took two
tries: one flaky test of eleven thousand costs no run, and gets an entry in tests/flakes.toml (flakes.py).

What failed in a notebook is tried with its whole notebook, whose cells stand on one another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import flakes
import outcomes

MOST = 10  # failed tests, or notebooks, of a stage: more are no accident
PURPOSE = "what failed, once more and alone"
SECONDS = 600.0  # that second tries may take, times the machine's slowness


def target(test: str) -> str:
    """What is run for a test: itself, or its notebook."""
    file = test.partition("::")[0]
    return file if file.endswith(".ipynb") else test


def wanted(found: outcomes.Outcomes, known: Iterable[flakes.Flake]) -> tuple[list[str], str]:
    """What of a stage is tried again, or why nothing is."""
    failed = list(dict.fromkeys(target(test) for test in found.of("failed")))
    if not failed:
        return [], ""
    if found.running or found.not_run or any("::" not in test for test in found.of("failed")):
        return [], "more is wrong than tests that failed"
    if len(failed) > MOST:
        return [], f"{len(failed)} failed, and so many are no accident"
    never = flakes.no_accident(known) & {*failed}
    if never:
        return (
            [],
            f"tests/flakes.toml has several entries that are not mended of {', '.join(sorted(never))}",
        )
    return failed, ""


def once_more(
    found: outcomes.Outcomes,
    code: int,
    first: Iterable[str],
    run: Callable[[list[str]], outcomes.Outcomes],
    against: str = "",
) -> tuple[int, str]:
    """The second try of a run of pytest, taken into its outcomes: its exit code then, and why nothing was tried.

    code, first: the first try's exit code, and pytest's arguments
    run:         runs pytest with those that it is given
    against:     why none can be made, whatever has failed
    """
    targets, why = wanted(found, flakes.read()) if code == 1 else ([], "")
    if not targets or against:
        return code, why or (against if targets else "")
    take_in(found, run(arguments(targets, first)))
    return int(bool(found.of("failed"))), ""


def arguments(targets: Sequence[str], first: Iterable[str]) -> list[str]:
    """pytest's, from those of the first try. One worker: a test that hangs ends alone. A notebook's kernel is new."""
    nbval = [one for one in first if one.startswith("--nbval")]
    return [*nbval, *targets, "-n", "1"]


def take_in(found: outcomes.Outcomes, second: outcomes.Outcomes) -> None:
    """What passed now has passed, with the line of its first try as `first`; a notebook as a whole."""
    for one in {target(test) for test in found.of("failed")}:
        tried = {test: line for test, line in second.finished.items() if target(test) == one}
        failed = {test: line for test, line in found.of("failed").items() if target(test) == one}
        missing = {target(test) for test in [*second.running, *second.not_run]}
        whole = failed.keys() <= tried.keys() and one not in missing
        if whole and not any(line["outcome"] == "failed" for line in tried.values()):
            for test, first in failed.items():
                if tried[test]["outcome"] == "passed":
                    seconds = first["seconds"] + tried[test]["seconds"]
                    found.finished[test] = {**tried[test], "seconds": seconds, "first": first}
