"""exercises/ out of solutions/."""

import subprocess
import sys

import pytest

from dtcourse.course import authoring, exercises
from dtcourse.course import notebook as nbfile

TEXT = """\
# %% [markdown] id=title
# # 02 · Exercises

# %% id=answer solution=answer
def answer(x):
    '''Twice x.'''
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION

# %% id=check-answer check=check_answer points=3
check("answer", answer)
### BEGIN HIDDEN TESTS
assert answer(3) == 6
### END HIDDEN TESTS
"""


@pytest.fixture
def solution(tmp_path):
    path = tmp_path / "solutions" / "02-a.ipynb"
    notebook = authoring.build(TEXT)
    notebook["cells"][1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "6\n"}]
    nbfile.write(notebook, path)
    return path


def test_solutions_hidden_tests_and_outputs_go_and_ids_stay(solution):
    made = exercises.make(solution)
    assert made.what == "new"
    text = made.path.read_text()
    assert "2 * x" not in text and "HIDDEN" not in text and "== 6" not in text and '"6' not in text
    exercise = nbfile.read(made.path)
    assert [cell["id"] for cell in exercise["cells"]] == ["title", "answer", "check-answer"]
    assert exercise["cells"][1]["source"].endswith(
        "    # YOUR CODE HERE\n    raise NotImplementedError()"
    )
    assert exercise["cells"][2]["metadata"]["editable"] is False


def test_made_twice_it_is_the_same_and_made_from_a_new_solution_it_changes(solution):
    first = exercises.make(solution).path.read_bytes()
    assert exercises.make(solution).what == "as before"
    nbfile.write(authoring.build(TEXT.replace("Twice x", "Two x")), solution)
    assert exercises.make(solution, dry=True).what == "changed"
    made = exercises.make(solution)
    assert made.what == "changed" and made.path.read_bytes() != first


def test_an_exercise_changed_by_hand_is_not_overwritten(solution):
    path = exercises.make(solution).path
    edited = path.read_text().replace("Twice x", "My notes")
    path.write_text(edited)
    with pytest.raises(exercises.Edited, match=r"exercises/02-a.ipynb was changed by hand"):
        exercises.make(solution)
    assert path.read_text() == edited
    path.write_text("no json")
    with pytest.raises(exercises.Edited):
        exercises.make(solution)
    assert exercises.make(solution, force=True).what == "changed"


def test_helpers_outside_of_functions_leave_no_stub_that_would_fail_the_cell(solution):
    helper = "### BEGIN SOLUTION\ndef helper(x):\n    return 2 * x\n\n\n### END SOLUTION\n"
    text = TEXT.replace("return 2 * x", "return helper(x)")
    text = text.replace("\n# %% id=check", f"\n\n{helper}\n# %% id=check")
    nbfile.write(authoring.build(text), solution)
    cell = nbfile.read(exercises.make(solution).path)["cells"][1]["source"]
    assert cell.count("raise NotImplementedError()") == 1 and "helper" not in cell
    exec(cell.replace("raise NotImplementedError()", "return 2 * x"), space := {})
    assert space["answer"](4) == 8


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("    ### END SOLUTION\n", "", "[Nn]o end solution"),
        ("id=answer solution=answer", "id=answer", "cell answer has a solution region"),
        (
            "    ### BEGIN SOLUTION\n    return 2 * x\n    ### END SOLUTION\n",
            "    return x\n",
            "holds no region",
        ),
        (
            "    ### BEGIN SOLUTION\n    return 2 * x\n    ### END SOLUTION\n",
            "    return x\n\n\n### BEGIN SOLUTION\ny = 1\n### END SOLUTION\n",
            "no region inside a function",
        ),
    ],
)
def test_a_solution_out_of_form_is_a_sentence(solution, old, new, sentence):
    assert old in TEXT
    nbfile.write(authoring.build(TEXT.replace(old, new)), solution)
    with pytest.raises(ValueError, match=f"02-a.ipynb: .*{sentence}"):
        exercises.make(solution)


def test_what_takes_longest_to_import_is_left_out():
    """And nbformat still says what is wrong with a notebook."""
    code = """
import sys
from dtcourse.course import execute
import nbformat
assert "nbformat.validator" in sys.modules and sys.modules["rfc3987_syntax"] is None
try:
    nbformat.validate({"cells": [], "metadata": {}, "nbformat": 4})
except nbformat.ValidationError as error:
    print("said:", error.message)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "said: 'nbformat_minor' is a required property" in done.stdout
