import functools
import re

import pytest

from dtcourse.collectives import p2p
from dtcourse.course.errors import DidNotFail, expect_error
from dtcourse.course.reproducible import scrub
from dtcourse.course.source import show, source_of


def test_a_function_shows_its_real_source_under_its_file_and_no_machine_path():
    shown = source_of(p2p.send)
    assert shown.title == "dtcourse/collectives/p2p.py · send"
    assert shown.code.startswith("def send(") and "isend(" in shown.code
    markdown = shown._repr_markdown_()
    assert "```python\ndef send(" in markdown
    assert "/work/" not in markdown and not re.search(r"\.py:\d+", markdown)


def test_classes_methods_modules_partials_and_instances():
    class_ = source_of(expect_error)
    assert class_.title == "dtcourse/course/errors.py · expect_error" and class_.code.startswith(
        "class"
    )
    assert source_of(expect_error.__exit__).title.endswith("expect_error.__exit__")
    assert source_of(p2p).title == "dtcourse/collectives/p2p.py"
    assert source_of(functools.partial(p2p.send, dst=1)).title.endswith("· send")
    assert source_of(expect_error(ValueError)).title == class_.title


def test_torchs_source_is_named_by_its_package():
    import torch.nn

    assert source_of(torch.nn.Linear).title == "torch/nn/modules/linear.py · Linear"


def test_the_docstring_can_be_left_out_and_nothing_else_is():
    whole, less = source_of(p2p.send).code, source_of(p2p.send, docstring=False).code
    assert '"""' in whole and '"""' not in less
    assert set(less.splitlines()) < set(whole.splitlines())


def test_what_has_no_source_is_a_sentence():
    with pytest.raises(ValueError, match=r"show\(len\).*no Python source"):
        show(len)
    with pytest.raises(ValueError, match="something to show"):
        show()


def test_a_private_name_is_no_lesson():
    from dtcourse.course import source

    for private in (source._place, source.Source._repr_markdown_):
        with pytest.raises(
            ValueError, match=r"a lesson shows public names; give dtcourse/course/source\.py one"
        ):
            show(private)
    assert source_of(source.Source.__repr__).title.endswith("Source.__repr__")


def test_outside_a_notebook_it_prints(capsys):
    show(p2p.send)
    assert capsys.readouterr().out.startswith("# dtcourse/collectives/p2p.py · send\ndef send(")


def test_an_expected_error_is_printed_the_same_on_every_machine(capsys):
    with expect_error(ValueError, match="got 3") as caught:
        raise ValueError("object at 0x7f12ab34cd56 got 3 from /home/ana/x.py\nand more")
    assert capsys.readouterr().out == "ValueError: object at 0x… got 3 from ~/x.py [...]\n"
    assert isinstance(caught.error, ValueError)


def test_a_block_that_does_not_fail_fails():
    with pytest.raises(DidNotFail, match="was to fail with ValueError, and it did not"):
        with expect_error(ValueError):
            pass


def test_another_message_fails_and_another_type_passes_through():
    with pytest.raises(DidNotFail, match="has no 'blue'"):
        with expect_error(ValueError, match="blue"):
            raise ValueError("red")
    with pytest.raises(KeyError) as caught:
        with expect_error(ValueError):
            raise KeyError("k")
    assert "was to fail with ValueError" in caught.value.__notes__[0]


def test_a_wrong_use_of_expect_error_is_told():
    with pytest.raises(TypeError, match="type of an exception"):
        expect_error("ValueError")
    with pytest.raises(ValueError, match="at least one line"):
        expect_error(ValueError, lines=0)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("<f at 0x7f0123456789>", "<f at 0x…>"),
        ('File "/tmp/ipykernel_12/345.py", line 1', 'File "this notebook", line 1'),
        ("/opt/v/lib/python3.11/site-packages/torch/a.py", "torch/a.py"),
        ("/srv/x/dtcourse/launch/rank.py", "dtcourse/launch/rank.py"),
        ("tcp://127.0.0.1:43211 pid 991", "tcp://127.0.0.1:… pid …"),
        (
            "dtcourse/launch/rank.py 0.25 s, 1024 bytes, a/b",
            "dtcourse/launch/rank.py 0.25 s, 1024 bytes, a/b",
        ),
    ],
)
def test_what_differs_between_machines_is_replaced_and_nothing_else(text, clean):
    assert scrub(text) == clean
    assert scrub(clean) == clean
