"""What is taken from a student's notebook, and what is refused."""

import pytest

from dtcourse.course.judging.defining import define
from dtcourse.course.judging.framework import CheckFailed, Refused, Unfinished
from dtcourse.course.judging.taking import take
from tests.course.samples import notebook


def answer(*cells, name="f"):
    return define(take(notebook(*cells), (name,)), (name,))[name]


def test_only_what_the_answer_needs_is_taken():
    f = answer(
        "while True:\n    pass",
        "1 / 0",
        "%matplotlib inline\nK = 3",
        "def g(x): return K * x",
        "def f(x): return g(x)",
    )
    assert f(2) == 6


def test_cells_in_any_order():
    cells = ["class B(A): pass", "def f(): return B().value", "class A:\n    value = 5"]
    assert answer(*cells)() == 5


@pytest.mark.parametrize(
    "cells",
    [
        ("T = []\nfor k in range(3):\n    T.append(k)\n    g(k)", "def g(k): return k"),
        (
            "T = []\nfor k in range(3):\n    T.append(k)\n    g(k)",
            "def g(k): return h(k)",
            "def h(k): pass",
        ),
        ("T = []\nfor k in range(3):\n    T.append(k)\n    g(k)", "N = T[2]", "def g(k): return k"),
        ("T = []\nT.append(g(0))\nT += [1, 2]", "x = 7", "def g(x, y=0): return x"),
    ],
)
def test_what_needs_a_later_cell_is_done_once(cells):
    assert answer(*cells, "def f(x=0): return T, x")()[0] == [0, 1, 2]


def test_the_last_definition_counts_as_in_a_kernel():
    assert answer("def f(): return 1", "def f(): return 2")() == 2


def test_constants_that_are_changed_later_come_along():
    assert answer("D = {}\nD['a'] = 4; E = 1", "def f(): return D['a'] + E")() == 5


def test_decorators_future_imports_and_star_imports():
    f = answer(
        "from __future__ import annotations\nfrom math import *",
        "import functools",
        "@functools.cache\ndef f(x: Nowhere = 0): return floor(2.5)",
    )
    assert f() == 2


def test_a_deleted_or_unreadable_cell_is_a_sentence():
    with pytest.raises(Unfinished, match="`f` is not in the notebook"):
        take(notebook("x = 1"), ("f",))
    with pytest.raises(
        Unfinished, match=r"`f` was not found, and Python cannot read cell 1 \(line 1"
    ):
        take(notebook("def f(:"), ("f",))
    with pytest.raises(Unfinished, match="no function"):
        answer("f = 3")


def test_an_answer_that_cannot_be_defined_names_its_cell():
    with pytest.raises(CheckFailed, match="Cell 2 of the notebook, line 1: ZeroDivisionError"):
        answer("def f(): return K", "K = 1 / 0")


@pytest.mark.parametrize(
    "code",
    [
        "import dtcourse.course.checks",
        "import dtcourse.course.judging",
        "from dtcourse.course.judging import framework",
        "from dtcourse import course",
        "import dtcourse\n    dtcourse.course.judging.framework.require = print",
        "import gc",
        "import sys\n    sys.modules['x'] = 1",
        "import sys\n    sys._getframe(1).f_locals",
        "exec('1')",
        "__builtins__['open'] = 1",
        "from dtcourse.collectives import traffic as t\n    t.count = print",
        "from dtcourse.collectives import p2p\n    del p2p.send",
        "from dtcourse.collectives import p2p\n    setattr(p2p, 'send', print)",
        "import os\n    os.kill(os.getppid(), 9)",
        "open('dtcourse/course/checks/lesson_02_processes_and_ranks/meet.py', 'w')",
        "open('dtcourse/course/judging/runs.py', 'w')",
        "__import__('os')",
    ],
)
def test_what_an_honest_answer_never_does_is_refused(code):
    with pytest.raises(Refused):
        take(notebook(f"def f():\n    {code}"), ("f",))


@pytest.mark.parametrize(
    "code",
    [
        "from dtcourse.course import check, show",
        "import os\n    os.environ.get('RANK')",
        "model = x\n    model.weight = 3",
        "import torch.distributed as dist\n    dist.all_reduce(x)",
        "import os, signal\n    os.kill(os.getpid(), 9)",
    ],
)
def test_honest_code_is_not_refused(code):
    assert take(notebook(f"def f(x=None):\n    {code}"), ("f",))


STUB = "    # YOUR CODE HERE\n    raise NotImplementedError()"


