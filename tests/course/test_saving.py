"""To run a lesson is not to change it: what JupyterLab's save writes of a notebook that was only run again."""

from __future__ import annotations

import copy
import shutil
from types import SimpleNamespace

import pytest

from dtcourse.course import authoring, lab, places
from dtcourse.course import notebook as nbfile
from dtcourse.course.execute import execute
from dtcourse.course.normalise import normalise

SCRIPT = """\
# %% id=widget
show()

# %% id=picture
draw()

# %% id=measured tags=nbval-ignore-output
measure()

# %% id=printed
print(1)
"""
WIDGET = "application/vnd.jupyter.widget-view+json"


def shown(**data):
    return {"output_type": "display_data", "data": data, "metadata": {}}


def printed(text):
    return {"output_type": "stream", "name": "stdout", "text": text}


def listed(text):
    """The same, as it is in a file."""
    return {**printed(text), "text": text.splitlines(keepends=True)}


@pytest.fixture
def committed(tmp_path):
    notebook = authoring.build(SCRIPT)
    outputs = [[], [shown(**{"image/png": "aaaa", "text/plain": "<Figure>"})], [printed("5 ms\n")]]
    for cell, its in zip(notebook["cells"], [*outputs, [printed("1\n")]], strict=True):
        cell.update(outputs=its, execution_count=1)
    path = tmp_path / "lessons" / "03-sums.ipynb"
    nbfile.write(normalise(notebook, seconds=1.0), path)
    return path


def saved(path, notebook):
    """The text of the file after JupyterLab's save."""
    model = {"type": "notebook", "content": copy.deepcopy(notebook)}
    server = SimpleNamespace(root_dir=str(path.parent.parent))
    lab.keep_form(model=model, path=f"lessons/{path.name}", contents_manager=server)
    return nbfile.dumps(model["content"])


def run_again(path):
    """The notebook as a kernel leaves it that has run all cells, for the second time."""
    notebook = nbfile.read(path)
    notebook["metadata"]["language_info"]["version"] = "3.14.1"
    widget, picture, measured, says = notebook["cells"]
    widget["outputs"] = [
        shown(**{WIDGET: {"model_id": "c0ffee"}, "text/plain": "HBox(children=())"})
    ]
    picture["outputs"] = [shown(**{"image/png": "bbbb", "text/plain": "<Figure>"})]
    measured["outputs"] = [printed("7 ms\n")]
    for count, cell in enumerate(notebook["cells"], 11):
        cell["execution_count"] = count
        cell["metadata"]["execution"] = {"iopub.status.busy": "2026-11-24T15:01:31Z"}
    return notebook, says


def test_run_all_and_save_changes_no_byte(committed):
    notebook, _ = run_again(committed)
    assert nbfile.dumps(notebook) != committed.read_text()
    assert saved(committed, notebook) == committed.read_text()


def test_what_nbval_would_call_another_output_is_saved(committed):
    notebook, says = run_again(committed)
    says["outputs"] = [printed("2\n")]
    before, after = nbfile.read(committed), nbfile.parse(saved(committed, notebook))
    assert after["cells"][:3] == before["cells"][:3]
    assert after["cells"][3]["outputs"] == [listed("2\n")]


def test_after_an_edit_all_that_was_shown_is_saved(committed):
    notebook, says = run_again(committed)
    says["source"] = "print(2)"
    after = nbfile.parse(saved(committed, notebook))["cells"]
    assert after[1]["outputs"][0]["data"]["image/png"] == "bbbb"
    assert after[2]["outputs"] == [listed("7 ms\n")]
    assert after[0]["outputs"] == []  # no widget outlives its kernel


def test_an_error_is_saved_where_something_was_measured(committed):
    notebook, _ = run_again(committed)
    error = {"output_type": "error", "ename": "OSError", "evalue": "no", "traceback": []}
    notebook["cells"][2]["outputs"] = [error]
    assert nbfile.parse(saved(committed, notebook))["cells"][2]["outputs"] == [error]


def test_a_students_copy_keeps_all_it_shows(committed):
    notebook, _ = run_again(committed)
    notebook["metadata"]["dtcourse"] = {"lesson": "0" * 16}
    text = saved(committed, notebook)
    del notebook["metadata"]["language_info"]["version"]
    assert text == nbfile.dumps(notebook)


@pytest.mark.slow
@pytest.mark.notebooks
@pytest.mark.stands_on("lessons/03-collectives.ipynb", "dtcourse/course/", "dtcourse/plots/")
def test_a_lesson_that_a_kernel_has_run_is_saved_as_it_was(tmp_path):
    """Lesson 03: six widgets."""
    path = tmp_path / "lessons" / "03-collectives.ipynb"
    path.parent.mkdir()
    shutil.copy(places.notebooks("lessons")["03"], path)
    notebook = nbfile.read(path)
    execute(notebook, path.parent)
    assert WIDGET in nbfile.dumps(notebook)
    assert saved(path, notebook) == path.read_text()
