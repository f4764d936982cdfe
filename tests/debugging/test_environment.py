"""A record of what a run ran in, and what differs between two of them or over the ranks."""

from __future__ import annotations

import json
import os

import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.debugging import (
    compare_environments,
    environment,
    environments_differ,
    save_environment,
)


def test_it_says_how_a_run_computes_and_no_secrets(monkeypatch, tmp_path):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    found = save_environment(tmp_path / "run" / "environment.json")
    assert found["torch"] == torch.__version__.partition("+")[0] or torch.__version__.startswith(
        found["torch"]
    )
    assert found["threads"] == torch.get_num_threads() and found["NCCL_DEBUG"] == "INFO"
    assert found["cores"] >= 1 and found["memory_bytes"] > 2**20 and found["processor"]
    assert "secret" not in json.dumps(found) and len(found.get("commit", "0" * 40)) == 40
    again = compare_environments(tmp_path / "run" / "environment.json", environment())
    assert not again and str(again) == "Nothing differs."


def test_two_say_what_differs():
    here = environment()
    there = here | {"torch": "1.0", "NCCL_ALGO": "Ring"}
    found = compare_environments(here, there)
    assert found == {"torch": (here["torch"], "1.0"), "NCCL_ALGO": ("not set", "Ring")}
    assert "NCCL_ALGO: not set and Ring" in str(found)


def test_a_file_that_is_none(tmp_path):
    (tmp_path / "a.json").write_text("[1]")
    with pytest.raises(ValueError, match="no record of an environment: write one"):
        compare_environments(tmp_path / "a.json", {})
    with pytest.raises(ValueError, match=r"no record of an environment: .*No such file"):
        compare_environments(tmp_path / "b.json", {})


def over_ranks():
    alike = environments_differ()
    if dist.get_rank() == 1:
        torch.set_num_threads(2)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo" if dist.get_rank() < 2 else "eth7"
    return alike, environments_differ()


def test_over_ranks_the_odd_one_is_named():
    for alike, differ in launch(over_ranks, 3):
        assert alike == ""
        lines = differ.splitlines()
        assert lines[0] == "rank 1 has threads 2, where ranks 0 and 2 have 1"
        assert lines[1] == "rank 2 has GLOO_SOCKET_IFNAME eth7, where ranks 0 and 1 have lo"
