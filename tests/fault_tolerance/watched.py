"""Ranks that train and beat, and one that meets with something."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time

import torch
import torch.distributed as dist

from dtcourse.fault_tolerance.watching import Heartbeat, Watcher

VICTIM, STEP = 1, 4  # which rank, and after which step it happens
INTERVAL, FLOOR = 0.25, 4.0  # a busy machine takes a second for a step of 20 ms


def spins(_pair, _watch):
    while True:
        pass


def sleeps(_pair, _watch):
    time.sleep(600)


def holds_the_lock(_pair, watch):
    """Compiled code that keeps Python's lock: no other thread of this rank runs, and so none beats."""
    # A beat has told of the steps: before a first one nothing is called a hang.
    before = watch.beat().number
    while watch.beat().number < before + 2:
        time.sleep(0.01)
    ctypes.PyDLL(None).sleep(600)


def calls_alone(pair, _watch):
    dist.all_reduce(torch.ones(1), group=pair)


def nothing(_pair, _watch):
    """What happens comes from outside."""


HAPPENS = {f.__name__: f for f in (spins, sleeps, holds_the_lock, calls_alone, nothing)}


def train(where, what, steps=None):
    """Steps until somebody ends it, or so many."""
    pair = dist.new_group([0, VICTIM])
    with Heartbeat(where, interval=INTERVAL, floor=FLOOR) as watch:
        step = 0
        while steps is None or step < steps:
            dist.all_reduce(torch.ones(8))
            time.sleep(0.02)
            watch.step(step := step + 1)
            if step == STEP and dist.get_rank() == VICTIM:
                HAPPENS[what](pair, watch)


def watched_from_within():
    """Under torchrun: rank 0 watches, too, over the store that is there. Ends all when it knows."""

    def watch():
        look = Watcher(None, dist.get_world_size()).wait(120)
        print(f"seen: {[fault.rank for fault in look.reasons]} {look}", flush=True)
        os._exit(7)

    if dist.get_rank() == 0:
        threading.Thread(target=watch, daemon=True).start()
    train(None, "spins")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    watched_from_within()
    sys.exit("it has not ended")
