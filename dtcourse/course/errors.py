"""expect_error: a cell that must fail, seen failing, with the error printed the same on every machine.

papermill and nbval do not honour the tag raises-exception, and a `try` that catches nothing passes in
silence. Here a cell that does not fail is the failure.
"""

from __future__ import annotations

import re
from types import TracebackType

from dtcourse.course.reproducible import scrub


class DidNotFail(AssertionError):
    """A block under `expect_error` did not fail, or not as expected."""


class expect_error:
    """Require that the block raises `kind`, and print what it said.

        with expect_error(RankFailure, match="rank 1") as caught:
            launch(step, 4)
        caught.error                       # the exception itself

    kind:  type of exception, or a tuple of them
    match: a regular expression that the message has to contain
    lines: how many lines of the message to print; None prints all of it. The rest of a message often holds tracebacks
           with line numbers, which change with each edit

    Raises DidNotFail if the block raises nothing, or a message without `match`. Another type of error passes through.
    """

    def __init__(
        self,
        kind: type[BaseException] | tuple[type[BaseException], ...],
        match: str | None = None,
        lines: int | None = 1,
    ):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not kinds or not all(
            isinstance(one, type) and issubclass(one, BaseException) for one in kinds
        ):
            raise TypeError(
                f"expect_error needs the type of an exception, as in ValueError; got {kind!r}"
            )
        if lines is not None and lines < 1:
            raise ValueError(
                f"lines={lines}: print at least one line of the message, or None for all of it"
            )
        self.kinds = kinds
        self.match = match
        self.lines = lines
        self.error: BaseException | None = None

    def __enter__(self) -> expect_error:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        names = " or ".join(one.__name__ for one in self.kinds)
        if error is None:
            raise DidNotFail(f"this block was to fail with {names}, and it did not fail")
        if not isinstance(error, self.kinds):
            error.add_note(f"(this block was to fail with {names})")
            return False
        message = str(error)
        if self.match is not None and not re.search(self.match, message):
            raise DidNotFail(
                f"this block failed with {type(error).__name__} as expected, but its message has no {self.match!r}: "
                f"{message}"
            ) from error
        self.error = error
        shown = scrub(message).strip().splitlines() or ["(no message)"]
        more = self.lines is not None and len(shown) > self.lines
        print(
            f"{type(error).__name__}: "
            + "\n    ".join(shown[: self.lines])
            + (" [...]" if more else "")
        )
        return True
