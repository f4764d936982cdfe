"""The package's published figures are those of the project's sources, in the units they are said to have."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from dtcourse.simulator.hardware import accelerator, ethernet, links, measured_all_reduce, published


@pytest.mark.needs("shared")
def test_the_copies_are_the_sources():
    shared = Path(__file__).parents[3] / "shared" / "published"
    ours = files("dtcourse.simulator") / "published"
    for file in shared.glob("*.json"):
        assert (ours / file.name).read_text() == file.read_text(), (
            f"{file.name} differs from its source"
        )


def test_units():
    assert links()["NVLink4 H100"].bandwidth == 450e9
    assert links()["DGX H100 NDR 8x400Gb"].bandwidth == 50e9, (
        "8 ports of 400 Gb/s in a node, one for each GPU"
    )
    assert ethernet(400).bandwidth == 50e9
    size, bandwidth = measured_all_reduce()[-1]
    assert (size, bandwidth) == (17179869184, 482.26e9)
    assert all(link.source for link in links().values())


def test_cards():
    a100, none = accelerator("A100 SXM"), accelerator("TPU v6e")
    assert (a100.flops, a100.bandwidth) == (312e12, 2e12)
    assert (none.flops, none.bandwidth) == (918e12, None) and none.source
    with pytest.raises(ValueError, match=r"'V100'; for A100 SXM, H100 SXM"):
        accelerator("V100")


def test_unknown_figures_are_named():
    with pytest.raises(ValueError, match=r"no published figures 'gpu'; there are .*hw_specs"):
        published("gpu")
    with pytest.raises(ValueError, match="above 0"):
        ethernet(0)
