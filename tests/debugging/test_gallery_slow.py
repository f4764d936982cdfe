"""profiling's `diagnose` over the gallery's slow scripts, on the virtual clock.

It reads where a step's time goes, and does not know what had to be sent: that a ring passes wholes is for the bytes'
tool to say. What it has to do there is to send a reader to the messages, with their seconds, and to blame nobody.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dtcourse import launch
from dtcourse.debugging import gallery
from dtcourse.debugging.gallery import running
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork
from dtcourse.profiling.diagnosis import diagnose

LATENCY, BANDWIDTH, BYTES = 1e-5, 1e8, 16_000
CLUSTER = {
    "devices": EmulatedDevice(flops=1e9, bandwidth=1e9),
    "network": EmulatedNetwork(latency=LATENCY, bandwidth=BANDWIDTH),
}


def diagnosed(text: str, ranks: int):
    with running.as_file("slow.py", text) as file:
        run = launch(
            lambda: running.loaded(file).step(), ranks, backend="ring", device="cpu", record=True, **CLUSTER
        )  # fmt: skip
    return diagnose(run)


def test_these_are_the_slow_ones():
    assert [one.name for one in gallery.scripts() if one.kind == "slow"] == ["ring_whole_tensor"]


@pytest.mark.stands_on(
    "gallery/ring_whole_tensor.py", "dtcourse/profiling/diagnosis/", share=(1, 7)
)
def test_a_ring_of_wholes_shows_its_messages_and_nobody_is_blamed():
    script = gallery.read(Path(__file__).resolve().parents[2] / "gallery/ring_whole_tensor.py")
    ranks, sent = script.ranks, {}
    for text, messages, size in (
        (script.text, ranks - 1, BYTES),
        (script.repaired, 2 * (ranks - 1), BYTES / ranks),
    ):
        found = diagnosed(text, ranks)
        assert found.first == "nothing"
        sent[text] = sum(one.seconds for one in found.path if one.kind == "message")
        assert sent[text] == pytest.approx(messages * (LATENCY + size / BANDWIDTH))
        share = f"{sent[text] / found.seconds:.0%} messages"
        assert found.path_sentence.index(share) < found.path_sentence.index("computing")
    assert sent[script.text] > 1.5 * sent[script.repaired]
