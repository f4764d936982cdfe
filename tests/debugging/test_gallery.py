"""Each script of the gallery fails as in life, its tool names what it must, no other speaks, and its twin is right.

The contract of all is read by `make test` (nothing of them runs there), and one script is examined; the others take
turns, those first that have changed.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dtcourse.debugging import gallery
from dtcourse.debugging.gallery.examine import against

FOLDER = Path(__file__).resolve().parents[2] / "gallery"
SCRIPTS = sorted(FOLDER.glob("*.py"))
ALWAYS = "mean_of_means"
TOOLS = "dtcourse/debugging/unasked/", "dtcourse/debugging/gallery/"
ENDS = {"hangs": "hangs", "raises": "raised"}


def in_turns(path):
    if path.stem == ALWAYS:
        return pytest.param(path, id=path.stem)
    turns = pytest.mark.stands_on(f"gallery/{path.name}", *TOOLS, share=(1, 7))
    return pytest.param(path, id=path.stem, marks=turns)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_what_a_script_says_of_itself(path):
    script = gallery.read(path)
    assert script.tool in gallery.TOOLS
    lines = script.text.splitlines()
    assert len(lines) <= 110 and max(map(len, lines)) <= 120
    imported = re.findall(r"^\s*(?:from|import) (dtcourse\S*)", script.text, re.M)
    assert imported == ["dtcourse.debugging.gallery"], "as people write it, but for what runs it"
    assert script.repaired != script.text
    compile(script.repaired, script.name, "exec")


def test_the_list_shows_each_with_its_symptom(capsys):
    from dtcourse.debugging.__main__ import main

    main(["gallery"])
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == len(SCRIPTS) >= 14
    for path, line in zip(SCRIPTS, shown, strict=True):
        assert line.startswith(path.stem) and gallery.read(path).symptom in line


@pytest.mark.parametrize("path", [*map(in_turns, SCRIPTS)])
def test_its_tool_finds_it_no_other_speaks_and_of_the_twin_none(path):
    script = gallery.read(path)
    found = gallery.examine(script)
    assert found.outcome.end == ENDS.get(script.kind, "ended"), found.outcome.failure
    sentence = found.sentences[script.tool]
    assert sentence, str(found)
    for name in script.names:
        assert name.lower() in sentence.lower(), sentence
    # What compares results says that they are wrong, where a tool says why.
    may = {script.tool}
    if script.kind in ("diverges", "silently wrong"):
        may |= set(gallery.COMPARISONS)
    assert set(found.speaking) <= may, str(found)
    twin = gallery.examine(script, repaired=True)
    assert twin.outcome.end == "ended", twin.outcome.failure
    assert twin.speaking == [], str(twin)


# --- bad input ------------------------------------------------------------------------------------------------------

SPOILED = {
    "RANKS = 3": ("RANKS = 1", "RANKS is 2 to 4, not 1"),
    'KIND = "silently wrong"': ('KIND = "odd"', "KIND is one of hangs, raises"),
    "NAMES = (": ("NAMES = () and (", "NAMES is no plain value"),
    "REPAIR = [": ("REPAIRS = [", "REPAIR is None"),
    "Found by:": ("Seen by:", "no 'Found by:'"),
    "def step():": ("def steps():", "a function step()"),
    "    loss = F.cross_entropy(model(x), y)\n    loss.b": (
        "    loss.b",
        "occurs once, and '    loss = F.cross_entropy(model(x), y)\\n' 0 times",
    ),
}


@pytest.mark.parametrize("right", SPOILED)
def test_a_script_that_is_not_as_agreed_is_refused_with_what_it_lacks(right, tmp_path):
    wrong, said = SPOILED[right]
    text = (FOLDER / f"{ALWAYS}.py").read_text()
    assert right in text
    (tmp_path / "spoiled.py").write_text(text.replace(right, wrong))
    with pytest.raises(ValueError, match=re.escape(said)):
        gallery.read(tmp_path / "spoiled.py")


def test_of_several_wrong_results_the_one_that_the_reference_names_first_is_said():
    right = {f"{letter}s": {letter: 1.0} for letter in "hbdafcge"}
    wrong = {f"{letter}s": {letter: 2.0} for letter in "abcdefgh"}
    assert against(right, [None, wrong]).startswith("On rank 1, h: the h is off")