@pytest.mark.parametrize(
    "code",
    [
        f"def f():\n{STUB}",
        f'def f():\n    """What it does."""\n{STUB}',
        f"def f(): return 1\n\n\ndef f():\n{STUB}",
        'class f:\n    """Does."""\n\n    def __init__(self):\n        raise NotImplementedError\n\n'
        "    def get(self):\n        raise NotImplementedError()",
    ],
)
def test_what_stands_as_it_was_given_out_is_seen_without_running_it(code):
    with pytest.raises(Unfinished, match="`f` is not written yet: replace"):
        take(notebook(code), ("f",))


@pytest.mark.parametrize(
    "code",
    [
        "def f():\n    return 1\n    raise NotImplementedError()",
        f"def f():\n{STUB}\n\n\ndef f(): return 1",
        f"def f():\n{STUB}\n\n\nf = min",
        "class f:\n    def get(self): return 1\n\n    def put(self):\n        raise NotImplementedError()",
    ],
)
def test_what_was_begun_is_run(code):
    assert take(notebook(code), ("f",))


def test_one_function_of_two_is_enough_to_run():
    code = f"def f(): return 1\n\n\ndef g():\n{STUB}"
    assert take(notebook(code), ("f", "g"))
    with pytest.raises(Unfinished, match="`f`, `g` is not written yet"):
        take(notebook(code, f"def f():\n{STUB}"), ("f", "g"))


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("def f(a, b):\n    return (\n        a\n        % b\n    )", 3),
        ("def f(a, b):\n    return 7 * a \\\n        % b", 1),
        ('T = """\n% of\n!x\n?y\n"""\ndef f(a, b): return T', "\n% of\n!x\n?y\n"),
        ('T = """\n% of\n"""\n%time 1\ndef f(a, b): return T', "\n% of\n"),
        ("print?\nfiles = !ls\nx = %timeit -o 1\n?print\ndef f(a, b): return a", 3),
        ("%%time\n%load_ext autoreload\n!ls\ndef f(a, b):\n    %time x = 1\n    return b", 5),
        ("\n\n  %%capture out\n\ndef f(a, b):\n    !ls \\\n       -l\n    return b", 5),
    ],
)
def test_a_line_that_begins_a_magic_is_none_elsewhere(code, found):
    assert answer(code)(3, 5) == found


def test_lines_keep_their_numbers_where_magics_are_left_out():
    pieces = take(notebook("x = 1", "\n%%time\n\n%ls\n!ls\ndef f(): return 1"), ("f",))
    assert [(piece.cell, piece.line) for piece in pieces] == [(2, 6)]


@pytest.mark.parametrize(
    "cells",
    [
        ("T = []\nfor k in range(4):\n    T.append(k * k)", "def f(): return T[3]"),
        ("T = {}", "T.update(a=9)", "def f(): return T['a']"),
        ("T = {'a': 9, 'b': 8}", "del T['b']", "def f(): return sum(T.values())"),
        ("launched = print(N := 9)", "def f(): return N"),
        ("1 / 0 if (N := 9) < 0 else None", "def f(): return N"),
        ("if (N := 9) > 3:\n    M = 0", "def f(): return M + N"),
        ("any((N := k) == 9 for k in range(20))", "def f(): return N"),
        ("class C: pass", "setattr(C, 'k', 9)", "def f(): return C.k"),
        (
            "R = {}\ndef register(g):\n    R[g.__name__] = g\n    return g",
            "@register\ndef ring(): return 9",
            "def f(): return R['ring']()",
        ),
        (
            "R = []\ndef named(name):\n    def add(g):\n        R.append(g)\n        return g\n    return add",
            "@named('ring')\ndef ring(): return 9",
            "def f(): return R[0]()",
        ),
        (
            "class Table(dict):\n    def register(self, g):\n        self[g.__name__] = g\n        return g",
            "R = Table()",
            "@R.register\ndef ring(): return 9",
            "def f(): return R['ring']()",
        ),
    ],
)
def test_what_fills_a_name_that_the_answer_uses_comes_along(cells):
    assert answer(*cells)() == 9


def test_what_is_tried_in_other_cells_is_not_run():
    f = answer(
        "import sys\nT, tried = {}, []",
        "def f():\n    T['calls'] = T.get('calls', 0) + 1\n    return T['calls']",
        "f()",
        "while True:\n    tried.append(f())",
        "sys.path.append(1 / 0)",
        "print(last := f())",
        "print(f, T, sys)",
        "del f",
    )
    assert f() == 1


def test_a_decorators_own_names_are_no_ones_else():
    cells = [
        "def timed(f):\n    def f(*a): return 1\n    return f",
        "@timed\ndef scratch(): pass\n1 / 0",
        "def g(): return f",
    ]
    with pytest.raises(Unfinished, match="`f` is not in the notebook"):
        take(notebook(*cells), ("f",))


