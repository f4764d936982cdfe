"""What launch does when all goes well: from everywhere, with everything, and back."""

from __future__ import annotations

import functools
import os
import random
import subprocess
import sys
import textwrap
import threading
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import launch
from dtcourse.launch import progress, send_message, server


def rank_and_size():
    return dist.get_rank(), dist.get_world_size()


def sum_of_ranks(value=1.0):
    total = torch.tensor([value * (dist.get_rank() + 1)])
    dist.all_reduce(total)
    return total.item()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_results_come_back_by_rank(world_size):
    run = launch(rank_and_size, world_size)
    assert list(run) == [(rank, world_size) for rank in range(world_size)]
    assert len(run) == world_size and run[-1] == (world_size - 1, world_size)


def test_positional_and_keyword_arguments_reach_the_function():
    assert launch(sum_of_ranks, 2, 2.0)[1] == 6.0
    assert launch(sum_of_ranks, 2, value=3.0)[0] == 9.0


def test_a_partial_and_a_lambda_and_a_method_can_be_launched():
    class Counter:
        start = 10

        def count(self):
            return self.start + dist.get_rank()

    assert launch(functools.partial(sum_of_ranks, value=2.0), 2)[0] == 6.0
    assert list(launch(lambda: dist.get_rank() * 2, 2)) == [0, 2]
    assert list(launch(Counter().count, 2)) == [10, 11]


def test_thirty_two_ranks_on_two_cores():
    assert launch(sum_of_ranks, 32)[31] == sum(range(1, 33))


def test_each_launch_gets_fresh_processes():
    def leave_a_mark():
        import dtcourse

        seen = getattr(dtcourse, "mark", None)
        dtcourse.mark = True
        return os.getpid(), seen

    first, second = launch(leave_a_mark, 2), launch(leave_a_mark, 2)
    assert {pid for pid, _ in first}.isdisjoint({pid for pid, _ in second})
    assert all(seen is None for _, seen in second)


def test_a_rank_finds_torch_loaded_but_neither_dtcourse_code_nor_matplotlib():
    def loaded():
        return sorted(
            m for m in sys.modules if m.split(".")[0] in ("matplotlib", "IPython", "seaborn")
        )

    def arrived_loaded():
        import time

        start = time.process_time()
        for name in server.PRELOAD:
            __import__(name)
        return time.process_time() - start

    assert launch(loaded, 1)[0] == []
    # Importing them again costs nothing: they came with the process. Imported afresh they take seconds.
    assert launch(arrived_loaded, 1)[0] < 0.1


def test_environment_directory_and_path_of_the_notebook_reach_the_ranks(tmp_path, monkeypatch):
    launch(rank_and_size, 1)  # the server is up, with the environment of this moment
    (tmp_path / "beside_the_notebook.py").write_text("answer = 42\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SET_LATER", "yes")

    def look():
        import beside_the_notebook

        return (
            os.getcwd(),
            os.environ["SET_LATER"],
            os.environ.get("ONLY_HERE"),
            beside_the_notebook.answer,
        )

    assert launch(look, 1, env={"ONLY_HERE": "too"})[0] == (str(tmp_path), "yes", "too", 42)
    assert "ONLY_HERE" not in os.environ


def test_nodes_lay_the_ranks_out_as_torchrun_would():
    def place():
        return [int(os.environ[n]) for n in ("GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]

    assert list(launch(place, 4, nodes=2)) == [[0, 0, 2], [0, 1, 2], [1, 0, 2], [1, 1, 2]]


def test_one_thread_a_rank_by_default_and_more_when_asked():
    assert launch(torch.get_num_threads, 2)[1] == 1
    assert launch(torch.get_num_threads, 1, threads=2)[0] == 2


def test_random_numbers_of_ranks_differ_and_repeat():
    def draw():
        return random.random()

    first = launch(draw, 2)
    assert first[0] != first[1]
    assert list(first) == list(launch(draw, 2))


def test_init_false_leaves_forming_the_group_to_the_function():
    def by_hand():
        assert not dist.is_initialized()
        dist.init_process_group("gloo")
        return sum_of_ranks()

    assert launch(by_hand, 3, init=False)[2] == 6.0


def test_the_same_from_another_thread():
    got = []
    thread = threading.Thread(target=lambda: got.append(launch(sum_of_ranks, 2)[0]))
    thread.start()
    thread.join(30)
    assert got == [3.0]


def test_two_launches_at_once():
    got = []
    threads = [
        threading.Thread(target=lambda: got.append(launch(sum_of_ranks, 2)[0])) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert got == [3.0, 3.0]


def test_after_a_multithreaded_backward_in_the_notebook():
    """Launchers that fork the notebook deadlock here: autograd's threads hold locks that no fork carries over."""
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
    model(torch.randn(256, 512)).sum().backward()

    def train():
        replica = nn.Linear(64, 64)
        replica(torch.randn(32, 64)).sum().backward()
        return replica.weight.grad is not None

    assert list(launch(train, 2)) == [True, True]


SCRIPT = """
    import torch, torch.distributed as dist
    from torch import nn
    from dtcourse import launch
    from dataclasses import dataclass

    @dataclass
    class Answer:
        rank: int

    class Net(nn.Linear):
        pass

    net = Net(2, 2)

    def step(scale):
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, Answer(dist.get_rank()))  # pickles a class of __main__ by name
        return Answer(scale * dist.get_rank()), everyone, net

    run = launch(step, 2, 10)
    assert [a.rank for a, _, _ in run] == [0, 10] and isinstance(run[1][0], Answer)
    assert [a.rank for a in run[0][1]] == [0, 1]
    assert type(run[0][2]) is Net and torch.equal(run[0][2].weight, net.weight)
    print("passed")
"""


def test_from_a_script_without_a_main_guard(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=240)
    assert done.stdout == "passed\n", done.stderr


def test_from_python_dash_c():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT).strip()],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stdout == "passed\n", done.stderr


# --- what travels -------------------------------------------------------------------------------------------------


@dataclass
class Point:
    x: float
    where: torch.Tensor


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool,
     torch.complex64],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (5, 7)])
