"""What cells found on a system that a reader may not have, shown again there, and said to be so.

    slurm, why = throwaway.start()
    on_slurm = Recorded("26-clusters", why)
    found = on_slurm("tasks", tasks)     # tasks(); without a Slurm, what it returned when the lesson was recorded

Above what was found a line says whether it was run here, and by which command. nbval does not compare that part of it
(reproducible.py): a lesson passes with and without the system, since both show the same below.

What a function returns is plain data (what JSON holds). With DTCOURSE_RECORD=1 in the environment it is written down,
to lessons/recorded/26-clusters.json.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable
from typing import Any

from dtcourse.course import places

VARIABLE = "DTCOURSE_RECORD"


class Recorded:
    """The recordings of one lesson.

    why: in one sentence, why the functions cannot run here; None where they can
    """

    def __init__(self, lesson: str, why: str | None) -> None:
        self.file = places.home() / "lessons" / "recorded" / f"{lesson}.json"
        self.why = why
        self._announced: Callable[..., Any] | None = None

    def __call__(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """function(*args), or what it returned when it was recorded under that name; always as JSON gives it back.

        KeyError where it never was.
        """
        what = (function.__doc__ or function.__name__).strip().splitlines()[0]
        if self.why is None:
            self._announce(function, f"Run here: {what}")
            found = json.loads(json.dumps(function(*args)))
            if os.environ.get(VARIABLE):
                known = self._known() if self.file.exists() else {}
                self.file.parent.mkdir(exist_ok=True)
                recording = {"date": datetime.date.today().isoformat(), "found": found}
                text = json.dumps(known | {name: recording}, indent=1)
                self.file.write_text(text + "\n", encoding="utf-8")
            return found
        recording = self._known()[name]
        why = f"Not run: {self.why.rstrip('.')}."
        self._announce(function, f"{why}\nRecorded on {recording['date']}: {what}")
        return recording["found"]

    def _announce(self, function: Callable[..., Any], text: str) -> None:
        """Once where a cell calls one function several times."""
        if function is not self._announced:
            print(text)
        self._announced = function

    def _known(self) -> dict[str, Any]:
        known: dict[str, Any] = json.loads(self.file.read_text(encoding="utf-8"))
        return known
