"""What cells found on a system that a reader may not have, shown again there, and said to be so.

    on_slurm = Recorded("26-clusters", live=not throwaway.missing())
    found = on_slurm("tasks", tasks)     # tasks(); without a Slurm, what it returned when the lesson was recorded

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

    live: whether the functions can run here
    system: what they need, for the line that says that nothing ran
    """

    def __init__(self, lesson: str, live: bool, system: str = "Slurm") -> None:
        self.file = places.home() / "lessons" / "recorded" / f"{lesson}.json"
        self.live, self.system = live, system

    def __call__(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """function(*args), or what it returned when it was recorded under that name; always as JSON gives it back.

        KeyError where it never was.
        """
        if self.live:
            found = json.loads(json.dumps(function(*args)))
            if os.environ.get(VARIABLE):
                known = self._known() if self.file.exists() else {}
                self.file.parent.mkdir(exist_ok=True)
                recording = {"date": datetime.date.today().isoformat(), "found": found}
                text = json.dumps(known | {name: recording}, indent=1)
                self.file.write_text(text + "\n", encoding="utf-8")
            return found
        recording = self._known()[name]
        what = (function.__doc__ or function.__name__).strip().splitlines()[0]
        print(f"Not run: no {self.system} here. It would do this: {what}")
        print(f"What follows was recorded on {recording['date']}.")
        return recording["found"]

    def _known(self) -> dict[str, Any]:
        known: dict[str, Any] = json.loads(self.file.read_text(encoding="utf-8"))
        return known
