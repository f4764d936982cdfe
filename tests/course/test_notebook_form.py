"""Reading, normalising, and the text form of notebooks."""

import copy
import json

import nbformat
import pytest

from dtcourse.course import authoring, lab, places
from dtcourse.course import notebook as nbfile
from dtcourse.course.normalise import LANGUAGE, normalise, staleness
from tests.course.samples import notebook


def messy() -> dict:
    """A notebook as JupyterLab leaves it."""
    found = notebook("print(1)   ", "x")
    found["metadata"] = {
        "kernelspec": {"name": "conda-env-x", "display_name": "X"},
        "widgets": {"a": 1},
    }
    first, second = found["cells"]
    first.update(id="3f2a9c1e", execution_count=7)
    first["metadata"] = {
        "execution": {"iopub.execute_input": "2026-01-01"},
        "tags": ["b", "a"],
        "collapsed": True,
    }
    first["outputs"] = [
        {"output_type": "stream", "name": "stdout", "text": "at 0x7f0123456789\n"},
        {"output_type": "stream", "name": "stdout", "text": ["more\n"]},
        {
            "output_type": "display_data",
            "metadata": {"x": 1},
            "data": {
                "application/vnd.jupyter.widget-view+json": {"model_id": "abc"},
                "text/plain": "interactive(children=(IntSlider(value=1),))",
                "image/png": "aaaa",
            },
        },
    ]
    second.update(id="3f2a9c1e", execution_count=9)
    second["outputs"] = [
        {
            "output_type": "execute_result",
            "execution_count": 9,
            "metadata": {},
            "data": {"text/plain": "'x'"},
        }
    ]
    return found


def test_one_form():
    clean = normalise(messy())
    first, second = clean["cells"]
    assert [cell["id"] for cell in clean["cells"]] == ["start-code", "start-code-2"]
    assert [cell["execution_count"] for cell in clean["cells"]] == [1, 2]
    assert second["outputs"][0]["execution_count"] == 2
    assert first["metadata"] == {"tags": ["a", "b"]}
    assert first["outputs"][0]["text"] == "at 0x…\nmore\n"
    assert first["outputs"][1] == {
        "output_type": "display_data",
        "metadata": {},
        "data": {"image/png": "aaaa"},
    }
    assert first["source"] == "print(1)"
    assert set(clean["metadata"]) == {"kernelspec", "language_info"}
    assert clean["metadata"]["kernelspec"]["name"] == "python3"


def test_normalising_twice_changes_nothing_and_the_file_ends_in_a_newline(tmp_path):
    once = nbfile.dumps(normalise(messy()))
    again = nbfile.dumps(normalise(nbfile.parse(once)))
    assert once == again and once.endswith("}\n")
    json.loads(once)


def test_good_ids_stay_when_cells_move_or_are_added():
    first = normalise(messy())
    first["cells"][0]["id"] = "ring-run"
    first["cells"].reverse()
    first["cells"].insert(0, copy.deepcopy(first["cells"][1]))
    ids = [cell["id"] for cell in normalise(first)["cells"]]
    assert ids[0] == "ring-run" and ids[1] == "start-code-2" and len(set(ids)) == 3


def test_stale_is_code_that_changed_and_not_prose():
    fresh = normalise(messy(), seconds=3.0)
    assert staleness(fresh) == []
    fresh["cells"].append({"cell_type": "markdown", "id": "m", "metadata": {}, "source": "prose"})
    assert staleness(fresh) == []
    fresh["cells"][0]["source"] += "\nprint(2)"
    assert "code changed" in staleness(fresh)[0]
    fresh["cells"][0]["execution_count"] = 5
    assert any("not executed in order" in fault for fault in staleness(fresh))
    assert "never executed" in staleness(messy())[0]


