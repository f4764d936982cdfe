"""Ranks of the judge's own: they know no answer, and a failure of theirs is no verdict on one.

Nothing of an answer is in them, nor in what else stands in `no_verdict`. So whatever goes wrong there (a rank dies, a
port is taken, memory is short) is the judge's own failure, and costs nobody points. What an answer raises comes out of
Answer.run and Answer.call, as a CheckFailed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dtcourse.course.judging import limits
from dtcourse.course.judging.requirements import unjudged

# What these ranks have of the judge's environment variables: where programs, packages and the user's folders are,
# language and time. No setting of PyTorch, gloo or the course in somebody's shell is among them.
VARIABLES = {
    *("HOME", "USER", "TMPDIR", "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "LANG", "LC_ALL", "TZ")
}


@contextmanager
def no_verdict() -> Iterator[None]:
    """Around what the judge runs without an answer: whatever is raised in there becomes an Unjudged."""
    try:
        yield
    except Exception as error:
        raise unjudged(error) from error


def launched(function: Callable[..., Any], world_size: int, *args: Any, **how: Any) -> Any:
    """launch(function, world_size, *args, **how) on this machine, on ranks that know no answer. Raises Unjudged.

    The time limit, 120 s where `how` names none, is longer where the machine is busy.
    """
    from dtcourse.launch import deadlock, environment, launch, standby

    options: dict[str, Any] = {"device": "cpu", "timeout": 120.0, **how, "cluster": "here"}
    options["timeout"] = limits.patience(options["timeout"])
    with no_verdict(), standby.aside(), deadlock.found_early(), environment.inheriting(VARIABLES):
        return launch(function, world_size, *args, **options)
