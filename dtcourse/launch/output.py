"""What the ranks print, gathered through pipes so that nothing is lost, and shown rank by rank in rank order."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection

from dtcourse.plural import plural

SHOWN = 1000  # lines of one rank shown in the notebook; all of them stay in run.output


class Output:
    """Lines of every rank. `on_line(rank, line)` takes each as it happens; without it, all are shown at the end."""

    def __init__(
        self, pipes: list[Connection], on_line: Callable[[int, str], None] | None = None
    ) -> None:
        self.lines: list[list[str]] = [[] for _ in pipes]
        self._pipes = pipes
        self._rank_of = {pipe: rank for rank, pipe in enumerate(pipes)}
        self._on_line = on_line
        self._decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in pipes]
        self._unfinished = [""] * len(pipes)

    @property
    def open_pipes(self) -> list[Connection]:
        """The pipes that may still bring something."""
        return list(self._rank_of)

    def read(self, pipe: Connection) -> None:
        """Takes what has arrived; forgets the pipe at its end."""
        rank = self._rank_of[pipe]
        data = os.read(pipe.fileno(), 1 << 16)
        text = self._unfinished[rank] + self._decoders[rank].decode(data, final=not data)
        *whole, rest = text.split("\n")
        if not data:
            del self._rank_of[pipe]
            whole, rest = whole + ([rest] if rest else []), ""
        self._unfinished[rank] = rest
        self._take(rank, whole)

    def _take(self, rank: int, whole: list[str]) -> None:
        # A bar drawn with carriage returns leaves only its last state.
        whole = [line.rsplit("\r", 1)[-1] for line in (w.rstrip("\r") for w in whole)]
        self.lines[rank] += whole
        if self._on_line is not None:
            for line in whole:
                self._on_line(rank, line)

    def let_go(self, pipe: Connection) -> None:
        """Takes what has arrived; leaves the pipe open, for another launch."""
        rank = self._rank_of.get(pipe)
        while pipe in self._rank_of and pipe.poll():
            self.read(pipe)
        if rank is not None:
            self._pipes = [other for other in self._pipes if other is not pipe]
            if self._rank_of.pop(pipe, None) is not None and self._unfinished[rank]:
                self._take(rank, [self._unfinished[rank]])

    def show(self) -> None:
        """Prints every rank's lines in rank order; does nothing where somebody took them as they came."""
        if self._on_line is None:
            show(self.lines)

    def close(self) -> None:
        """Closes the pipes. What was read stays."""
        for pipe in self._pipes:
            pipe.close()


def what_waits(pipe: Connection) -> str:
    """What has been written to a pipe by now."""
    text = b""
    while pipe.poll():
        data = os.read(pipe.fileno(), 1 << 16)
        if not data:
            break
        text += data
    return text.decode(errors="replace")


def show_line(rank: int, line: str) -> None:
    """Prints one line as it happens."""
    print(f"rank {rank} | {line}", flush=True)


def show(lines_by_rank: list[list[str]]) -> None:
    """Prints every rank's lines in rank order."""
    shown: list[str] = []
    for rank, lines in enumerate(lines_by_rank):
        kept = lines if len(lines) <= SHOWN else lines[: SHOWN // 2] + lines[-SHOWN // 2 :]
        rows = [f"rank {rank} | {line}" for line in kept]
        if len(lines) > SHOWN:
            left_out = len(lines) - SHOWN
            rows.insert(
                SHOWN // 2,
                f"rank {rank} | ... {plural(left_out, 'line')} more: run.output[{rank}]",
            )
        shown += rows
    if shown:
        sys.stdout.write("\n".join(shown) + "\n")
        sys.stdout.flush()
