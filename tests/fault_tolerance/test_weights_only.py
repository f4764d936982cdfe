"""A checkpoint into which somebody has put a program: it is refused, and not run."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import nn

from dtcourse import checkpoint, launch
from dtcourse.checkpoint import checksums


class Program:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return os.mkdir, (str(self.file),)


def made(folder, file=None):
    """A checkpoint of a small model; its optimizer has an option more."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["option"] = Program(file) if file else 1
    with patch(
        "dtcourse.checkpoint.nests._check_read_again"
    ):  # as somebody else's program writes it
        checkpoint.save(folder, model, optimizer)


def loaded(folder):
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError) as caught:
        checkpoint.load(folder, model, torch.optim.SGD(model.parameters(), lr=0.1))
    return str(caught.value)


def test_a_program_in_an_option_is_not_run(tmp_path):
    launch(made, 1, tmp_path / "saved", tmp_path / "run")
    said = launch(loaded, 1, tmp_path / "saved")[0]
    assert "holds more than numbers, strings and tensors" in said
    assert not (tmp_path / "run").exists()


def test_a_program_in_the_index_is_not_run(tmp_path):
    launch(made, 1, tmp_path / "saved")
    index = tmp_path / "saved/.metadata"
    assert index.name not in json.loads((tmp_path / "saved" / checksums.NAME).read_text())
    index.write_bytes(pickle.dumps(Program(tmp_path / "run")))
    said = launch(loaded, 1, tmp_path / "saved")[0]
    assert "holds no checkpoint that can be read" in said
    assert "mkdir, which no index needs" in said
    assert not (tmp_path / "run").exists()
