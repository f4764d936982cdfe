"""Answers in a student's copy wait in folds: one a question, with all that tells it, and nothing else."""

from __future__ import annotations

import re

import pytest

from dtcourse.course import authoring, folding, places, workspace
from dtcourse.course import notebook as nbfile

FOLD = re.compile(r"<details>\s*<summary>Answer</summary>.*?</details>", re.DOTALL)


def folded(*texts, code="1"):
    """The markdown of a lesson of these texts, with a code cell after each, once its answers are folded."""
    script = ""
    for text in texts:
        script += "# %% [markdown]\n" + "".join(f"# {line}\n" for line in text.split("\n"))
        script += f"\n# %%\n{code}\n\n"
    notebook = folding.fold(authoring.build(script))
    return [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "markdown"]


def test_an_answer_waits_in_the_fold_of_its_question_and_no_fold_stands_twice():
    question, answer = folded(
        "**Predict.** How many?\n\n<details><summary>Answer</summary>\nThree, by the rule.\n</details>\n\nHere it is.",
        "Answer: 3 in all.\n\n## More\n\nNext.",
    )
    assert question == "**Predict.** How many?\n\nHere it is."
    assert answer == (
        "<details><summary>Answer</summary>\n\nThree, by the rule.\n\n**With the run:** 3 in all.\n\n</details>"
        "\n\n## More\n\nNext."
    )


def test_a_question_that_nothing_answers_keeps_its_fold():
    asked = "**Predict.** How many?\n\n<details><summary>Answer</summary>\nThree.\n</details>"
    assert folded(asked, "It is so.", "## Next") == [asked, "It is so.", "## Next"]


def test_an_answer_without_a_folded_guess_is_folded_too():
    asked = "**Predict.** How many?"
    for label, part in (("Answer:", ""), ("Answer (a):", "(a) ")):
        question, answer = folded(asked, f"{label} no more than three.")
        assert question == asked
        text = part + "no more than three."
        assert (
            answer
            == f"<details><summary>Answer</summary>\n\n{text[0].upper()}{text[1:]}\n\n</details>"
        )


def test_what_repeats_the_answers_figures_is_folded_with_it():
    _, answer = folded(
        "**Predict.** 96 blocks: how long?",
        "Answer: 57.5 ms.\n\nSo it is.\n\nA step of 57.5 ms is long.\n\nOther things, 96 of them.\n\n## 57.5",
    )
    inside, after = answer.split("</details>")
    assert "A step of 57.5 ms is long." in inside and "So it is." in inside
    assert after == "\n\nOther things, 96 of them.\n\n## 57.5"


def test_words_that_lead_to_the_next_cell_stay_outside():
    _, answer = folded("**Predict.** How?", "Answer: well. The course's version:")
    assert (
        answer
        == "<details><summary>Answer</summary>\n\nWell.\n\n</details>\n\nThe course's version:"
    )
    _, answer = folded("**Predict.** How?", "Answer: 25.1. Or, with 25.1:")
    assert answer == "<details><summary>Answer</summary>\n\n25.1. Or, with 25.1:\n\n</details>"


@pytest.mark.parametrize("number", sorted(places.notebooks("lessons")))
def test_no_answer_of_the_course_stands_open_in_a_copy(number, tmp_path, monkeypatch):
    lesson = nbfile.read(places.notebooks("lessons")[number])
    for folder in ("lessons", "exercises"):
        (tmp_path / folder).symlink_to(places.home() / folder)
    monkeypatch.setenv("DTCOURSE_HOME", str(tmp_path))
    mine = nbfile.read(workspace.start(number)[0].path)
    answers = 0
    for before, after in zip(lesson["cells"], mine["cells"], strict=True):
        if before["cell_type"] != "markdown":
            continue
        assert not re.search(r"^Answer\b", FOLD.sub("", after["source"]), re.MULTILINE)
        if before["source"].startswith("Answer"):
            answers += 1
            first = after["source"].index("</details>")
            assert after["source"].startswith("<details><summary>Answer</summary>\n\n")
            # All that was said is still said.
            words = re.findall(r"\w{4,}", before["source"].split("\n\n")[0])
            assert all(
                word in after["source"] or word.capitalize() in after["source"]
                for word in words[1:]
            )
            assert first > 40
    assert answers
    once = nbfile.dumps(mine)
    assert nbfile.dumps(folding.fold(mine)) == once
