"""A link found from messages is the planted one, and collectives are then what the textbook says, exactly."""

from __future__ import annotations

import pytest

from dtcourse import launch
from dtcourse.collectives.terms import Link
from dtcourse.emulation import EmulatedNetwork
from dtcourse.profiling import collective_lines as lines
from dtcourse.simulator import collective_cost as cost

NETWORK = EmulatedNetwork(latency=20e-6, bandwidth=12.5e9, gap=2e-6)
SIZES = [1 << 10, 1 << 14, 1 << 18]
VIRTUAL = {"network": NETWORK, "clock": "virtual", "device": "cpu"}


def test_on_the_virtual_clock_link_and_collectives_are_exact():
    for line in launch(lines.collective_lines, 4, sizes=SIZES, repeats=1, backend="ring", **VIRTUAL)[0]:  # fmt: skip
        assert line.link.alpha == pytest.approx(20e-6, rel=1e-6)
        assert line.link.gap == pytest.approx(2e-6, rel=1e-6)
        assert line.link.bandwidth == pytest.approx(12.5e9, rel=1e-6)
        for row in line.rows:
            assert row.ratio == pytest.approx(1, rel=1e-6), (line.collective, row)
            assert row.bus_bandwidth == cost.bus_bandwidth(line.collective, row.bytes, row.seconds, 4)  # fmt: skip
        if line.collective == "all_reduce":  # its own line: 6 messages, and the rate of the port
            assert line.algorithm == "ring"
            assert line.latency == pytest.approx(6 * 22e-6, rel=1e-6)
            assert line.bandwidth == pytest.approx(12.5e9, rel=1e-6)
            assert "all_reduce on 4 ranks, predicted as ring: latency 132.0 us" in str(line)


def test_a_burst_tells_the_gap_from_the_latency():
    def seconds(n, k=1):
        return 5e-6 + k * (3e-6 + n / 1e9)

    single = [(n, seconds(n)) for n in SIZES]
    found = lines.link_of(single, 64, seconds(64, 8), 8)
    assert (found.alpha, found.gap, found.beta) == pytest.approx((5e-6, 3e-6, 1e-9))
    assert lines.link_of(single, 64, seconds(64), 8).gap == 0  # noise: a burst as fast as one
    assert lines.link_of(single, 64, 1.0, 8).alpha == 0  # and one far slower


@pytest.mark.parametrize(
    ("backend", "collective", "algorithm"),
    [("ring", "all_to_all", "pairwise"), ("gloo", "all_reduce", "ring"), ("gloo", "reduce", "tree"),
     ("tree", "all_reduce", "tree"), ("halving_doubling", "broadcast", "tree")],
)  # fmt: skip
def test_which_algorithm_predicts(backend, collective, algorithm):
    assert lines.algorithm_of(backend, collective) == algorithm


def refused():
    said = []
    for wrong in ({"sizes": [1024]}, {"collectives": ["scatter"], "link": Link(1e-6, 1e-9)}):
        with pytest.raises(ValueError) as raised:
            lines.collective_lines(**wrong)
        said.append(str(raised.value))
    return said


def test_what_cannot_be_measured_is_refused():
    one, other = launch(refused, 2, backend="gloo", device="cpu")[0]
    assert one == "a line needs two sizes or more; got [1024]"
    assert other.startswith("there is no benchmark of 'scatter'")
    with pytest.raises(ValueError, match="2 messages or more; got 1"):
        lines.link_of([(1, 1.0), (2, 2.0)], 1, 1.0, 1)
