"""What the batch script starts on each node: `python -m dtcourse.launch.cluster.entry FOLDER`.

It is submitit's own main (submitit/core/submission.py, process_job) but for two things. The pickle that says what to
run is read through the descriptor of a folder that was found to be ours alone; submitit opens it by its path, whoever
may have put a file there. And of the signals only the one by which a job is started again is submitit's: it answers
SIGTERM and SIGCONT, which Slurm sends together, with a line in each rank's output.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from pathlib import Path

from dtcourse.launch.cluster.folder import PrivateFolder

ARRIVES = 60.0  # seconds that submitit's file may take: it is named by the job's number, so written after submission


def main(path: str) -> None:
    """Runs what was submitted from this folder as the present job."""
    from submitit.core.job_environment import JobEnvironment, SignalHandler

    folder = PrivateFolder(Path(path))
    os.environ["SUBMITIT_FOLDER"] = path
    environment = JobEnvironment()
    paths = environment.paths
    name = paths.submitted_pickle.name
    deadline = time.monotonic() + ARRIVES
    while name not in folder.names():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{paths.submitted_pickle} has not come in {ARRIVES:g} s")
        time.sleep(0.1)
    with folder.open(name) as file:
        task = pickle.load(file)
    again = SignalHandler(environment, paths, task)
    signal.signal(environment._usr_sig(), again.checkpoint_and_try_requeue)
    task.result()


if __name__ == "__main__":
    main(sys.argv[1])
