"""A server of ranks that is a copy of the process that launches: torch is imported once for both."""

import json
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="threads are counted on Linux alone"
)

SCRIPT = """
import json, os, signal, sys, time

from dtcourse.launch import launch, server

secret, theirs = os.pipe()

def rank():
    def link(fd):
        try: return os.readlink(f"/proc/self/fd/{fd}")
        except OSError: return ""
    loaded = "torch._dynamo" in sys.modules
    return loaded, [link(fd) for fd in os.listdir("/proc/self/fd")], os.getsid(0)

PREPARE
server.start_within()
first = server.pid()
words = open(f"/proc/{first}/cmdline").read().split("\\0")
runs = [launch(rank, 2, init=False) for _ in range(3)]
again = []
if AGAIN:
    os.kill(first, signal.SIGKILL)
    # Ranks could still come from the template, and nobody would notice, for as long as the server is seen to live.
    while open(f"/proc/{first}/stat").read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    again = launch(rank, 2, init=False)
print(json.dumps({
    "is ours": words == open("/proc/self/cmdline").read().split("\\0"),
    "loaded": all(one[0] for run in runs for one in run),
    "pipe": os.readlink(f"/proc/self/fd/{secret}"),
    "open": [link for run in runs for one in run for link in one[1]],
    "followed": server.pid() != first and len(again) == 2,
}))
"""


def told(prepare: str = "", again: bool = False) -> dict:
    code = SCRIPT.replace("PREPARE", textwrap.dedent(prepare)).replace("AGAIN", str(again))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_it_is_a_copy_without_our_descriptors_and_another_one_follows_it():
    found = told(again=True)
    assert found["is ours"] and found["loaded"] and found["followed"]
    assert found["pipe"].startswith("pipe:") and found["pipe"] not in found["open"]


@pytest.mark.slow
def test_a_process_with_threads_is_not_copied():
    """The copy would have the locks of all threads, and one of them."""
    found = told(
        "import threading; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    )
    assert not found["is ours"] and found["loaded"]
