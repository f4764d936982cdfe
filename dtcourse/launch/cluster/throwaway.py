"""A real Slurm on this machine, for as long as it is wanted: several nodes on loopback, each with a slurmd of its own.

    with ThrowawaySlurm() as slurm:      # two nodes of four CPUs, up in a second
        launch(step, 4, nodes=2, cluster="slurm")

It needs Slurm's programs (Debian: apt-get install --no-install-recommends slurm-wlm munge) and no rights beyond the
user's own. The nodes share this machine's processors, memory and files: what is real is the scheduler, and everything
that talks to it. Its configuration, keys and logs lie in a folder that goes with it.

The daemons are children of a keeper, a process that ends them all when we end it or go away, however we go.
"""

from __future__ import annotations

import getpass
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from dtcourse.launch.cluster.throwaway_configuration import CONFIGURATION

NEEDED = ("slurmctld", "slurmd", "sbatch", "srun", "munged")
INSTALL = "apt-get install -y --no-install-recommends slurm-wlm munge"
UP = 30.0  # seconds that it may take to come up
# In its folder: the keeper is told that all is up; it says which daemon ended before that.
UP_FILE, ENDED_FILE = "up", "ended"


def missing() -> list[str]:
    """The programs that are not here."""
    return [name for name in NEEDED if shutil.which(name, path=_path()) is None]


def start(nodes: int = 2, cpus: int = 4) -> tuple[ThrowawaySlurm | None, str | None]:
    """A Slurm that is up and None; or None and, in one sentence, why there is none. For those who go on without."""
    if gone := missing():
        return None, f"there is no Slurm here: {', '.join(gone)} not found"
    try:
        return ThrowawaySlurm(nodes, cpus).__enter__(), None
    # KeyError: the user has no name here (getpass)
    except (RuntimeError, OSError, KeyError) as error:
        return None, str(error).splitlines()[0]