def test_tensors_arrive_as_they_left(dtype, shape):
    from dtcourse.launch import serialization

    tensor = torch.ones(shape).to(dtype)
    stream, buffers = serialization.serialize({"a": tensor, "b": [tensor]})
    import pickle

    back = pickle.loads(stream, buffers=[bytearray(b) for b in buffers])
    assert back["a"].dtype == dtype and torch.equal(back["a"], tensor)
    assert back["a"] is back["b"][0], "shared stays shared"


def test_modules_and_parameters_keep_what_they_are():
    def build():
        torch.manual_seed(dist.get_rank())
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[1].weight = model[0].weight
        model[0].bias.requires_grad_(False)
        out = model(torch.ones(1, 4))
        return model, out

    model, out = launch(build, 2)[1]
    assert model[1].weight is model[0].weight and isinstance(model[0].weight, nn.Parameter)
    assert not model[0].bias.requires_grad and model[1].bias.requires_grad
    assert not out.requires_grad, "the graph stays in the rank"
    model(torch.ones(1, 4)).sum().backward()


def test_what_comes_back_can_be_written_to_and_outlives_the_launch():
    def big():
        return torch.arange(1_000_000)

    run = launch(big, 2)
    run[0].add_(1)
    assert run[0][0] == 1 and run[1][0] == 0
    results = list(run)
    del run
    assert results[0][-1] == 1_000_000


def test_two_hundred_megabytes_come_back_without_a_pipe(monkeypatch):
    """The pipe carries a header only; the tensor is in a memory file, which the notebook maps."""
    from dtcourse.launch import serialization

    sizes = []
    receive = serialization.receive

    def measured(connection):
        received = connection.recv_bytes

        class Spy:
            def __getattr__(self, name):
                return getattr(connection, name)

            def recv_bytes(self):
                data = received()
                sizes.append(len(data))
                return data

        return receive(Spy())

    monkeypatch.setattr(serialization, "receive", measured)
    run = launch(lambda: torch.full((50_000_000,), 7.0), 1)
    assert run[0].nbytes == 200_000_000 and run[0][-1] == 7.0
    assert sum(sizes) < 10_000


def test_large_arguments_are_written_once_for_all_ranks():
    data = torch.arange(3_000_000)
    run = launch(lambda x: (x.sum().item(), x[0].add_(dist.get_rank()).item()), 3, data)
    assert list(run) == [(data.sum().item(), r) for r in range(3)]
    assert data[0] == 0, "what a rank writes stays with the rank"


def test_a_dataclass_of_this_module_travels_both_ways():
    back = launch(lambda p: Point(p.x + dist.get_rank(), p.where), 2, Point(1.0, torch.ones(2)))
    assert back[1].x == 2.0 and torch.equal(back[1].where, torch.ones(2))


# --- printing, messages -------------------------------------------------------------------------------------------


def test_lines_arrive_rank_by_rank_in_rank_order(capfd):
    def talk():
        dist.barrier()
        for i in range(3):
            print("line", i)
            dist.barrier()
        os.system("echo from a subprocess")

    run = launch(talk, 2)
    expected = [
        f"rank {r} | {t}"
        for r in range(2)
        for t in ("line 0", "line 1", "line 2", "from a subprocess")
    ]
    assert capfd.readouterr().out.splitlines() == expected
    assert run.output[1] == ["line 0", "line 1", "line 2", "from a subprocess"]


def test_a_hundred_thousand_lines(capfd):
    def chatter():
        for i in range(100_000):
            print(i)

    run = launch(chatter, 1)
    shown = capfd.readouterr().out.splitlines()
    assert len(run.output[0]) == 100_000 and run.output[0][-1] == "99999"
    assert len(shown) == 1001 and "99,000 lines more: run.output[0]" in shown[500]


def test_streamed_lines_arrive_while_the_rank_still_runs(capfd, tmp_path):
    shown, seen = "", tmp_path / "seen"

    def talk():
        import time

        print("early")
        while not seen.exists():  # the rank does not end before its line has been shown
            send_message("still here")
            time.sleep(0.05)

    def look(rank, message):
        nonlocal shown
        shown += capfd.readouterr().out
        if shown:
            seen.touch()

    launch(talk, 1, stream=True, on_message=look)
    assert shown == "rank 0 | early\n"


def test_messages_arrive_in_order_with_their_rank():
    got = []

    def count():
        for i in range(3):
            send_message({"i": i, "t": torch.full((2,), i)})

    launch(count, 2, on_message=lambda rank, message: got.append((rank, message["i"])))
    assert [i for r, i in got if r == 0] == [0, 1, 2] and [i for r, i in got if r == 1] == [0, 1, 2]


def test_progress_yields_everything_on_every_rank(capfd):
    run = launch(lambda: list(progress(range(5), "step")), 2)
    assert list(run) == [[0, 1, 2, 3, 4]] * 2
    assert list(progress(range(3), "alone")) == [0, 1, 2], "and outside a launch"


def test_it_says_in_one_line_what_it_chose(capfd):
    run = launch(rank_and_size, 2, device="cpu", verbose=True)
    assert capfd.readouterr().out == "2 ranks on the CPU, backend gloo, 1 thread a rank\n"
    assert "backend gloo" in repr(run)
