"""What one Python writes every other one reads: an index names classes, and where they lie differs between versions."""

from __future__ import annotations

import io
import pickle
from enum import Enum

import pytest
import torch
from torch.distributed.checkpoint import metadata as dcp_metadata

from dtcourse import launch
from dtcourse.checkpoint import as_data
from tests.checkpoint import written

FOLDERS = sorted(path.name for path in written.WRITTEN.iterdir())


class _Of311(pickle.Pickler):
    """Names a member of an enum as Python 3.11.0 to 3.11.3 do."""

    def reducer_override(self, obj):
        return (getattr, (type(obj), obj.name)) if isinstance(obj, Enum) else NotImplemented


def indexed(obj, pickler=pickle.Pickler):
    """What reading an index makes of an object that stands in it."""
    stream = io.BytesIO()
    pickler(stream, 4).dump(obj)
    return as_data._Index(io.BytesIO(stream.getvalue())).load()


class Calls:
    """Pickled as a call."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        function, *arguments = self.call
        return function, tuple(arguments)


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_another_python_has_written_is_read(folder):
    found = launch(written.read, 1, str(written.WRITTEN / folder))[0]
    assert found == written.expected()


def test_what_this_python_writes_it_reads(tmp_path):
    launch(written.write, 1, str(tmp_path / "run"))
    assert launch(written.read, 1, str(tmp_path / "run"))[0] == written.expected()


def test_there_is_something_of_each_kind_of_python():
    versions = {name.split("-")[1] for name in FOLDERS}
    assert {"3.11.2", "3.11.7"} < versions  # each names the members of an enum in its own way
    assert {"3.12", "3.13"} < {version.rpartition(".")[0] for version in versions}


def test_a_member_of_an_enum_by_its_name():
    properties = dcp_metadata.TensorProperties.create_from_tensor(torch.zeros(1))
    assert indexed(properties, _Of311) == properties == indexed(properties)


MEMORY_FORMAT = dcp_metadata._MEM_FORMAT_ENCODING


@pytest.mark.parametrize(
    "call",
    [
        (getattr, MEMORY_FORMAT, "mro"),
        (getattr, MEMORY_FORMAT, "__init__"),
        (getattr, MEMORY_FORMAT, 0),
        (getattr, dcp_metadata.TensorProperties, "create_from_tensor"),
        (getattr, torch.Size, "numel"),
        (getattr, [], "append"),
        (getattr, MEMORY_FORMAT.TORCH_PRESERVE_FORMAT, "name"),
        (getattr, MEMORY_FORMAT, "TORCH_PRESERVE_FORMAT", None),
        (setattr, MEMORY_FORMAT, "TORCH_PRESERVE_FORMAT", 1),
    ],
    ids=lambda call: f"{call[0].__name__}-{call[2]}",
)
def test_getattr_gives_nothing_else(call):
    with pytest.raises(pickle.UnpicklingError, match="which no index needs"):
        indexed(Calls(*call))


def test_a_module_that_an_index_names_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "somebodys.py").write_text(
        f"open({str(tmp_path / 'run')!r}, 'w')\nclass Path: pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(pickle.UnpicklingError, match=r"somebodys\.Path, which no index needs"):
        as_data._Index(io.BytesIO(b"csomebodys\nPath\n.")).load()
    assert not (tmp_path / "run").exists()
