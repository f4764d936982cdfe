"""A process that trusts its ranks with nothing reads what they send as data."""

import subprocess
import sys
import textwrap

import pytest

from dtcourse.launch import distrust, serialization


def alone(code: str) -> str:
    """What a script prints that launches in a process of its own: there is no way back from distrust.begin()."""
    text = "from dtcourse.launch import RankFailure, distrust, launch\n" + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def as_data(thing):
    stream, buffers = serialization.serialize(thing)
    return distrust._loads(stream, buffers=buffers)


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """(what an honest rank's launches say, what a bomb's do, where the bomb's folder would be)."""
    bomb = tmp_path_factory.mktemp("distrust") / "bomb"
    lines = alone(f"""
        import os
        import torch
        from dtcourse.collectives import ring
        from dtcourse.emulation import EmulatedNetwork

        def step():
            import torch.distributed as dist
            from dtcourse.collectives import ring
            tensor = torch.arange(8.0)
            ring.all_reduce(tensor)
            return tensor, [dist.get_rank(), None, 1.5, "a"], {{"b": torch.ones(2, dtype=torch.bfloat16)}}

        def told():
            run = launch(step, 2, record=True, network=EmulatedNetwork(1e-3, 1e6), clock="virtual")
            events = sorted((e.rank, e.name, e.start, e.end, e.bytes) for e in run.timeline.events)
            return repr((list(run), run.traffic.bytes_sent(), events, run.emulated_seconds))

        first = told()
        distrust.begin()
        print(told() == first, "tensor([ 0.,  2." in first)

        class Bomb:
            def __reduce__(self):
                return os.mkdir, ({str(bomb)!r},)
        def fails(fails):
            if fails:
                raise ValueError("a sentence")
            return [1, Bomb(), print]
        print([type(one).__name__ for one in launch(fails, 1, False)[0]])
        try:
            launch(fails, 1, True)
        except RankFailure as error:
            print(error.failures[0].summary, type(error.__cause__).__name__)
    """).splitlines()
    return lines[0], lines[1:], bomb


def test_what_an_honest_rank_sends_arrives_as_ever(said):
    """Values, bytes counted, events and emulated times; the ranks meet although nobody can look in."""
    honest, _, _ = said
    assert honest.split() == ["True", "True"]


def test_what_a_rank_sends_calls_nothing(said):
    _, bombs, folder = said
    assert bombs == ["['int', 'Foreign', 'type']", "raised ValueError: a sentence Foreign"]
    assert not folder.exists()


def test_a_message_changes_nothing_that_the_next_one_meets():
    """A pickle can set attributes of a class or a function that it names."""
    from dtcourse.collectives.counted import Row

    # the class, then BUILD with (None, {"bytes": "wrong"})
    attack = b"\x80\x04cdtcourse.collectives.counted\nRow\nN}\x8c\x05bytes\x8c\x05wrongs\x86b."
    assert distrust._loads(attack).bytes == "wrong", "the attack is one"
    row = Row(0, "send", "", "sent", 1, 1, 8, "")
    assert (row.bytes, as_data(row).bytes) == (8, 8)


def test_a_header_names_nothing():
    from multiprocessing import Pipe

    ours, theirs = Pipe()
    theirs.send_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(Exception, match=r"a payload's header names os\.system"):
        serialization.receive(ours)


def test_a_name_of_torchs_that_is_imported_when_it_is_asked_for_is_not(monkeypatch):
    import torch

    monkeypatch.setattr(torch, "__getattr__", lambda name: pytest.fail(f"torch imports {name}"))
    assert issubclass(distrust._loads(b"\x80\x04ctorch\n_inductor_of_tests\n."), distrust.Foreign)
    assert distrust._loads(b"\x80\x04ctorch\nbfloat16\n.") is torch.bfloat16
