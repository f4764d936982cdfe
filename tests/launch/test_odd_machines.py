"""Machines and scripts as people have them: a long TMPDIR, an interface that is missing, no IPv4, an own port."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork
from dtcourse.launch import options, rendezvous, sockets


def total() -> float:
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()


# --- a function that brings its own address ----------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return door.getsockname()[1]


def test_a_script_that_names_its_own_port_forms_its_group_there():
    """As the set-up of many a tutorial does: torch would look for torchrun's store at that port, to the time limit."""

    def set_up(port: int) -> float:
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(port)
        dist.init_process_group(
            "gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"])
        )
        return total()

    assert list(launch(set_up, 2, free_port(), init=False, timeout=60)) == [2.0, 2.0]


def test_so_does_one_that_names_it_in_a_url():
    def set_up(port: int) -> float:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size
        )
        return total()

    assert list(launch(set_up, 2, free_port(), init=False, timeout=60)) == [2.0, 2.0]


def test_a_group_of_ones_own_and_then_one_at_the_launchs_port():
    def twice(port: int) -> list[float]:
        sums = []
        at_launch = os.environ["MASTER_PORT"]
        for where in (str(port), at_launch):
            os.environ["MASTER_PORT"] = where
            dist.init_process_group("gloo")
            sums.append(total())
            dist.destroy_process_group()
        assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True"
        return sums

    assert list(launch(twice, 2, free_port(), init=False, timeout=60)) == [[2.0, 2.0]] * 2


# --- TMPDIR ------------------------------------------------------------------------------------------------------

LAUNCH = """
from dtcourse import launch
print(list(launch(int, 2)))
"""


def test_a_long_tmpdir(tmp_path):
    long = tmp_path / ("scratch-of-job-" + "0" * 120)
    long.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH], env={**os.environ, "TMPDIR": str(long)},
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.stdout == "[0, 0]\n", done.stderr
    assert not folders(long)


def folders(base: Path) -> list[Path]:
    return list(base.glob("dtcourse-sock-*"))


def test_the_folder_of_sockets_goes_with_its_process_or_with_the_next_one(tmp_path, monkeypatch):
    """One that was killed leaves its folder to whoever makes the next; what lives, or is another's, stays."""
    code = "import sys; from dtcourse.launch import sockets as s; print(s.free_address(), flush=True); sys.stdin.read()"
    started = {
        "env": {**os.environ, "TMPDIR": str(tmp_path)},
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
    }

    def begin() -> tuple[subprocess.Popen, Path]:
        process = subprocess.Popen([sys.executable, "-c", code], text=True, **started)
        assert process.stdout is not None
        return process, Path(process.stdout.readline().strip()).parent

    killed, left = begin()
    alive, held = begin()
    killed.kill()
    killed.wait()
    assert {*folders(tmp_path)} == {left, held}
    ended, own = begin()
    assert left.exists(), "as young as this, it may not have its lock yet"
    ended.communicate("")
    assert not own.exists()
    for folder in (left, held):
        os.utime(folder, (0, 0))
    next_one, _ = begin()
    assert held.exists()
    assert not left.exists()
    for process in (alive, next_one):
        process.communicate("")
    assert not folders(tmp_path)


def test_a_folder_of_somebody_elses_stays(tmp_path, monkeypatch):
    (tmp_path / "dtcourse-sock-another").mkdir()
    (tmp_path / "dtcourse-sock-another" / "lock").touch()
    os.utime(tmp_path / "dtcourse-sock-another", (0, 0))
    monkeypatch.setattr(sockets.os, "geteuid", lambda: 12_345)
    sockets.sweep(tmp_path)
    assert folders(tmp_path)
    monkeypatch.undo()
    sockets.sweep(tmp_path)
    assert not folders(tmp_path)


def test_all_sockets_of_a_process_are_in_one_short_folder(tmp_path):
    long = tmp_path / ("x" * 120)
    long.mkdir()
    code = (
        "from dtcourse.launch import sockets as s; print(s.free_address()); print(s.free_address())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(long)},
        capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    first, second = map(Path, done.stdout.split())
    assert len(os.fsencode(first)) < sockets.LONGEST_PATH
    assert first.parent == second.parent
    assert first != second
    assert not first.parent.exists()


def test_where_not_even_tmp_can_be_written_the_sentence_names_tmpdir(monkeypatch):
    def no_room(**_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(sockets.tempfile, "gettempdir", lambda: "/" + "x" * 200)
    monkeypatch.setattr(sockets.tempfile, "mkdtemp", no_room)
    monkeypatch.setattr(sockets, "_folders", {})
    with pytest.raises(
        OSError, match=r"fewer than \d+ bytes, and TMPDIR .* leaves no room .*shorter path"
    ):
        sockets.free_address()


# --- interfaces --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"])
@pytest.mark.parametrize("where", ["environment", "env"])
def test_an_interface_that_is_not_there_is_named_with_its_variable(variable, where, monkeypatch):
    env = {variable: "ib99"} if where == "env" else {}
    if where == "environment":
        monkeypatch.setenv(variable, "ib99")
    with pytest.raises(
        ValueError,
        match=f"{variable}=ib99 names a network interface that this machine does not have",
    ):
        launch(total, 2, env=env)


def test_one_that_is_there_is_used():
    (name,) = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    assert launch(total, 2, env={"GLOO_SOCKET_IFNAME": name})[0] == 2.0


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_loopback_without_ipv4(monkeypatch):
    """192.0.2.1 is nobody's: it stands for the 127.0.0.1 that is not there."""
    others = [(socket.AF_INET, "192.0.2.1"), *rendezvous.LOOPBACKS[1:]]
    monkeypatch.setattr(rendezvous, "LOOPBACKS", others)

    def by_hand() -> tuple[str, float]:
        dist.init_process_group("gloo")
        return os.environ["MASTER_ADDR"], total()

    if has_ipv6():
        assert launch(by_hand, 2, init=False)[1] == ("::1", 2.0)
    else:
        with pytest.raises(OSError, match="loopback interface is down"):
            launch(total, 2)


def test_loopback_that_is_down_is_one_sentence(monkeypatch):
    monkeypatch.setattr(rendezvous, "LOOPBACKS", [(socket.AF_INET, "192.0.2.1")])
    with pytest.raises(
        OSError, match=r"loopback interface is down \(.*\), and ranks meet on it: start it"
    ):
        launch(total, 2)


# --- numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("two", [np.int64(2), np.uint8(2), torch.tensor(2)], ids=repr)
def test_whole_numbers_of_any_kind(two):
    run = launch(total, two, nodes=two, threads=two, timeout=np.float32(60))
    assert list(run) == [2.0, 2.0]
    assert (type(run.layout.world_size), run.layout.threads) == (int, 2)


@pytest.mark.parametrize("none", [np.float64(2), np.int64(0), True, "2", None], ids=repr)
def test_what_is_no_whole_number(none):
    with pytest.raises(ValueError, match="the number of ranks to start: a whole number, 1 or more"):
        launch(total, none)


# --- several machines --------------------------------------------------------------------------------------------


def test_there_is_no_wall_clock_of_several_machines():
    """Each one's begins when it was started, and a message says when it was sent: its receiver would wait for days."""
    network = EmulatedNetwork(1e-3)
    with pytest.raises(ValueError, match="on 2 machines there is no one wall clock"):
        options.emulated_cluster(None, network, None, 4, machines=2)
    cluster = options.emulated_cluster(EmulatedDevice(), network, None, 4, machines=2)
    assert cluster.clock == "virtual"
