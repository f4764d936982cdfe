"""The actor of one node: between the notebook, which asks it what is new, and the node's agent (ray_agent.py).

It keeps a private folder on its node, as a job has one on Slurm: it writes there what the notebook asks for, and reads
there what the agent says.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

import dtcourse
from dtcourse.launch.cluster import call as words
from dtcourse.launch.cluster.folder import Reader, Writer
from dtcourse.launch.cluster.station import Station

LOOK = 0.02  # seconds between two looks into the agent's log
ANSWERS = 0.5  # seconds after which it answers although nothing is new: a sign of life
# Removes the folder when the actor has gone, however. Nobody's child: a worker of Ray's kills its own at its end.
SWEEP = 'exec 3<&0; (trap "" TERM INT HUP; read -r word <&3; sleep 1; rm -rf -- "$1") < /dev/null &'
WRITES = "agent.err"  # the file, in its folder
GOES = 5.0  # seconds in which an agent must have gone

# One thread while the agent imports, or it could not split off the ranks' server (server.start_within).
QUIET = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
NOT_OURS = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK")
BEGIN = """
import sys
sys.path.append({course!r})
from dtcourse.launch.cluster import ray_agent, station
ray_agent.main({folder!r}, station.{station!r})
"""

Frame = tuple[bytes, list[bytearray]]


@dataclass(frozen=True)
class Place:
    """Where Ray has put an actor. gpus: which of the node's it was given."""

    node: str  # Ray's identifier
    address: str
    gpus: list[str]


@dataclass(frozen=True)
class Heard:
    """What is new of an agent. meeting: where node 0's listens; code: with which it has ended, and what it wrote."""

    first: int  # the number of the first frame
    frames: list[Frame]
    meeting: tuple[str, int] | None
    code: int | None
    wrote: str


class NodeActor:
    """One node's. Ray calls its methods from several threads."""

    def __init__(self) -> None:
        self.agent: subprocess.Popen[bytes] | None = None
        self.folder: Path | None = None
        self.met: tuple[str, int] | None = None  # where the agent of node 0 listens
        self._batch: list[Frame] = []  # what was given away last
        self._first = 0  # its first frame's number
        self._is_closed = False

    def place(self) -> Place:
        """Where it is."""
        import ray

        context = ray.get_runtime_context()
        gpus = [str(each) for each in context.get_accelerator_ids().get("GPU", [])]
        return Place(context.get_node_id(), ray.util.get_node_ip_address(), gpus)

    def start(self, asked: bytes, station: Station, gpus: str | None) -> None:
        """Starts the agent. asked: the file `call`; gpus: those that the ranks of the node may see."""
        self.folder, self.station = Path(tempfile.mkdtemp(prefix="dtcourse-ray-")), station
        self._sweeper = _sweep(self.folder)
        (self.folder / words.CALL).write_bytes(asked)
        log = self.folder / words.log_name(station.number)
        log.touch(mode=0o600)
        self._log = Reader(log)
        environment = {name: value for name, value in os.environ.items() if _is_ours(name)} | QUIET
        environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        if gpus is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpus
        course = str(Path(dtcourse.__file__).parents[1])
        text = BEGIN.format(course=course, folder=str(self.folder), station=station)
        with open(self.folder / WRITES, "wb") as file:
            self.agent = subprocess.Popen(
                [sys.executable, "-P", "-u", "-c", text],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                env=environment,
            )

    def meet(self, where: tuple[str, int]) -> None:
        """Tells the agent where node 0's listens."""
        assert self.folder is not None
        Writer(self.folder / words.rendezvous_name(self.station.attempt)).write(where)

    def hear(self, number: int) -> Heard:
        """What the agent has said from the frame of that number on, as soon as it has said something.

        What was given away and never arrived is given once more.
        """
        assert self.agent is not None
        if number > self._first:
            self._batch, self._first = [], number
        deadline, code, knew = time.monotonic() + ANSWERS, None, self.met
        while not self._batch and code is None and time.monotonic() < deadline:
            code = self.agent.poll()
            with suppress(FileNotFoundError):  # it is being closed
                self._batch = list(self._log.frames())
            if self._where() != knew or self._is_closed:
                break
            time.sleep(0 if self._batch or code is not None else LOOK)
        return Heard(
            self._first, self._batch, self.met, code, "" if code is None else self._wrote()
        )

    def _where(self) -> tuple[str, int] | None:
        if self.station.number == 0 and self.met is None and self.folder is not None:
            with suppress(FileNotFoundError):
                file = self.folder / words.rendezvous_name(self.station.attempt)
                for unpack in Reader(file).new():
                    self.met = unpack()
        return self.met

    def _wrote(self) -> str:
        """The end of what the agent wrote outside its ranks."""
        assert self.folder is not None
        with suppress(OSError):
            return (self.folder / WRITES).read_text(errors="replace")[-4000:]
        return ""

    def close(self) -> None:
        """Ends the agent with its ranks and whatever they have started, and leaves nothing on the node."""
        self._is_closed = True
        if self.agent is not None and self.agent.stdin is not None:
            started = []
            with suppress(psutil.Error):
                started = psutil.Process(self.agent.pid).children(recursive=True)
            self.agent.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self.agent.wait(GOES)
            self.agent.kill()
            for process in psutil.wait_procs(started, timeout=GOES)[1]:
                with suppress(psutil.Error):
                    process.kill()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def _sweep(folder: Path) -> int:
    """Has the folder removed when this process ends. Returns our end of the pipe that tells."""
    theirs, ours = os.pipe()
    try:
        subprocess.run(
            ["sh", "-c", SWEEP, "sh", str(folder)],
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=True,
        )
    finally:
        os.close(theirs)
    return ours


def _is_ours(name: str) -> bool:
    """Whether a rank may know of a variable of the worker's: not of Ray's own, nor of a job of Slurm's around it."""
    return name not in NOT_OURS and not name.startswith(("RAY_", "SLURM_", "SUBMITIT_"))
