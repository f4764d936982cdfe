"""Logs that are read while they are written, and folders that are somebody else's."""

from __future__ import annotations

import os

import pytest
import torch

from dtcourse.launch.cluster.folder import Reader, Writer, create, require_private


def test_frames_arrive_in_order_and_once(tmp_path):
    file = tmp_path / "log"
    file.touch()
    writer, reader = Writer(file), Reader(file)
    assert list(reader.new()) == []
    writer.write("a")
    writer.write({"b": 2})
    assert [unpack() for unpack in reader.new()] == ["a", {"b": 2}]
    assert list(reader.new()) == []
    writer.write(torch.arange(3))
    (unpack,) = reader.new()
    assert unpack().tolist() == [0, 1, 2]


def test_a_frame_that_is_half_written_waits_for_its_other_half(tmp_path):
    whole, growing = tmp_path / "whole", tmp_path / "growing"
    writer = Writer(whole)
    writer.write("first")
    first = whole.stat().st_size
    writer.write(torch.arange(1000))
    data = whole.read_bytes()
    reader = Reader(growing)
    for cut in (first, first + 4, first + 20, len(data) - 1):
        growing.write_bytes(data[:cut])
        found = [unpack() for unpack in reader.new()]
        assert found == (["first"] if cut == first else [])
    growing.write_bytes(data)
    (unpack,) = reader.new()
    assert torch.equal(unpack(), torch.arange(1000))


def test_a_tensor_that_arrived_may_be_written_to(tmp_path):
    writer, reader = Writer(tmp_path / "log"), Reader(tmp_path / "log")
    writer.write(torch.zeros(4))
    (unpack,) = reader.new()
    unpack().add_(1)


def test_a_new_folder_is_private_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        path = create(tmp_path / "jobs", "step")
    finally:
        os.umask(before)
    require_private(path)
    assert (tmp_path / "jobs").stat().st_mode & 0o777 == 0o700
    assert create(tmp_path / "jobs", "step") != path


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o770, 0o755])
def test_a_folder_that_others_can_open_is_not_read(tmp_path, mode):
    path = create(tmp_path, "step")
    path.chmod(mode)
    with pytest.raises(
        PermissionError, match=f"mode {mode:04o}: only a folder that is yours alone"
    ):
        require_private(path)


def test_a_link_to_a_folder_is_not_one(tmp_path):
    (tmp_path / "link").symlink_to(create(tmp_path, "step"))
    with pytest.raises(PermissionError, match="is no folder of a job"):
        require_private(tmp_path / "link")
