"""launch in a real Jupyter kernel: code of cells, interrupts, restarts, and what a saved notebook shows."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.manager import KernelManager

from tests.launch.settling import LONG_PLAY

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Outcome:
    """What one cell shows in the end."""

    printed: str = ""
    warned: str = ""
    result: str | None = None
    error: str | None = None  # the traceback as the notebook shows it, without colours
    message: str | None = None  # the exception's own text
    displays: dict[str, dict[str, Any]] = field(default_factory=dict)  # the last state of each


class Kernel:
    """A kernel of this Python, and a client that reads what its cells show."""

    def __init__(self, folder: Path) -> None:
        self.manager = KernelManager()
        self.manager.start_kernel(cwd=str(folder))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=240)
        self.run(f"import sys; sys.path.insert(0, {str(ROOT)!r})")

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self.manager.provisioner.pid)

    def send(self, code: str) -> str:
        return self.client.execute(textwrap.dedent(code).strip(), allow_stdin=False)

    def run(self, code: str) -> Outcome:
        return self.outcome(self.send(code))

    def outcome(self, request: str, until: str | None = None) -> Outcome:
        """What the cell shows until it is done, or until it has printed `until`."""
        seen = Outcome()
        while until is None or until not in seen.printed:
            message = self.client.get_iopub_msg(timeout=240)
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return seen
            if kind == "stream" and content["name"] == "stdout":
                seen.printed += content["text"]
            elif kind == "stream":
                seen.warned += content["text"]
            elif kind == "execute_result":
                seen.result = content["data"]["text/plain"]
            elif kind in ("display_data", "update_display_data"):
                seen.displays[content["transient"]["display_id"]] = content["data"]
            elif kind == "error":
                text = "\n".join(content["traceback"])
                seen.error = re.sub(r"\x1b\[[0-9;]*m", "", text)
                seen.message = content["evalue"]
        return seen

    def start_sleepers(self) -> tuple[str, list[psutil.Process]]:
        """Three ranks that sleep: the cell's number for `outcome`, and all processes below the kernel."""
        request = self.send("""
            def sleep():
                send_message("up")
                time.sleep(300)

            launch(sleep, 3, timeout=None, on_message=lambda *_: print("up", flush=True))
        """)
        self.outcome(request, until="up\nup\nup\n")
        family = self.process.children(recursive=True)
        assert len(family) >= 4, "a server and three ranks"
        return request, family

    def stop(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


BEGIN = """
    import time
    import torch
    import torch.distributed as dist
    from torch import nn
    from dtcourse import launch
    from dtcourse.launch import progress, send_message
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """One kernel for all tests that leave it alive."""
    kernel = Kernel(tmp_path_factory.mktemp("notebook"))
    kernel.run(BEGIN)
    yield kernel
    kernel.stop()


def gone_within(processes: list[psutil.Process], seconds: float) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []


def ranks_of(kernel: Kernel) -> list[psutil.Process]:
    """Processes that come from the kernel's fork server, but for those that wait for the next launch."""
    waiting = kernel.run("from dtcourse.launch import standby\nsorted(standby.pids())").result
    return [
        c for c in kernel.process.children(recursive=True)
        if c.ppid() != kernel.process.pid and c.status() != psutil.STATUS_ZOMBIE
        and c.pid not in ast.literal_eval(waiting)
    ]  # fmt: skip


def test_the_first_launch_finds_what_the_cell_before_has_imported(tmp_path):
    """While their reader reads, the template loads it; no launch has to come first."""
    kernel = Kernel(tmp_path)
    try:
        kernel.run(
            f"{BEGIN}    import sys\n    from dtcourse import models\n    from dtcourse.launch import template"
        )
        limit = time.monotonic() + 120
        while kernel.run("template.current().is_ready").result != "True":
            assert time.monotonic() < limit, "no template"
            time.sleep(0.2)
        kernel.run("def has():\n    return 'dtcourse.models' in sys.modules")
        assert kernel.run("list(launch(has, 2, init=False))").result == "[True, True]"
    finally:
        kernel.stop()


# --- what cells define ---------------------------------------------------------------------------------------------


def test_functions_classes_and_modules_of_a_cell_travel(kernel):
    kernel.run("""
        from dataclasses import dataclass

        @dataclass
        class Answer:
            rank: int
            loss: float

        class Scale(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(2))

            def forward(self, x):
                return x * self.weight * FACTOR

        def helper(x):
            return x.sum()

        def step(net, x):
            net.weight.data.mul_(dist.get_rank() + 1)
            everyone = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, Answer(dist.get_rank(), helper(net(x)).item()))
            return everyone, net

        FACTOR = 10
        net = Scale()
    """)
    out = kernel.run("""
        run = launch(step, 2, net, torch.ones(2))
        assert all(type(a) is Answer for a in run[0][0]) and type(run[1][1]) is Scale
        print(run[0][0], run[1][1].weight.tolist(), net.weight.tolist())
    """)
    assert out.error is None, out.error
    answers = "[Answer(rank=0, loss=20.0), Answer(rank=1, loss=40.0)]"
    assert out.printed == f"{answers} [2.0, 2.0] [1.0, 1.0]\n"


def test_a_cell_run_again_with_another_definition_is_what_the_ranks_run(kernel):
    assert kernel.run("def which(): return 1\nlaunch(which, 2)[1]").result == "1"
    assert kernel.run("def which(): return 2\nlaunch(which, 2)[1]").result == "2"


def test_lines_of_ranks_are_shown_in_rank_order(kernel):
    out = kernel.run("""
        def talk():
            time.sleep(0.1 * (1 - dist.get_rank()))
            print("hello")

        run = launch(talk, 2)
    """)
    assert (out.printed, out.warned) == ("rank 0 | hello\nrank 1 | hello\n", "")


def test_a_module_beside_the_notebook_is_found(kernel):
    out = kernel.run("""
        from pathlib import Path

        Path("beside.py").write_text("def who():\\n    import os\\n    return int(os.environ['RANK'])\\n")
        import beside

        list(launch(beside.who, 2))
    """)
    assert out.result == "[0, 1]", out.error


def test_after_a_multithreaded_backward_in_the_kernel(kernel):
    out = kernel.run("""
        torch.set_num_threads(2)
        model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
        model(torch.randn(256, 512)).sum().backward()

        def train():
            replica = nn.Linear(64, 64)
            replica(torch.randn(32, 64)).sum().backward()
            return replica.weight.grad is not None

        list(launch(train, 2, timeout=30))
    """)
    assert out.result == "[True, True]", out.error


# --- what a failing cell shows ---------------------------------------------------------------------------------------


def has_machine_path(text: str) -> list[str]:
    """Lines that would read otherwise on another machine."""
    return [line for line in text.splitlines() if re.search(r"(^|[\s\"'~(])~?/\w", line)]


def test_a_failing_cell_names_the_cell_and_shows_no_machine_path(kernel):
    number = kernel.run("len(In) - 1").result
    out = kernel.run("""
        def inner(x):
            raise ValueError(f"bad shard {x}")

        def step(x):
            if dist.get_rank() == 1:
                inner(x)
            dist.barrier()
    """)
    cell = int(number) + 1
    out = kernel.run("launch(step, 2, 7)")
    assert out.message.startswith("rank 1 of 2 raised ValueError: bad shard 7")
    assert f"Cell In[{cell}], line 6, in step\n    inner(x)" in out.message
    assert (
        f'Cell In[{cell}], line 2, in inner\n    raise ValueError(f"bad shard {{x}}")'
        in out.message
    )
    assert f"Cell In[{cell + 1}], line 1" in out.error, "and where launch was called"
    assert out.error.count("bad shard 7") == 2, (
        "in the first line and in the rank's own traceback, no more"
    )
    assert "RankFailure" in out.error and "launcher.py" not in out.error
    assert has_machine_path(out.error) == []


def test_a_traceback_through_the_library_shows_no_machine_path(kernel):
    out = kernel.run("launch(lambda: torch.nn.Linear(2, 3)(torch.ones(4)), 1)")
    assert "torch/nn/modules/linear.py" in out.message
    assert has_machine_path(out.error) == []


def test_a_time_limit_names_the_cells_and_shows_no_machine_path(kernel):
    out = kernel.run("""
        def wait_for_nobody():
            if dist.get_rank() == 0:
                dist.recv(torch.zeros(1), src=1)

        launch(wait_for_nobody, 2, timeout=1)
    """)
    assert re.search(
        r"rank 0 waited in recv\(\), called in wait_for_nobody\(\) at Cell In\[\d+\], line 3: "
        r"dist.recv\(torch.zeros\(1\), src=1\)",
        out.message,
    )
    assert has_machine_path(out.error) == []


@pytest.mark.parametrize(
    "call", ["launch(step, 0)", "launch(3, 2)", "launch(time.sleep, 2, 1, timeout=-1)",
             "launch(lambda colour: 1, 2)", "launch(lambda: lock, 2)"],
)  # fmt: skip
def test_a_mistake_shows_the_cell_and_none_of_our_frames(kernel, call):
    kernel.run("import threading\nlock = threading.Lock()\ndef step(): pass")
    out = kernel.run(call)
    assert out.error is not None and f"----> 1 {call}" in out.error
    assert "dtcourse" not in out.error.replace("from dtcourse", "")
    assert has_machine_path(out.error) == []


# --- bars ----------------------------------------------------------------------------------------------------------


def test_a_progress_bar_ends_as_text_that_is_the_same_each_time(kernel):
    code = """
        def steps():
            for _ in progress(range(5), "epoch"):
                time.sleep(0.05)

        run = launch(steps, 2)
    """
    for _ in range(2):
        out = kernel.run(code)
        assert list(out.displays.values()) == [{"text/plain": "epoch 5 of 5"}]
        assert (out.printed, out.warned) == ("", "")


def test_a_bar_that_is_left_early_ends_where_it_was_left(kernel):
    out = kernel.run("""
        def search():
            for i in progress(range(1000), "trial"):
                if i == 30:
                    break

        run = launch(search, 2)
    """)
    assert list(out.displays.values()) == [{"text/plain": "trial 30 of 1000"}]


# --- interrupt, restart, kill --------------------------------------------------------------------------------------


def test_an_interrupt_says_where_the_ranks_were_and_the_next_launch_works(kernel):
    request, _ = kernel.start_sleepers()
    kernel.manager.interrupt_kernel()
    out = kernel.outcome(request)
    assert "KeyboardInterrupt" in out.error
    for rank in range(3):
        # On a busy machine a rank whose message has come may not have returned from sending it.
        line = rf"rank {rank} was in \w+\(\), called in sleep\(\) at Cell In\[\d+\], line [23]: \w+"
        assert re.search(line, out.error), out.error
    assert has_machine_path(out.error) == []
    assert gone_within(ranks_of(kernel), 60)
    assert kernel.run("list(launch(dist.get_rank, 2))").result == "[0, 1]"


def test_an_impatient_hand_on_the_interrupt_key(kernel):
    request, _ = kernel.start_sleepers()
    for _ in range(6):
        kernel.manager.interrupt_kernel()
        time.sleep(0.01)
    assert re.search(r"rank 2 was in \w+\(\)", kernel.outcome(request).error)
    assert gone_within(ranks_of(kernel), 60)
    assert kernel.run("list(launch(dist.get_rank, 2))").result == "[0, 1]"


def begin(kernel: Kernel) -> list[psutil.Process]:
    """A launch that works, then sleepers: all processes below a kernel that has just started."""
    kernel.run(BEGIN)
    assert kernel.run("list(launch(dist.get_rank, 2))").result == "[0, 1]"
    return kernel.start_sleepers()[1]


@pytest.mark.slow
@LONG_PLAY
def test_no_process_survives_the_kernel(tmp_path):
    """Restarted (Kernel > Restart), killed (the system, out of memory), shut down (the notebook's tab)."""
    kernel = Kernel(tmp_path)
    try:
        family = begin(kernel)
        kernel.manager.restart_kernel(now=True)
        assert gone_within(family, 60)
        kernel.client.wait_for_ready(timeout=240)
        kernel.run(f"import sys; sys.path.insert(0, {str(ROOT)!r})")
        family = begin(kernel)
        kernel.process.kill()
        assert gone_within(family, 60)
    finally:
        kernel.stop()

    kernel = Kernel(tmp_path)
    try:
        # The server starts with the import, and the kernel waits for nobody.
        seen = kernel.run("""
            from dtcourse import launch
            from dtcourse.launch import server
            early = server.pid()
            print(early is not None, launch(abs, 2, -3)[1], server.pid() == early)
        """)
        assert seen.printed.split() == ["True", "3", "True"], seen
        family = begin(kernel)
        kernel.manager.shutdown_kernel(now=False)
        assert gone_within(family, 60)
    finally:
        kernel.stop()


# --- the wrong kernel ----------------------------------------------------------------------------------------------

BLOCK = """
    import sys

    class Missing:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in {missing!r}:
                raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

    sys.meta_path.insert(0, Missing())
    sys.path.insert(0, {root!r})
    {code}
"""


@pytest.mark.parametrize("missing", [("torch",), ("torch", "numpy", "cloudpickle", "psutil")])
def test_a_python_without_torch_gets_one_clear_sentence(missing):
    code = "from dtcourse import launch; launch(print, 2)"
    script = textwrap.dedent(BLOCK).format(missing=missing, root=str(ROOT), code=code)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=240
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: this notebook's Python (")
    assert f"has no {'PyTorch' if len(missing) == 1 else 'cloudpickle'}" in last
    assert "Kernel > Change Kernel" in last
