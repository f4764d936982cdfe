"""What came back from one launch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

from dtcourse.emulation import Account
from dtcourse.events import Timeline
from dtcourse.launch import options
from dtcourse.launch.failures import RankFailure

T_co = TypeVar("T_co", covariant=True)


class Run(Sequence[T_co], Generic[T_co]):
    """What came back: `run[0]` is what rank 0 returned, of the type T that the function returns.

    .seconds        time of the slowest rank inside the function (of those that returned)
    .total_seconds  time from the call of launch to its return
    .output         lines that each rank printed
    .layout         what was chosen: ranks, devices, backend
    .failures       with on_failure="continue": a RankFailure for each rank that failed, first failing rank first;
                    each is also that rank's result
    .timeline       what each rank did (record=True)
    .traffic        what each rank sent (record=True)
    .accounts       where each rank's emulated time went (devices=, network=)
    .emulated_seconds  emulated time of the slowest rank inside the function
    .overrun        the part of that which the real machine added: 0 on the virtual clock
    .slowdown       the factor by which everything was emulated slower to keep it small (clock="wall")
    """

    def __init__(
        self,
        results: Sequence[dict[str, Any] | RankFailure],
        output: list[list[str]],
        layout: options.Layout,
        recorded: bool,
        slowdown: float = 1.0,
    ) -> None:
        answers = [a for a in results if not isinstance(a, RankFailure)]
        self._results: list[Any] = [
            a if isinstance(a, RankFailure) else a["value"] for a in results
        ]
        failed = [a for a in results if isinstance(a, RankFailure)]
        self.failures = sorted(failed, key=lambda error: error.failures[0].order)
        self.output = output
        self.layout = layout
        self.seconds_by_rank = [
            None if isinstance(a, RankFailure) else a["seconds"] for a in results
        ]
        self.seconds = max((a["seconds"] for a in answers), default=0.0)
        self.total_seconds = 0.0  # launch sets it when it returns
        self.slowdown = slowdown
        self._accounts = [a["account"] for a in answers if "account" in a]
        self._timeline: Timeline | None = None
        self._traffic: Any = None
        if recorded:
            from dtcourse.collectives.counted import Traffic

            self._timeline = Timeline(e for a in answers for e in a["events"])
            self._traffic = Traffic.from_ranks([a["traffic"] for a in answers])

    @overload
    def __getitem__(self, index: int) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> list[T_co]: ...
    def __getitem__(self, index: int | slice) -> T_co | list[T_co]:
        return self._results[index]

    def __len__(self) -> int:
        return len(self._results)

    def __iter__(self) -> Iterator[T_co]:
        return iter(self._results)

    def __repr__(self) -> str:
        return f"Run({self.layout})"

    @property
    def timeline(self) -> Timeline:
        """What each rank did. ValueError where nothing was recorded."""
        return self._recorded(self._timeline)

    @property
    def traffic(self) -> Any:
        """What each rank sent: a `collectives.counted.Traffic`. ValueError where nothing was recorded."""
        return self._recorded(self._traffic)

    @property
    def accounts(self) -> list[Account]:
        """Where the emulated time of each rank that returned went. ValueError where nothing was emulated."""
        if not self._accounts and len(self.failures) == len(self):
            raise ValueError("all ranks failed: none has told where its emulated time went")
        if not self._accounts:
            raise ValueError("nothing was emulated: launch(..., devices=..., network=...)")
        return self._accounts

    @property
    def emulated_seconds(self) -> float:
        """Emulated time of the slowest rank inside the function. ValueError where nothing was emulated."""
        return max(account.total for account in self.accounts)

    @property
    def overrun(self) -> float:
        """The largest part of a rank's emulated time that the real machine added. ValueError as above.

        Without devices= operations take their real time on the wall's clock, and it counts as added.
        """
        return max(account.overrun for account in self.accounts)

    @staticmethod
    def _recorded(what: Any) -> Any:
        if what is None:
            raise ValueError("nothing was recorded: launch(..., record=True)")
        return what