def _path() -> str:
    """Where daemons are: a user's PATH often leaves the sbin folders out."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin", "/usr/local/sbin"])


class ThrowawaySlurm:
    """Slurm with `nodes` nodes of `cpus` CPUs each, in this process's environment between enter and exit.

    forgets: seconds after which Slurm forgets a job that is over
    binds:   bind each task to the cores that its job was given; `cpus` may then be no more than this machine has
    users:   other users of this machine may submit jobs too, which run as them; only root can start such a cluster
    misses:  seconds after which Slurm takes a silent node for lost (SlurmdTimeout; its own default is 300)
    grace:   seconds between the signal that asks a job to end and the one that kills it
    inside:  a command that runs another one (unshare ...), in which the nodes live
    """

    def __init__(
        self,
        nodes: int = 2,
        cpus: int = 4,
        forgets: int = 300,
        inside: Sequence[str] = (),
        binds: bool = False,
        users: bool = False,
        misses: int = 10,
        grace: int = 3,
    ) -> None:
        if gone := missing():
            raise RuntimeError(
                f"no Slurm can be started here: {', '.join(gone)} not found ({INSTALL})"
            )
        self.nodes, self.cpus, self.forgets = nodes, cpus, forgets
        self.inside, self.binds, self.users = inside, binds, users
        self.misses, self.grace = misses, grace
        self.names = [f"n{i + 1}" for i in range(nodes)]
        self._keeper: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ThrowawaySlurm:
        self._before = os.environ.get("SLURM_CONF")
        self.folder = Path(tempfile.mkdtemp(prefix="dtcourse-slurm-"))  # 0700
        self.configuration = self.folder / "slurm.conf"
        try:
            self._configure()
            self._keeper = subprocess.Popen(
                [*self.inside, sys.executable, "-m", __name__, str(self.folder), *self.names],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PATH": _path(), "SLURM_CONF": str(self.configuration)},
                start_new_session=True,
            )
            os.environ["SLURM_CONF"] = str(self.configuration)
            self._wait_until_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _configure(self) -> None:
        for name in ("state", "log", *self.names):
            (self.folder / name).mkdir()
        if self.users:
            self.folder.chmod(0o755)
            (self.folder / "state").chmod(0o700)
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))
        ports = _free_ports(self.nodes + 1)
        user, host = getpass.getuser(), socket.gethostname().split(".")[0]
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={self.cpus} RealMemory=4000"
            for name, port in zip(self.names, ports[1:], strict=True)
        )
        self.configuration.write_text(
            CONFIGURATION.format(
                host=host,
                port=ports[0],
                user=user,
                folder=self.folder,
                nodes=nodes,
                forgets=self.forgets,
                misses=self.misses,
                grace=self.grace,
                binds="affinity" if self.binds else "none",
            )
        )
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\n")

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + UP
        while time.monotonic() < deadline:
            assert self._keeper is not None, "it was just started"
            if self._keeper.poll() is not None:
                break
            # A question to a controller that does not listen yet would be asked again for many seconds.
            if (self.folder / "listening").exists():
                asked = ["sinfo", "--noheader", "--Node", "--partition=all", "--format=%N %t"]
                shown = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
                if sum(line.endswith(" idle") for line in shown.splitlines()) == self.nodes:
                    (self.folder / UP_FILE).touch()
                    return
            time.sleep(0.05)
        logs = "".join(
            f"\n{path.name}: {line}"
            for path in sorted((self.folder / "log").iterdir())
            for line in path.read_text(errors="replace").splitlines()[-3:]
        )
        ended = self.folder / ENDED_FILE
        why = ended.read_text() if ended.exists() else f"its nodes were not idle after {UP:g} s"
        raise RuntimeError(
            f"Slurm did not come up on this machine: {why}\nThe ends of its logs:{logs}"
        )

    @property
    def process(self) -> int:
        """The process id of the keeper, which lives where the nodes do."""
        assert self._keeper is not None, "between enter and exit"
        return self._keeper.pid

    def kill_node(self, name: str) -> None:
        """Ends a node as a power cut would: its daemon, and every process of its jobs."""
        for process in _processes_of(self.folder, name):
            with suppress(psutil.Error):
                process.kill()

    def __exit__(self, *_: object) -> None:
        if self._keeper is not None:
            assert self._keeper.stdin is not None, "it has a pipe"
            self._keeper.stdin.close()
            try:
                self._keeper.wait(20)
            except subprocess.TimeoutExpired:
                self._keeper.kill()
        if self._before is None:
            os.environ.pop("SLURM_CONF", None)
        else:
            os.environ["SLURM_CONF"] = self._before
        shutil.rmtree(self.folder, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    """So many ports on which nobody listens now."""
    doors = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [door.getsockname()[1] for door in doors]
    finally:
        for door in doors:
            door.close()


# --- the keeper --------------------------------------------------------------------------------------------------


class _Ended(Exception):
    """A daemon ended before all was up, or nobody wants them any more."""


def _keep(folder: Path, names: list[str]) -> None:
    """Starts the daemons, and ends them when nobody holds our standard input any more, or one fails to come up."""
    configuration = folder / "slurm.conf"
    log = folder / "log"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    started: dict[str, subprocess.Popen[bytes]] = {}

    def start(name: str, *command: str) -> None:
        with open(log / f"{name}.out", "wb") as file:
            try:
                started[name] = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=file, stderr=file
                )
            except OSError as error:
                (folder / ENDED_FILE).write_text(f"{name} cannot be run ({error.strerror})")
                raise _Ended from None

    def wait(until: Callable[[], bool]) -> None:
        while not until():
            if select.select([sys.stdin.fileno()], [], [], 0.02)[0]:
                raise _Ended
            for name, daemon in started.items():
                if (code := daemon.poll()) is not None:
                    said = _last_line(log, name)
                    (folder / ENDED_FILE).write_text(f"{name} ended with exit code {code}{said}")
                    raise _Ended

    def listens() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return True
        return False

    munge = folder / "munge"
    port = next(
        int(line.split("=")[1])
        for line in configuration.read_text().splitlines()
        if line.startswith("SlurmctldPort")
    )
    try:
        start(
            "munged",
            *(
                "munged",
                "--foreground",
                "--force",
                f"--key-file={folder / 'munge.key'}",
                f"--socket={munge}",
            ),
            *(
                f"--pid-file={munge}.pid",
                f"--log-file={log / 'munged.log'}",
                f"--seed-file={munge}.seed",
            ),
        )
        wait(munge.exists)
        start("slurmctld", "slurmctld", "-D", "-i", "-c", "-f", str(configuration))
        for name in names:
            start(f"slurmd-{name}", "slurmd", "-D", "-N", name, "-f", str(configuration))
        wait(listens)
        (folder / "listening").touch()
        wait((folder / UP_FILE).exists)
        sys.stdin.buffer.read()
    except _Ended:
        pass
    finally:
        for process in _processes_of(folder):
            with suppress(psutil.Error):
                process.kill()  # jobs and their steps, which are nobody's children
        for daemon in reversed(started.values()):
            daemon.terminate()
        for daemon in started.values():
            try:
                daemon.wait(5)
            except subprocess.TimeoutExpired:
                daemon.kill()


def _last_line(log: Path, name: str) -> str:
    """The last thing that a daemon said, for the end of a sentence."""
    files = [log / f"{name}.out", log / f"{name.removeprefix('slurmd-')}.log"]
    lines = [
        line.strip()
        for file in files
        if file.exists()
        for line in file.read_text(errors="replace").splitlines()
        if line.strip()
    ]
    return f", and said: {lines[-1]}" if lines else ""


def _processes_of(folder: Path, node: str | None = None) -> list[psutil.Process]:
    """The daemons of that cluster's nodes (or of one node), Slurm's helpers for steps, and the processes of jobs."""
    logs = {str(log) for log in (folder / "log").glob(f"{node or '*'}.log")}
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.name() in ("slurmstepd", "slurmd"):
                # A slurmstepd's environment cannot be read: it writes its title over it. Its log is its node's.
                if any(file.path in logs for file in process.open_files()):
                    found.append(process)
                continue
            around = process.environ()
            ours = around.get("SLURM_CONF") == str(folder / "slurm.conf")
            if ours and "SLURM_JOB_ID" in around and node in (None, around.get("SLURMD_NODENAME")):
                found.append(process)
    return found


if __name__ == "__main__":
    _keep(Path(sys.argv[1]), sys.argv[2:])
