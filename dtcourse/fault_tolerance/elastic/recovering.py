"""An elastic job that is kept going: watched, with new workers in the places of the lost, and a log of all that.

    def begin(hear):
        return ElasticJob(train, 4, "runs/7", least=4, most=4, replacements=100, on_message=hear)

    recovery = ElasticRecovery(begin, "runs/7/checkpoints")
    run = recovery.run()                         # by rank, what the workers of the last generation returned
    print(recovery.log)

Recovery (recovery.py) ends all ranks and starts all anew. Here those that are left keep their processes and their
memory: a lost one's successor gets its state from them, and only where none has it any more (a rank and the holder of
its copy are gone) all read the newest checkpoint. The job does that (worker.py); here stopped workers are killed, so
that they are lost for the others too, and it is written down who died and who trains.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtcourse.fault_tolerance.elastic.job import ElasticJob
from dtcourse.fault_tolerance.run_log import Goodput, Note, RunLog, Step, goodput
from dtcourse.fault_tolerance.silence import Deadline, Watch
from dtcourse.launch import RankFailure

OnMessage = Callable[[int, Any], None]
LOOK = 0.1  # seconds between two looks at the workers


class ElasticRecovery:
    """Keeps one elastic job going. From other threads `pids` and `log` may be read meanwhile.

    begin:      begins the job; its on_message is to be the one given
    folder:     where the workers' Checkpoints are
    watch:      what finds stopped workers; default: Deadline
    on_message: gets what the workers send besides steps and notes

    starts:     generations until now;  failures: workers that were lost
    """

    def __init__(
        self,
        begin: Callable[[OnMessage], ElasticJob],
        folder: str | Path,
        watch: Watch | None = None,
        on_message: OnMessage | None = None,
    ) -> None:
        self.begin, self.folder, self.on_message = begin, Path(folder), on_message
        self.watch: Watch = watch or Deadline()
        self.log = RunLog()
        self.starts = self.failures = 0
        self._job: ElasticJob | None = None
        self._told: set[int] = set()  # the workers of whose end the log has a line

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the workers that train together, by rank; none while one of them is missing."""
        if self._job is None or not self._job.generations:
            return ()
        running = self._job.pids()
        members = self._job.generations[-1].members
        return tuple(running[w] for w in members) if running.keys() >= {*members} else ()

    @property
    def goodput(self) -> Goodput:
        """Of all that has been so far."""
        return goodput(self.log.steps, self.log.seconds())

    def run(self) -> list[Any]:
        """Waits until the workers return; what those of the last generation returned, by rank. Raises what
        ElasticJob.result does.
        """
        with self.begin(self._hear) as self._job:
            while True:
                try:
                    outcomes = self._job.result(LOOK)
                except TimeoutError:
                    self._look(self._job)
                    continue
                break
            self._write_down(self._job)
        members = self._job.generations[-1].members
        self._say(f"{_workers(members)} returned")
        return [outcomes[worker] for worker in members]

    def _look(self, job: ElasticJob) -> None:
        self._write_down(job)
        running = job.pids()
        silent = self.watch.look(list(running.values()))
        if silent is None:
            return
        lost = [list(running)[place] for place in silent.ranks]
        self._say(f"{_workers(lost)} stopped for too long, and killed")
        for worker in lost:
            if worker in job.living():
                job.kill(worker)
        self.watch.begin(len(running))

    def _write_down(self, job: ElasticJob) -> None:
        """Who has died, and who trains from now on."""
        for worker, outcome in list(job.outcomes.items()):
            if worker not in self._told and isinstance(outcome, RankFailure):
                self.failures += 1
                self._say(f"worker {worker} is lost: {outcome.failures[0].summary}")
            self._told.add(worker)
        for generation in job.generations[self.starts :]:
            self.starts += 1
            self._say(f"generation {generation.number}: {_workers(generation.members)}")

    def _hear(self, worker: int, message: Any) -> None:
        if isinstance(message, Step):
            self.log.steps.append(message)
        elif isinstance(message, Note):
            self.log.add(f"worker {worker}", message.text)
        elif self.on_message is not None:
            self.on_message(worker, message)

    def _say(self, what: str) -> None:
        self.log.add("recovery", what)


def _workers(numbers: Any) -> str:
    """In words, by rank."""
    return f"worker{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