def test_a_name_that_no_taken_statement_makes_says_what_is_taken():
    with pytest.raises(CheckFailed, match=r"NameError: .* runs no other statement"):
        answer("def make():\n    global K\n    K = 3", "make()", "J = K + 1", "def f(): return J")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ('getattr(dtcourse, "cou" + "rse")', "write that name out"),
        ("getattr(getattr(dist, tensor), name)", "write that name out"),
        ('getattr(dtcourse, "course").judging', "reaches for the checks"),
        ('getattr(sys, "modules")', "leads into what measures it"),
        ('setattr(dtcourse.launch, "launch", print)', "changes a module"),
        ('setattr(getattr(dtcourse, "launch"), "launch", print)', "changes a module"),
    ],
)
def test_a_module_is_not_reached_into(code, words):
    cells = "import dtcourse, sys, torch.distributed as dist", f"def f(tensor, name):\n    {code}"
    with pytest.raises(Refused, match=words):
        take(notebook(*cells), ("f",))


@pytest.mark.parametrize(
    "code",
    [
        "where = dtcourse.launch\n    where.launch = print",
        "where = getattr(dtcourse, 'launch')\n    inner = where.member\n    inner.x = 1",
    ],
)
def test_a_module_by_another_name_is_not_changed(code):
    with pytest.raises(Refused, match="changes a module"):
        take(notebook("import dtcourse", f"def f():\n    {code}"), ("f",))


@pytest.mark.parametrize(
    "code",
    [
        "getattr(self, name)",
        "[getattr(layer, name) for layer in self.layers]",
        'getattr(torch, "float32")',
        'getattr(torch, f"float{name}")',
        'getattr(torch, "int" + name)',
        "getattr(torch.distributed.ReduceOp, name)",
        "torch = self\n    torch.x = 1",
        "make = torch.optim.SGD\n    make = make(self)\n    make.x = 1",
        "setattr(self, name, torch.zeros(1))",
    ],
)
def test_an_object_of_ones_own_is_anybodys(code):
    assert take(notebook("import torch", f"def f(self, name, torch=None):\n    {code}"), ("f",))


CHANGE = 'setattr(dtcourse.launch, "launch", print)'


@pytest.mark.parametrize(
    "code",
    [
        f"g = lambda dtcourse: 1\n    {CHANGE}",
        f"def g(dtcourse):\n        pass\n    {CHANGE}",
        f"g = lambda dtcourse={CHANGE}: 1",
        f"def g(a=lambda dtcourse: 1):\n        {CHANGE}",
        f"@{CHANGE}\n    def g(dtcourse):\n        pass",
        f"def g(dtcourse):\n        import dtcourse\n        {CHANGE}",
        f"def g(dtcourse):\n        def h():\n            global dtcourse\n            {CHANGE}",
        "def g(where=None):\n        where = dtcourse.launch\n        where.launch = print",
        "g = lambda dtcourse: 1\n    dtcourse.launch.launch = print",
    ],
)
def test_an_argument_s_name_is_a_module_s_outside_its_function(code):
    with pytest.raises(Refused, match="changes a module"):
        take(notebook("import dtcourse", f"def f():\n    {code}"), ("f",))


@pytest.mark.parametrize(
    "code",
    [
        "return lambda torch: setattr(torch, 'x', 1)",
        "def g(*torch):\n        torch[0].x = 1",
        "async def g(torch):\n        def h():\n            torch.x = 1",
    ],
)
def test_an_argument_is_no_module_in_its_function(code):
    assert take(notebook("import torch", f"def f():\n    {code}"), ("f",))


@pytest.mark.parametrize(
    "code",
    [
        "from sys import _getframe",
        "from sys import modules",
        "from builtins import exec",
        "import sys as s; s.modules",
        'from operator import attrgetter; attrgetter("f_back.f_locals")',
        "import logging; logging.currentframe()",
    ],
)
def test_the_ways_to_frames_are_closed_under_their_other_names(code):
    with pytest.raises(Refused, match=r"leads into what measures it|no need of"):
        take(notebook("import torch", f"def f(tensor):\n    {code}"), ("f",))


@pytest.mark.parametrize(
    "code", ["model.modules()", 'options["modules"]', "skill(1)", "nn.Module.modules"]
)
def test_what_only_looks_like_them_is_anybodys(code):
    take(notebook("import torch", f"def f(model, options, skill, nn):\n    return {code}"), ("f",))
