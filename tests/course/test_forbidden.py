"""Answers that name what does the whole exercise, by any of its names."""

import pytest

from dtcourse.course.judging import forbidden, framework
from dtcourse.course.judging.taking import take
from tests.course.samples import DOUBLE, notebook

FORBIDDEN = ("torch.utils.checkpoint", "torch.nn.functional.dropout")


def found(*cells, name="f"):
    return forbidden.found(take(notebook(*cells), (name,)), FORBIDDEN)


@pytest.mark.parametrize(
    "cells",
    [
        ["import torch", "def f(x): return torch.utils.checkpoint.checkpoint(f, x)"],
        ["from torch.utils.checkpoint import checkpoint", "def f(x): return checkpoint(f, x)"],
        ["from torch.utils.checkpoint import checkpoint as g", "def f(x): return g(f, x)"],
        ["from torch.utils import checkpoint as g", "def f(x): return g.checkpoint(f, x)"],
        ["import torch.utils.checkpoint as g", "def f(x): return g.checkpoint(f, x)"],
        [
            "def f(x):\n    from torch.utils import checkpoint\n    return checkpoint.checkpoint(f, x)"
        ],
        ["from torch.utils.checkpoint import *", "def f(x): return checkpoint(f, x)"],
        ["import torch\nh = torch.nn.functional", "def f(x): return h.dropout(x)"],
        ["from torch import nn", "def f(x): return getattr(nn.functional, 'dropout')(x)"],
        [
            "import torch.nn.functional as F",
            "def g(x): return F.dropout(x)",
            "def f(x): return g(x)",
        ],
    ],
)
def test_every_name_of_it_is_refused(cells):
    assert "this exercise asks you to write" in found(*cells)


@pytest.mark.parametrize(
    "cells",
    [
        ["import torch\nimport torch.utils.checkpoint", "def f(x): return torch.tanh(x)"],
        ["from torch.utils.checkpoint import checkpoint", "def f(x): return x"],
        ["import torch.nn.functional as F", "def f(x): return F.relu(x)"],
        ["import torch", "def f(x):\n    checkpoint = x\n    return checkpoint.dropout"],
        ["import torch", "def g(x): return torch.nn.functional.dropout(x)", "def f(x): return x"],
    ],
)
def test_what_only_stands_beside_it_is_not(cells):
    assert not found(*cells)


@pytest.mark.parametrize(
    ("head", "call", "words"),
    [
        ("from dtcourse.launch import reporting", "reporting._channel('result', x)", "_channel"),
        ("from dtcourse.launch import reporting as r", "r.connect(x)", "reporting.connect"),
        ("from dtcourse.launch.reporting import connect", "connect(x)", "part of what measures"),
        ("import dtcourse.launch.rank", "dtcourse.launch.rank.main(x)", "dtcourse.launch.rank"),
        ("from dtcourse.collectives import traffic", "traffic.sent(x, 0, 8)", "counting, phase"),
        ("from dtcourse.collectives.traffic import sent as s", "s(x, 0, 8)", "traffic.sent"),
        ("from dtcourse.collectives import p2p", "p2p.traffic.sent(x, 0, 8)", "p2p.traffic.sent"),
        ("from dtcourse.collectives import p2p", "p2p.operation('send')", "p2p.operation"),
        (
            "from dtcourse.collectives import wire",
            "wire.arrivals.Arrival(x)",
            "wire.arrivals.Arrival",
        ),
        ("from dtcourse import events", "(lambda y=events.add: y)", "events.add"),
        ("from dtcourse.collectives import p2p", "p2p._channels", "the course's own"),
        ("from dtcourse.collectives import p2p", "p2p.__dict__['send']", "the course's own"),
        ("from dtcourse import events", "events.add('send', 'wait', 0, 0)", "events.add"),
        ("from dtcourse import emulation", "emulation.clock.installed()", "clock.installed"),
        ("from dtcourse import emulation\nc = emulation.clock", "c.installed()", "clock.installed"),
        ("from dtcourse.emulation.clock import on", "on(x, 0.0)", "emulation.clock.on"),
        ("from dtcourse.emulation.cluster import EmulatedCluster as E", "E()", "EmulatedCluster"),
        ("from dtcourse.collectives.wire.channel import Channel", "Channel(x)", "wire.channel"),
    ],
)
def test_names_of_the_course_that_no_answer_has_use_for_are_refused(head, call, words):
    assert words in found(head, f"def f(x):\n    return {call}")
    assert not found(head, "def f(x):\n    return x")


def test_a_star_that_brings_them_is_one_of_them():
    assert "traffic.*" in found("from dtcourse.collectives.traffic import *\ndef f(x): return x")
    for module in ("launch", "emulation"):
        assert not found(f"from dtcourse.{module} import *\ndef f(x): return launch(x)")


