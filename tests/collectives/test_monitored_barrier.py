"""dist.monitored_barrier on our backends and on watched gloo: it says who did not come."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.collectives import EmulatedNetwork, traffic
from dtcourse.collectives.backend import register as backend

SETTINGS: dict[str, dict[str, Any]] = {
    **{name: {"backend": name} for name in backend.choices()},
    "gloo, recorded": {"backend": "gloo", "record": True},
    "gloo, emulated network": {"backend": "gloo", "network": EmulatedNetwork(latency=1e-6)},
}
SHORT = timedelta(seconds=0.5)


def all_come() -> int:
    time.sleep(0.3 * (dist.get_rank() == 1))
    with traffic.counting() as counted:
        dist.monitored_barrier()
        dist.monitored_barrier(timeout=SHORT * 20, wait_all_ranks=True)
        pair = dist.new_group([0, 2])
        dist.monitored_barrier(pair)  # torch warns on rank 1, and lets it pass
    dist.all_reduce(x := torch.ones(1))
    assert x.item() == 3
    return counted.messages_sent()


@pytest.mark.parametrize("setting", SETTINGS)
def test_nobody_is_missing(setting: str) -> None:
    assert list(launch(all_come, 3, timeout=60, **SETTINGS[setting])) == [0, 0, 0]


def without(
    given_up: Path, missing: list[int], wait_all_ranks: bool, then: Callable[[], Any] = int
) -> str:
    """What monitored_barrier raises where some ranks are in none until the others have given up.

    given_up: a folder in which they say so
    then:     what those ranks call afterwards
    """
    dist.all_reduce(torch.ones(1))
    others = set(range(dist.get_world_size())) - set(missing)
    try:
        if dist.get_rank() in others:
            dist.monitored_barrier(timeout=SHORT, wait_all_ranks=wait_all_ranks)
        else:
            while not all((given_up / str(rank)).exists() for rank in others):
                time.sleep(0.02)
            then()
    except RuntimeError as error:
        return str(error)
    finally:
        (given_up / str(dist.get_rank())).touch()
    return "no error"


def any_collective() -> None:
    dist.all_reduce(torch.ones(1))


def the_barrier() -> None:
    dist.monitored_barrier(timeout=SHORT)


@pytest.mark.parametrize("name", backend.choices())
def test_all_ranks_are_told_who_is_missing(name: str, tmp_path: Path) -> None:
    text = "Ranks 0, 2 failed to pass monitoredBarrier in 500 ms"
    run = launch(without, 4, tmp_path, [0, 2], True, any_collective, backend=name, timeout=60)
    assert run[1] == run[3] == text
    for rank in (
        0,
        2,
    ):  # whoever was missing learns it from the next collective: the group was given up
        assert f"failed in monitored_barrier: RuntimeError: {text}" in run[rank]


def test_without_wait_all_ranks_it_names_the_first(tmp_path: Path) -> None:
    run = launch(without, 4, tmp_path, [1, 2], False, backend="tree", timeout=60)
    assert run[0] == run[3] == "Rank 1 failed to pass monitoredBarrier in 500 ms"


def test_a_rank_that_comes_too_late_is_told_so(tmp_path: Path) -> None:
    run = launch(without, 3, tmp_path, [1], False, the_barrier, backend="ring", timeout=60)
    assert all("Rank 1 failed to pass monitoredBarrier in 500 ms" in text for text in run)


def elsewhere() -> str:
    try:
        if dist.get_rank() == 1:
            dist.broadcast(torch.ones(3), 0)
        else:
            dist.monitored_barrier(timeout=SHORT * 40)
    except (ValueError, RuntimeError) as error:
        return str(error)
    return "no error"


def test_a_rank_in_another_collective_is_found_before_the_time_limit() -> None:
    began = time.monotonic()
    for text in launch(elsewhere, 3, backend="ring", timeout=60):
        assert "rank 0: monitored_barrier" in text
        assert "rank 1: broadcast of 3 float32" in text
    assert time.monotonic() - began < 15  # of 20 s


@pytest.mark.parametrize("setting", ["gloo, recorded", "gloo, emulated network"])
def test_watched_gloo_says_what_gloo_says(setting: str, tmp_path: Path) -> None:
    run = launch(without, 4, tmp_path, [1, 2], True, timeout=60, **SETTINGS[setting])
    assert "[Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 500 ms" in run[0]
    assert "Rank 3 successfully reached monitoredBarrier" in run[3]


def test_torchs_own_groups_are_asked_as_before() -> None:
    backend.register()
    backend.register()
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        dist.monitored_barrier()
