"""What ranks share in fewer, larger pages: to split a rank off and to end it costs by the page.

A template holds 240 MB that all its ranks share: 60,000 pages of 4 KB, each of which is entered in a rank's table when
it is split off, and struck from it when it ends. The kernel can put 512 of them into one of 2 MB, where it finds room;
a rank that writes to one copies 4 KB of it, as before.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator

SIZE = 2 << 20  # on x86; elsewhere the kernel refuses, or gathers in sizes of its own
_COLLAPSE = 25  # MADV_COLLAPSE of Linux 6.1: now, and whatever /sys/kernel/mm/transparent_hugepage says of new memory
_LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p 00000000 00:00 0 *(\[heap\])?$")


def gather() -> None:
    """Has this process's heap lie in huge pages, as far as the kernel can. Takes a copy of what it shared till then."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for begin, end in list(_heaps()):
        madvise(begin, end - begin, _COLLAPSE)  # what it answers changes nothing for us


def _heaps() -> Iterator[tuple[int, int]]:
    """(begin, end) of this process's memory that is no file's, in whole huge pages."""
    with open("/proc/self/maps") as file:
        for line in file:
            if found := _LINE.match(line):
                begin = -(-int(found[1], 16) // SIZE) * SIZE
                end = int(found[2], 16) // SIZE * SIZE
                if begin < end:
                    yield begin, end