def test_of_the_same_code_the_fastest_run_counts():
    found = normalise(messy(), seconds=10.0)
    for seconds, recorded in ((30.0, 10.0), (9.9, 10.0), (6.0, 6.0)):
        assert normalise(found, seconds=seconds)["metadata"]["dtcourse"]["seconds"] == recorded
    found["cells"][0]["source"] += "\nprint(2)"
    assert normalise(found, seconds=30.0)["metadata"]["dtcourse"]["seconds"] == 30.0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("PK\x03\x04 not json", "not JSON, line 1"),
        ("<<<<<<< HEAD\n{}", "git conflict marks"),
        ("[1, 2]", "holds no list of cells"),
        ('{"cells": [], "nbformat": 3}', "notebook format 3"),
        ('{"worksheets": [], "nbformat": 3}', "notebook format 3, and 4 is needed"),
        ('{"cells": [1], "nbformat": 4}', "its cell 1 is no cell"),
        (
            '{"cells": [{"cell_type": "code", "source": 3}], "nbformat": 4}',
            "its cell 1 has no text",
        ),
        ('{"cells": [], "nbformat": 4, "metadata": 3}', "metadata is no mapping"),
        (b"\xff\xfe\x00", "it is not text"),
        ("[" * 100000, "not JSON"),
    ],
)
def test_what_is_no_notebook_is_a_sentence(text, sentence):
    with pytest.raises(nbfile.NotebookError, match=sentence):
        nbfile.parse(text, "x.ipynb")


TEXT = """\
# %% [markdown] id=title
# # 02 · A title
#
# Prose with `code`.

# %% id=parameters tags=parameters
WORLD_SIZE = 4

# %% id=timing topics=02.spmd,02.launching tags=nbval-ignore-output reason='it differs'
print(1)

# %% id=answer solution=answer
x = 1

# %% id=check-answer check=check_answer points=3 hidden
check(x)
"""


def test_text_to_notebook_and_back():
    built = authoring.build(TEXT)
    assert [cell["id"] for cell in built["cells"]] == [
        "title",
        "parameters",
        "timing",
        "answer",
        "check-answer",
    ]
    assert built["cells"][0]["source"] == "# 02 · A title\n\nProse with `code`."
    assert built["cells"][2]["metadata"] == {
        "nbval_reason": "it differs",
        "tags": ["nbval-ignore-output"],
        "topics": ["02.spmd", "02.launching"],
    }
    assert built["cells"][4]["metadata"]["nbgrader"]["points"] == 3
    assert authoring.text(built) == TEXT
    assert authoring.build(authoring.text(built)) == built


def test_building_over_a_notebook_keeps_outputs_of_unchanged_code_only():
    before = authoring.build(TEXT)
    for cell in before["cells"][1:]:
        cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "out\n"}]
    after = authoring.build(
        TEXT.replace("print(1)", "print(2)").replace("Prose", "Other prose"), before
    )
    assert [bool(cell.get("outputs")) for cell in after["cells"]] == [
        False,
        True,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x = 1\n", "line 1: the text starts with a mark"),
        ("# %% id=a\n# %% id=a\n", "line 2: the id 'a' is used twice"),
        ("# %% name=a\n", "line 1: 'name=a' is no mark"),
    ],
)
def test_mistakes_in_the_text_are_told_with_their_line(text, sentence):
    with pytest.raises(ValueError, match=sentence):
        authoring.build(text)


def test_markdown_between_quotes():
    assert (
        authoring.build('# %% [markdown] id=a\n"""\n# Hello\n"""\n')["cells"][0]["source"]
        == "# Hello"
    )


COMMITTED = [
    pytest.param(path, id=f"{kind}/{path.name}")
    for kind in ("lessons", "solutions", "exercises")
    for path in places.notebooks(kind).values()
]


@pytest.mark.parametrize("path", COMMITTED)
def test_committed_notebooks_are_as_jupyters_server_writes_them(path):
    """What JupyterLab's page does with one is asked of a real page, in tests/browser."""
    text = path.read_text(encoding="utf-8")
    assert nbformat.writes(nbformat.reads(text, as_version=4)) + "\n" == text
    assert nbfile.dumps(nbfile.parse(text)) == text


