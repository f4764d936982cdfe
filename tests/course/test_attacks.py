"""Answers that do nothing and want points: what tells the judge of all ranks belongs to none of them."""

import textwrap

import pytest

from dtcourse.course.grading import check_notebook
from dtcourse.course.judging import bubblewrap
from tests.course.samples import DOUBLE, notebook

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.needs("bubblewrap"),
]
# For what reads the text, `thing` may be anything.
REACH = "reach = lambda thing, *names: getattr(thing, ''.join(names))\n"


def told(code: str) -> str:
    """What the judge says to an answer that earns nothing."""
    assert not bubblewrap.why_not()
    (found,) = check_notebook(notebook(textwrap.dedent(code)), [DOUBLE])
    assert not found.passed and not found.points
    return str(found)


FAKE = """
import dtcourse.launch, types
reply = dict(values=[42], seconds=1.0, traffic_rows=[], traffic_calls=[], algorithmic=False, event_rows=[])
_fake = lambda request, written: types.SimpleNamespace(**reply)
"""


def test_by_another_attempt_found_by_names_that_are_put_together():
    said = told(
        FAKE
        + """
_s = getattr(getattr(getattr(dtcourse, "cou" + "rse"), "jud" + "ging"), "ser" + "ving")
_x = setattr(_s, "_att" + "empt", _fake)
def double(n, x=_x): return n
"""
    )
    assert "write that name out" in said


def test_by_another_attempt_found_where_the_text_does_not_show_it():
    """It is changed in the rank, where nobody asks it; and in the process that is asked, no such code ever runs."""
    said = told(
        FAKE
        + REACH
        + """
_s = reach(reach(reach(dtcourse, "cou", "rse"), "judging"), "serving")
_x = setattr(_s, "_att" + "empt", _fake)
def double(n, x=_x): return n
"""
    )
    assert "the answer changes what measures it (dtcourse.course.judging.serving._attempt)" in said


def test_by_a_module_that_is_changed_as_soon_as_it_is_loaded():
    """Before anything is measured, so that what measures would take it for ours."""
    said = told("""
        import dtcourse.memory.offload as theirs
        def change(thing): setattr(thing, "Offload", lambda *a: 0)
        changed = change(theirs)
        def double(n, changed=changed): return 2 * n
    """)
    assert "changes what measures it (dtcourse.memory.offload.Offload)" in said


def test_by_the_memory_of_the_process_that_speaks_with_the_judge():
    said = told("""
        import os
        def double(n):
            above, seen = [os.getpid()], []
            while above[-1] > 1:  # the first is bubblewrap's
                state = open(f"/proc/{above[-1]}/stat").read().rpartition(")")[2]
                above.append(int(state.split()[1]))
            for pid in above[:-1]:
                try:
                    files = os.listdir(f"/proc/{pid}/fd")
                    open(f"/proc/{pid}/mem", "r+b").close()
                    seen.append(pid)
                except OSError as error:
                    pass
            raise ValueError(f"all but {above.index(1) - len(seen)}, and not the last: {above[-2] not in seen}")
    """)
    assert "all but 1, and not the last: True" in said


def test_by_a_pickle_that_calls_something_where_it_is_read():
    """On every line of its process: of the rank's own it comes where an answer's result is expected."""
    said = told("""
        import os, pickle, struct
        def double(n):
            bomb = b"\\x80\\x04cos\\n_exit\\nK\\x00\\x85R."
            whole = pickle.dumps((bomb, [], None))
            for descriptor in range(3, 64):
                try: os.write(descriptor, struct.pack("!i", len(whole)) + whole)
                except OSError: pass
            return 2 * n
    """)
    assert "cannot be rebuilt" in said


def test_by_a_class_that_is_looked_up_where_it_is_pickled_again():
    """A record's class, with the module's name that the rank gives it: who looks it up there would import that."""
    said = told("""
        import os, pickle, struct
        LINES = "import os; os._exit(0)"
        def double(n):
            with open("/tmp/evil.py", "w") as file:
                file.write(LINES)
            record = b"cdtcourse.collectives.counted\\nRankRecord\\nN}X\\n\\0\\0\\0__module__X\\4\\0\\0\\0evils\\x86b"
            value = {"value": "@@", "changed": [], "called": []}
            body = pickle.dumps(("result", {"value": value, "seconds": 1.0}), 2)
            whole = pickle.dumps((body.replace(b"X\\2\\0\\0\\0@@", record), [], None))
            for descriptor in range(3, 64):
                try: os.write(descriptor, struct.pack("!i", len(whole)) + whole)
                except OSError: pass
            return 2 * n
    """)
    assert "A type came back" in said


def test_by_a_tensor_that_is_larger_than_what_it_holds():
    """One number, shown a thousand million times: the judge's memory is nobody's to fill."""
    said = told("""
        import torch
        from dtcourse.launch import reporting
        def double(n):
            value = {"value": torch.zeros(1).expand(4 * 10**9), "changed": [], "called": []}
            reporting._channel("result", {"value": value, "seconds": 1.0})
    """)
    assert "allocate memory" in said or "memory, and was stopped" in said
