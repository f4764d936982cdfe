"""Hops, bisection and oversubscription against closed forms, and the short cut against trying all halvings."""

from __future__ import annotations

import itertools

import pytest

from dtcourse.simulator.topology import (
    all_to_all_seconds,
    fat_tree,
    leaf_spine,
    mesh,
    ring,
    star,
    torus,
    tree,
)

B = 10.0


def test_ring_and_torus():
    assert ring(8, B).hops() == (4, pytest.approx(16 / 7))
    assert ring(8, B).bisection() == 2 * B  # a ring is cut at two places, whatever its size
    assert ring(9, B).bisection() == 2 * B
    square = torus([4, 4], B)
    assert square.hops()[0] == 4
    assert square.bisection() == 2 * 4 * B
    assert mesh([4, 4], B).bisection() == 4 * B
    assert torus([2, 2], B).links == 4


def test_one_switch_is_full_bisection():
    assert star(8, B).hops() == (2, 2)
    assert star(8, B).bisection() == 4 * B


def test_tree_narrows_towards_the_root():
    t = tree(3, 2, B)
    assert len(t.hosts) == 8 and t.switches == 7
    assert t.hops()[0] == 6
    assert t.bisection() == B  # one link of the root carries half of the hosts
    assert t.oversubscription == 4


@pytest.mark.parametrize("k", [2, 4, 6])
def test_fat_tree_counts(k):
    t = fat_tree(k, B)
    assert len(t.hosts) == k**3 // 4 and t.switches == 5 * k**2 // 4
    assert t.bisection() == len(t.hosts) // 2 * B, "full bisection"
    assert t.hops()[0] == (6 if k > 2 else 4) or k == 2


def test_without_switches_there_is_no_oversubscription_and_with_them_it_is_the_bisection_s():
    for direct in (ring(8, B), mesh([2, 4], B), torus([3, 3], B)):
        assert direct.oversubscription is None
    for t in (star(8, B), fat_tree(4, B), leaf_spine(4, 4, 4, B, B), leaf_spine(4, 1, 4, B, B)):
        assert t.oversubscription == len(t.hosts) // 2 * B / t.bisection()


@pytest.mark.parametrize(("spines", "ratio"), [(1, 4.0), (2, 2.0), (4, 1.0)])
def test_leaf_and_spine(spines, ratio):
    t = leaf_spine(leaves=4, spines=spines, hosts_per_leaf=4, host_bandwidth=B, uplink_bandwidth=B)
    assert t.oversubscription == ratio
    assert t.hops()[0] == 4
    assert t.bisection() == 8 * B / ratio


@pytest.mark.parametrize(
    "small", [ring(8, B), torus([3, 3], B), mesh([2, 4], B), leaf_spine(4, 1, 2, B, B), tree(3, 2, B)],
    ids=lambda t: t.name,
)  # fmt: skip
def test_halvings_along_the_order_find_the_worst(small):
    """What `bisection` does for many hosts, against all halvings of few."""
    hosts, half = small.hosts, len(small.hosts) // 2
    along = min(small._cut(set(part)) for part in small._neighbours())
    everything = min(small._cut(set(part)) for part in itertools.combinations(hosts, half))
    assert along == everything == small.bisection()


def test_all_to_all_is_limited_by_the_middle_or_by_the_hosts_own_link():
    # One switch: the host's own link; 4:1 oversubscription: the uplinks.
    assert all_to_all_seconds(star(8, B), 100.0) == pytest.approx(100 / B)
    narrow = leaf_spine(4, 1, 4, B, B)
    assert all_to_all_seconds(narrow, 100.0) == pytest.approx(8 * 100 * 8 / 15 / (2 * B))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: fat_tree(3, B), "even number of ports; got 3"),
        (lambda: torus([1, 4], B), "2 hosts or more"),
        (lambda: tree(0, 2, B), "depth 1 or more"),
        (lambda: leaf_spine(0, 1, 1, B, B), "at least 1"),
    ],
)
def test_what_is_no_network(make, says):
    with pytest.raises(ValueError, match=says):
        make()
