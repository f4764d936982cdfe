"""Ranks find each other without the network's name service, and leave nothing of their rendezvous behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import psutil
import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.launch import rendezvous, serialization
from tests.launch.settling import settle


def connections_to_the_tcp_store():
    dist.barrier()
    port = int(os.environ["MASTER_PORT"])
    mine = psutil.Process().net_connections(kind="tcp")
    return [c.status for c in mine if c.raddr and c.raddr.port == port]


def test_a_group_that_launch_forms_needs_no_tcp_store():
    """Each connection to one asks a name server, and hangs for seconds where its answer is lost."""
    assert list(launch(connections_to_the_tcp_store, 3)) == [[], [], []]


def form_a_group_and_look():
    dist.init_process_group("gloo")
    return connections_to_the_tcp_store()


def test_who_forms_a_group_of_their_own_finds_the_tcp_store():
    for statuses in launch(form_a_group_and_look, 2, init=False):
        assert "ESTABLISHED" in statuses


def ask_the_other():
    from torch.distributed import rpc

    me = dist.get_rank()
    rpc.init_rpc(f"rank{me}", rank=me, world_size=2)
    answer = rpc.rpc_sync(f"rank{1 - me}", torch.add, args=(torch.ones(1), me))
    rpc.shutdown()
    return answer.item()


def test_rpc_works_beside_the_group():
    assert list(launch(ask_the_other, 2)) == [1.0, 2.0]


def test_no_file_and_no_thread_remains():
    # From its first store on a process keeps a pipe: libuv's, for signals.
    launch(form_a_group_and_look, 2, init=False)
    settle(2)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(3):
        launch(dist.barrier, 2)
    launch(form_a_group_and_look, 2, init=False)
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before
    assert not [t for t in threading.enumerate() if t.name == "dtcourse-tcp-store"]


LATE = """
import socket, sys, tempfile
from datetime import timedelta
from dtcourse.launch import rendezvous

home = rendezvous.Rendezvous()
keep = sys.argv[1] == "join"
store = (rendezvous.join if keep else rendezvous.Visit)(home.path, timedelta(seconds=5))
(store if keep else store.store).set("key", "value")
number = int(home.path.rpartition("/")[2]) if home.path.startswith("/proc") else None
home.close()
files = [tempfile.TemporaryFile() for _ in range(20)]
assert number is None or number in [file.fileno() for file in files], "its number is another file's by now"
del store
assert all(file.seek(0, 2) == 0 for file in files), "it wrote into another file"
files.clear()
home = rendezvous.Rendezvous()
store = (rendezvous.join if keep else rendezvous.Visit)(home.path, timedelta(seconds=5))
home.close()
sockets = [socket.socket() for _ in range(20)]
del store
print("goes on")
"""


@pytest.mark.parametrize("how", ["join", "visit"])
def test_a_store_that_outlives_the_launch_touches_no_other_file(how):
    """It opens its path again when it goes: the number of the launch's file may be another one's, or a socket's."""
    run = subprocess.run(
        [sys.executable, "-c", LATE, how], capture_output=True, text=True, check=False
    )
    assert run.stdout == "goes on\n", run.stderr


def test_where_no_place_can_be_made_the_function_s_payload_is_let_go(monkeypatch):
    closed = []
    monkeypatch.setattr(serialization.Payload, "close", lambda self: closed.append(self))

    def no_place():
        raise OSError("too many open files")

    monkeypatch.setattr(rendezvous, "Rendezvous", no_place)
    with pytest.raises(OSError, match="too many open files"):
        launch(abs, 2, -1)
    assert len(closed) == 1
