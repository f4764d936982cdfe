"""Keeping data ready: the next items are made in threads while the current one is used.

Without it a step takes data + compute; with it max(data, compute). Threads are for work that lets others run: waiting
for a disk or a network, decoding in compiled code, copying to a GPU. Python code that computes needs processes, which
are DataLoader's workers.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from dtcourse.emulation import clock as clocks
from dtcourse.emulation.clock import Clock, Lane

T = TypeVar("T")
_END = object()


class Prefetcher(Iterable[T]):
    """Makes the next `depth` items in the background while the current one is used, in the order of `items`.

    One thread goes through `items`; `transform` runs in `threads` others, so that several reads are under way at once.
    Memory: `depth` + 2 items. An exception in either is raised where the item would have come. Leaving the loop
    early ends the threads. On the virtual clock the threads are lanes: the same waiting,
    the same times on every machine.
    """

    def __init__(
        self,
        items: Iterable[Any],
        depth: int = 2,
        transform: Callable[[Any], T] = lambda item: item,
        threads: int = 1,
    ) -> None:
        if depth < 1:
            raise ValueError(f"depth is at least 1; got {depth}")
        if threads < 1:
            raise ValueError(f"threads is at least 1; got {threads}")
        self.items, self.depth, self.transform, self.threads = items, depth, transform, threads

    def __iter__(self) -> Iterator[T]:
        clock = clocks.installed()
        virtual = clock is not None and not clock.arrival_decides
        return self._in_lanes(clock) if clock is not None and virtual else self._in_threads()

    def _in_lanes(self, clock: Clock) -> Iterator[T]:
        """On the virtual clock. Each item goes to the lane that is free first, when there is room for it."""
        lanes = [Lane(f"reader {number}") for number in range(self.threads)]
        items = iter(self.items)
        ready: deque[tuple[Future[T], float]] = deque()
        while True:
            asked = clock.now()
            while len(ready) < self.depth + 2:
                made: Future[T] = Future()
                lane = min(lanes, key=lambda one: one.time)
                try:
                    item = next(items, _END)
                    if item is _END:
                        break
                    with clock.on(lane, asked):
                        made.set_result(self.transform(item))
                except BaseException as error:
                    made.set_exception(error)
                ready.append((made, lane.time))
            if not ready:
                return
            made, moment = ready.popleft()
            clock.wait_until(moment, asked)
            yield made.result()

    def _in_threads(self) -> Iterator[T]:
        ready: queue.Queue[Future[T] | None] = queue.Queue(self.depth)
        stopped = threading.Event()

        def put(item: Future[T] | None) -> bool:
            while not stopped.is_set():
                try:
                    ready.put(item, timeout=0.05)
                    return True
                except queue.Full:
                    continue
            return False

        def feed(pool: ThreadPoolExecutor) -> None:
            try:
                for item in self.items:
                    if not put(pool.submit(self.transform, item)):
                        return
                put(None)
            except BaseException as error:
                failed: Future[T] = Future()
                failed.set_exception(error)
                put(failed)

        pool = ThreadPoolExecutor(self.threads, thread_name_prefix="dtcourse-prefetch")
        feeder = threading.Thread(target=feed, args=(pool,), daemon=True)
        feeder.start()
        try:
            while (item := ready.get()) is not None:
                yield item.result()
        finally:
            stopped.set()
            feeder.join()
            pool.shutdown(cancel_futures=True)