@pytest.mark.parametrize("path", COMMITTED)
def test_no_committed_notebook_splits_a_process_with_threads(path):
    """Kernels and ranks have threads, and from Python 3.12 on os.fork warns of them into the cell's output."""
    code = [
        c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"
    ]
    assert not [c["id"] for c in code if "os.fork(" in "".join(c["source"])]


@pytest.mark.parametrize("path", COMMITTED)
def test_committed_notebooks_hold_what_the_kernel_says_of_itself(path):
    from ipykernel.ipkernel import IPythonKernel
    from ipykernel.kernelspec import get_kernel_dict

    metadata = nbfile.read(path)["metadata"]
    said = {key: value for key, value in IPythonKernel.language_info.items() if key != "version"}
    assert metadata["language_info"] == said
    spec = get_kernel_dict()
    assert metadata["kernelspec"] == {
        "display_name": spec["display_name"],
        "language": spec["language"],
        "name": "python3",
    }


def every_kind_of_output() -> dict:
    """One cell with each kind of output and of value that is not written like the others."""
    found = messy()
    found["cells"][0]["outputs"] = [
        {"output_type": "stream", "name": "stdout", "text": "one\ntwo"},
        {
            "output_type": "display_data",
            "metadata": {"image/png": {"width": 480.0, "height": 300.5}},
            "data": {
                "application/javascript": "let x\nlet y\n",
                "application/json": ["a", "b"],
                "application/vnd.plotly.v1+json": {"lines": "one\ntwo", "width": 7.0},
                "image/png": "aaaa\nbbbb\n",
                "image/svg+xml": "<svg>\n</svg>",
                "text/html": "<p>\n</p>\n",
                "text/latex": "$x$",
            },
        },
        {
            "output_type": "error",
            "ename": "E",
            "evalue": "one\ntwo",
            "traceback": ["one\ntwo", "three"],
        },
    ]
    found["cells"].append(
        {
            "cell_type": "markdown",
            "id": "picture",
            "metadata": {},
            "source": "![a](attachment:a.png)",
            "attachments": {"a.png": {"image/png": "aa\nbb", "text/plain": "one\ntwo"}},
        }
    )
    return normalise(found)


def test_every_kind_of_output_is_written_as_jupyters_server_writes_it():
    text = nbfile.dumps(every_kind_of_output())
    assert nbformat.writes(nbformat.reads(text, as_version=4)) + "\n" == text
    assert nbfile.dumps(normalise(nbfile.parse(text))) == text
    (shown,) = [o for o in json.loads(text)["cells"][0]["outputs"] if "data" in o]
    assert shown["data"]["image/png"] == "aaaa\nbbbb\n"
    assert shown["data"]["application/json"] == ["a", "b"]
    assert '"width": 480\n' in text.replace(",", "")  # as JavaScript writes 480.0


def test_python_s_version_stays_out_of_a_notebook_of_the_course():
    model = {"type": "notebook", "content": normalise(messy(), seconds=1.0)}
    model["content"]["metadata"]["language_info"]["version"] = "3.14.0"
    written = copy.deepcopy(model)
    lab.keep_form(model=model, path="lessons/x.ipynb", contents_manager=None)
    assert model["content"]["metadata"]["language_info"] == LANGUAGE
    del written["content"]["metadata"]["dtcourse"]  # somebody's own
    own = copy.deepcopy(written)
    lab.keep_form(model=own, path="mine.ipynb", contents_manager=None)
    assert own == written


@pytest.mark.parametrize(
    "model",
    [
        {"type": "directory", "content": None},
        {"type": "file", "content": "text"},
        {"type": "notebook", "content": {"cells": []}},
        {"type": "notebook", "content": {"cells": [], "metadata": {"dtcourse": {}}}},
    ],
)
def test_what_else_jupyterlab_saves_is_left_alone(model):
    before = copy.deepcopy(model)
    lab.keep_form(model=model, path="x", contents_manager=None)
    assert model == before


def test_a_notebook_that_begins_with_a_byte_order_mark_is_read():
    text = '{"cells": [], "nbformat": 4, "nbformat_minor": 5, "metadata": {}}'
    assert nbfile.parse(text.encode("utf-8-sig")) == nbfile.parse(text)
