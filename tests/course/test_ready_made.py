"""Ready-made code is seen where it runs, under whatever name it was reached."""

import _thread
import sys
import threading
import time
from functools import partial

import pytest
import torch
import torch.distributed.algorithms._checkpoint.checkpoint_wrapper as wrapper
import torch.utils.checkpoint

from dtcourse.course.judging import framework, ready_made
from dtcourse.course.judging.runs import InKernel
from dtcourse.launch import standby
from tests import kept_ranks

CHECKPOINT = "torch.utils.checkpoint"


def _called(names, function):
    with ready_made.Watch(names) as watch:
        function()
    assert watch.kept
    return list(watch.called)


def _checkpointed(run=None):
    x = torch.ones(2, requires_grad=True)
    (run or torch.utils.checkpoint.checkpoint)(torch.tanh, x, use_reentrant=False).sum().backward()


def test_a_function_of_a_module_is_seen_by_another_modules_name_for_it():
    called = _called([CHECKPOINT], lambda: _checkpointed(wrapper.torch_utils_checkpoint))
    assert called[0] == "torch.utils.checkpoint.checkpoint"


def test_and_in_a_thread_of_its_own():
    def in_a_thread():
        thread = threading.Thread(target=_checkpointed)
        thread.start()
        thread.join()

    assert _called([CHECKPOINT], in_a_thread)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("torch.nn.functional.dropout", lambda: torch.nn.Dropout()(torch.ones(2))),
        ("torch.nn.Dropout", lambda: torch.nn.Dropout()(torch.ones(2))),
        ("torch.nn.functional.gelu", lambda: torch.nn.functional.gelu(torch.ones(2))),
        ("dtcourse.plural", lambda: framework.plural(2, "rank")),
        ("dtcourse", lambda: framework.plural(2, "rank")),
    ],
    ids=["a function", "a class", "a builtin", "a module", "a package"],
)
def test_each_kind_of_name_is_seen(name, function):
    assert any(one == name or one.startswith(name + ".") for one in _called([name], function))


def test_what_is_not_watched_is_not_named():
    assert not _called([CHECKPOINT, "torch.nn.functional.gelu"], lambda: torch.ones(2).tanh())
    assert sys.getprofile() is None


def test_an_import_is_no_call(tmp_path, monkeypatch):
    (tmp_path / "ready_there.py").write_text(
        "def make():\n    return 1\n\n\nclass Thing:\n    one = make()\n\n\nONE = make()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def imports():
        import ready_there

        return ready_there.ONE

    assert not _called(["ready_there"], imports)

    def calls():
        return sys.modules["ready_there"].make()

    assert _called(["ready_there"], calls) == ["ready_there.make"]


def test_a_watch_that_is_taken_off_is_noticed():
    with ready_made.Watch([CHECKPOINT]) as watch:
        sys.setprofile(None)
    assert not watch.kept


def _put_back():
    hook = sys.getprofile()
    sys.setprofile(None)
    _checkpointed()
    sys.setprofile(hook)


def _in_a_thread_without():
    hook = threading.getprofile()
    threading.setprofile(None)
    thread = threading.Thread(target=_checkpointed)
    thread.start()
    thread.join()
    threading.setprofile(hook)


def _in_a_thread_of_nobodys(name):
    done = threading.Event()
    nothing = () if "joinable" in name else ((),)
    getattr(_thread, name)(lambda: (_checkpointed(), done.set()), *nothing)
    assert done.wait(60)


# Python 3.13 has one more.
STARTING = [partial(_in_a_thread_of_nobodys, n) for n in dir(_thread) if n.startswith("start_")]


@pytest.mark.parametrize("function", [_put_back, *STARTING, _in_a_thread_without])
def test_a_way_round_the_watch_is_noticed(function):
    with ready_made.Watch([CHECKPOINT]) as watch:
        function()
    assert not watch.called and not watch.kept


def test_a_hook_that_no_code_of_python_s_has_set_is_noticed():
    """Nobody called: there are too few frames to ask who did."""
    watch = ready_made.Watch([CHECKPOINT])
    _thread.start_new_thread(watch.hear, ("sys.setprofile",))
    for _ in range(1000):
        if not watch.kept:
            break
        time.sleep(0.01)
    assert not watch.kept


def test_a_name_of_nothing_is_said():
    with pytest.raises(ValueError, match="at_all: no module"):
        ready_made.Watch(["no_such_thing.at_all"])


def test_what_is_watched_is_forbidden():
    with pytest.raises(ValueError, match=r"torch\.amp is watched and not forbidden"):
        framework.Exercise("x", "00", "x", ("f",), "1", watched=("torch.amp",))


def _tanh(tanh):
    return tanh(torch.ones(2, requires_grad=True)).detach()


@pytest.mark.parametrize("ranks", [0, 2], ids=["called alone", "on two ranks"])
def test_an_answer_that_calls_it_is_refused_on_its_ranks(ranks):
    """And one that takes the watch off; and what is honest has its points."""
    kept_ranks.come_from_template(60)
    exercise = framework.Exercise(
        "tanh", "00", "x", ("tanh",), "1", forbidden=(CHECKPOINT,), watched=(CHECKPOINT,)
    )

    @exercise.check("it is the hyperbolic tangent")
    def check_tanh(answer):
        got = answer.run(_tanh, ranks)[0] if ranks else answer.call(_tanh)
        framework.require(torch.equal(got, torch.ones(2).tanh()), "it is not")

    def hidden(x):
        import torch.distributed.algorithms._checkpoint.checkpoint_wrapper as theirs

        return theirs.torch_utils_checkpoint(torch.tanh, x, use_reentrant=False)

    def unwatched(x):
        sys.setprofile(None)
        return hidden(x)

    def report(answer):
        return framework.judge(exercise, InKernel({"tanh": answer}))

    with standby.keeping():
        assert report(torch.nn.Tanh()).points == 1
        refused = report(hidden).refused
        assert refused.startswith("the answer calls torch.utils.checkpoint.checkpoint, by whatever")
        assert "changes what measures it (sys.setprofile)" in report(unwatched).refused
        assert report(torch.nn.Tanh()).points == 1, "the ranks are as they were"