@pytest.mark.parametrize(
    "code",
    [
        "from dtcourse import launch\ndef f(x): return launch(x, 2)",
        "from dtcourse.launch import send_message, launch\ndef f(x): return launch(send_message, 2, x)",
        "from dtcourse.collectives import p2p\ndef f(x): return p2p.exchange(x, 1, x, 1)",
        "from dtcourse.collectives import p2p\ndef f(x): return p2p.rank(x), p2p.size(), p2p.wait_any([])",
        "from dtcourse.collectives.p2p import size, wait_any\ndef f(x): return size(), wait_any([x])",
        "from dtcourse.collectives.wire.arrivals import wait_any\ndef f(x): return wait_any([x])",
        "from dtcourse import events\ndef f(events):\n    events.sort()\n    return events.append(1)",
        "from dtcourse import events\ndef f(x): return sorted(x, key=lambda events: events.count(1))",
        "from dtcourse import events\ndef f(x): return events.instant('a')",
        "from dtcourse.models import MLP\nclass f(MLP):\n    def __init__(self): MLP.__init__(self, [1])",
        "from dtcourse.collectives import traffic\ndef f(x):\n    with traffic.counting() as c: return c.rows",
        "from dtcourse.collectives import traffic\ndef f(x):\n    with traffic.phase('a'): return x.traffic.sent",
        "from dtcourse import events, emulation\ndef f(x):\n    with events.span('a'): emulation.sleep(1)",
        "from dtcourse import emulation\ndef f(x): return emulation.now(), emulation.clock.now()",
        "from dtcourse.emulation import EmulatedNetwork\ndef f(x): return EmulatedNetwork(1.0).latency",
        "from dtcourse.pipeline_parallel.simulate import simulate\ndef f(x): return simulate(x).timeline",
        "import dtcourse\ndef f(x): return dtcourse.__file__, dtcourse.__version__",
    ],
)
def test_what_an_exercise_may_use_of_them_is_not(code):
    assert not found(code)


def test_what_is_refused_is_said_in_one_sentence():
    assert forbidden.in_words(()) == ""
    assert forbidden.in_words(("torch.amp",)) == "An answer that uses `torch.amp` is refused."
    said = forbidden.in_words((*forbidden.ALGORITHMS, "torch.amp", "dtcourse.memory"))
    assert said == (
        "An answer that uses the algorithms of `dtcourse.collectives` (its `p2p` is allowed), "
        "`torch.amp` or `dtcourse.memory` is refused."
    )
    assert "`dtcourse.collectives.ring`" in forbidden.in_words(("dtcourse.collectives.ring",))


class Shell:
    def __init__(self, *cells):
        self.user_ns = {"In": ["", *cells]}


def test_in_a_notebook_the_latest_answer_counts(monkeypatch, capsys):
    exercise = framework.Exercise(
        "double", "00", "x", ("double",), "2 times", forbidden=("torch.add",), checks=DOUBLE.checks
    )
    monkeypatch.setattr(framework, "exercises", lambda lesson=None: {"double": exercise})
    wrong = "import torch\ndef double(n): return torch.add(n, n)"
    right = "%time\ndef double(n): return 2 * n"
    monkeypatch.setattr(forbidden, "_shell", lambda: Shell(wrong))
    with pytest.raises(framework.NotPassed, match="Refused"):
        framework.check("double", lambda n: 2 * n)
    assert "refused: the answer uses torch.add" in capsys.readouterr().out
    monkeypatch.setattr(forbidden, "_shell", lambda: Shell(wrong, "import torch\n" + right[6:]))
    assert not forbidden.in_this_notebook(exercise)
    monkeypatch.setattr(forbidden, "_shell", lambda: Shell(right))
    assert not forbidden.in_this_notebook(exercise)


def test_points_that_need_another_check_are_withheld_and_said_so():
    exercise = framework.Exercise("x", lesson="00", title="x", takes=("f",), target="1")

    @exercise.check("sends little", points=3, needs=("check_right",))
    def check_little(answer):
        pass

    @exercise.check("is right", points=2)
    def check_right(answer):
        framework.require(answer, "it is not")

    told = []
    lost = framework.judge(exercise, False, on_verdict=told.append)
    said = "  ○ sends little\n      0 of 3 points as long as this does not hold: is right."
    assert lost.points == 0 and said in str(lost)
    assert said in "\n".join(map(str, told)), "not ticked before it is known what it counts"
    assert str(lost).endswith("0 of 2 checks, 0 of 5 points.")
    assert framework.judge(exercise, True).points == 5


def test_what_stands_under_the_techniques_is_as_ready_made_as_they_are():
    """Averaging, the Reducer and the global norm are in dtcourse.parameters,
    by which an answer could get at them too."""
    averaging = [
        e for e in framework.exercises().values() if "dtcourse.data_parallel" in e.forbidden
    ]
    assert len(averaging) >= 5
    clipping = [e for e in framework.exercises().values() if e.name == "clip_gradients"]
    for exercise in averaging + clipping:
        assert "dtcourse.parameters" in exercise.forbidden, exercise.name
