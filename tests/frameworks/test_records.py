"""The job, the catalogue and the committed records: of these files, with these losses, and pinned."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from dtcourse.course.frameworks import known, records

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "frameworks"
RECORDS = sorted((FOLDER / "records").glob("*.json"))
NO_FRAMEWORK = {"job.py", "plain.py"}


@pytest.fixture(scope="module")
def job():
    spec = importlib.util.spec_from_file_location("job", FOLDER / "job.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.setenv("DTCOURSE_HOME", str(ROOT))


def test_the_losses_are_plain_pytorchs_in_double(job):
    model = job.torch_model().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=job.LR)
    for (images, labels), known_loss in zip(job.batches(), job.LOSSES, strict=True):
        optimizer.zero_grad()
        logits = model(torch.from_numpy(images).double())
        loss = nn.functional.cross_entropy(logits, torch.from_numpy(labels))
        loss.backward()
        optimizer.step()
        assert loss.item() == pytest.approx(known_loss, abs=1e-9)


def test_the_parts_of_two_ranks_are_the_batch(job):
    whole, first, second = (next(job.batches(*ranks)) for ranks in ((0, 1), (0, 2), (1, 2)))
    for batch, a, b in zip(whole, first, second, strict=True):
        assert len(a) == len(b) == job.BATCH / 2
        assert (batch[0::2] == a).all() and (batch[1::2] == b).all()


def test_plain_pytorch_reaches_them_in_float32():
    done = subprocess.run(
        [sys.executable, "plain.py"], cwd=FOLDER, capture_output=True, text=True, check=True
    )
    assert "losses 2.34045" in done.stdout


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda losses: [*losses[:7], losses[7] + 6e-7, *losses[8:]], "step 7"),
        (lambda losses: [float("nan"), *losses[1:]], "step 0"),
        (lambda losses: losses[1:], "19 losses"),
    ],
)
def test_a_loss_that_is_not_equal_is_an_error(job, change, says):
    with pytest.raises(ValueError, match=says):
        job.Log().report(change(job.LOSSES))


def test_a_process_that_fails_is_named(job):
    with pytest.raises(ValueError, match="rank 0 failed"):
        job.start(int)  # which takes no three arguments


def test_each_script_has_its_table_and_each_table_its_files():
    catalogue = known()
    scripts = {each.script for each in catalogue.values()}
    built = {each.prepare for each in catalogue.values() if each.prepare}
    assert {path.name for path in FOLDER.glob("*.py")} == scripts | built | NO_FRAMEWORK
    pins = {path.stem for path in (FOLDER / "pins").glob("*.txt")}
    assert pins == {each.pins for each in catalogue.values() if each.pins}
    for each in catalogue.values():
        assert each.script in each.command
        assert bool(each.pins) == bool(each.megabytes) == bool(each.minutes), each.name


@pytest.mark.parametrize(
    "path", sorted((FOLDER / "pins").glob("*.txt")), ids=lambda path: path.stem
)
def test_pins_are_exact_and_have_the_courses_torch(path):
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines), lines
    lock = (ROOT / "requirements.lock").read_text().splitlines()
    torch_pins = [line for line in lines if line.startswith("torch==")]
    assert torch_pins in ([], [next(line for line in lock if line.startswith("torch=="))])
    assert not torch_pins or lines[0] == torch_pins[0]
    assert any(line.startswith("scikit-learn==") for line in lines), "the digits come with it"


def test_what_is_built_in_an_environment_has_its_tools_among_the_pins():
    """`pip freeze` leaves them out; an environment that was made by hand has them all the same."""
    builders = [each for each in known().values() if each.prepare]
    here = [each for each in builders if "--no-build-isolation" in source_of(each.prepare)]
    assert [each.name for each in here] == ["horovod"]
    for each in here:
        assert {"setuptools", "wheel"} <= set(
            re.findall(r"^([\w.-]+)==", each.pins_file.read_text(), re.M)
        )


def source_of(script):
    return (FOLDER / script).read_text()


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_is_of_these_files_and_reaches_the_losses(path, job):
    framework, record = known()[path.stem], records.read(path)
    assert not records.stale(record, framework), (
        f"what {path.name} was made with has changed: DTCOURSE_RECORD=1 dtcourse framework run {framework.name}"
    )
    differences = [abs(a - b) for a, b in zip(record["losses"], job.LOSSES, strict=True)]
    assert max(differences) == record["largest_difference"] <= job.EQUAL
    assert set(framework.packages) | {"python"} == set(record["versions"])
    assert record["lines"] == records.lines_of_code(framework.script_file.read_text())


def test_a_change_of_script_pins_or_command_makes_a_record_stale():
    framework = next(each for each in known().values() if each.prepare)
    now = records.hashes(framework)
    assert set(now) == {"job", "script", "pins", "command"}
    for change in (
        {"command": "python other.py"},
        {"environment": {"A": "1"}},
        {"prepare": "job.py"},
    ):
        other = records.hashes(dataclasses.replace(framework, **change))
        assert records.stale({"hashes": other}, framework) == "command"
    for part in now:
        assert records.stale({"hashes": now | {part: "other"}}, framework) == part
    assert (
        records.stale({"hashes": now | {"script": "", "pins": ""}}, framework) == "script and pins"
    )
    assert not records.stale({"hashes": now}, framework)


def test_lines_of_code_leave_out_blank_ones_comments_and_docstrings():
    source = '"""Two\nlines."""\n\nimport os  # one\n\n# none\ndef f():\n    """None."""\n    return """two\nlines"""\n'
    assert records.lines_of_code(source) == 4
