"""What a power cut may leave on the disk, from the record of what a program did: the operations of checkpoint/files.py.

    record = []
    with files.watched(record.append):
        save()
    for cut in range(len(record) + 1):
        for left in outcomes(record[:cut], top, seed=cut):
            write_to(empty_folder, left)            # and then: what would a resumed run find?

The rules are those that POSIX promises, and no more. What a file holds is certain up to its last fsync; each later
write may have arrived, or not, or by half, whatever became of the others. Which names a folder has is certain up to the
folder's last fsync; each later new name, rename and removal may have arrived or not. Common file systems promise more
(ext4 writes names in order), and a program that relies on it loses data on the others.

Source: Pillai et al., All File Systems Are Not Created Equal (OSDI 2014), whose tool records system calls, as here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dtcourse.checkpoint.files import Operation

SMALL = 6  # so many uncertain things: all their subsets are tried
DRAWN = 24  # of more of them, so many subsets besides the usual suspects


@dataclass
class _File:
    data: bytes = b""  # on the disk
    later: list[bytes] = field(default_factory=list)  # written, perhaps on the disk


@dataclass
class _Names:
    """Of a folder: what is in it by name; and changes of it that are perhaps on the disk, each (name, new content)."""

    inside: dict[str, _File | _Names] = field(default_factory=dict)
    later: list[list[tuple[str, _File | _Names | None]]] = field(default_factory=list)
    now: dict[str, _File | _Names] = field(default_factory=dict)  # as running programs see it

    def change(self, *changes: tuple[str, _File | _Names | None]) -> None:
        """All of them at once, or none: as a rename is."""
        self.later.append(list(changes))
        _apply(self.now, list(changes))


def _apply(
    inside: dict[str, _File | _Names], changes: list[tuple[str, _File | _Names | None]]
) -> None:
    for name, new in changes:
        if new is None:
            inside.pop(name, None)
        else:
            inside[name] = new


# What one power cut has left: a folder's names, each with a file's bytes or with another such folder.
Left = Mapping[str, "bytes | Left"]


def write_to(folder: Path, left: Left) -> None:
    """Makes it real, in an empty folder, which stands for the top of the disk."""
    for name, what in left.items():
        if isinstance(what, bytes):
            (folder / name).write_bytes(what)
        else:
            (folder / name).mkdir()
            write_to(folder / name, what)


def _left(names: _Names, kept: frozenset[tuple[int, int]]) -> Left:
    inside = dict(names.inside)
    for number, changes in enumerate(names.later):
        if (id(names), number) in kept:
            _apply(inside, changes)
    return {
        name: _left(what, kept) if isinstance(what, _Names) else what.data + _later(what, kept)
        for name, what in sorted(inside.items())
    }


def _later(file: _File, kept: frozenset[tuple[int, int]]) -> bytes:
    parts = []
    for number, data in enumerate(file.later):
        if (id(file), number) in kept:
            parts.append(data)
        elif any((id(file), after) in kept for after in range(number, len(file.later))):
            parts.append(bytes(len(data)))  # a later one is there: a hole, which reads as zeros
        else:  # of the first that is not there, half
            parts.append(data[: len(data) // 2])
            break
    return b"".join(parts)


def outcomes(
    record: Sequence[Operation], top: Path, before: Path | None = None, seed: int = 0
) -> Iterator[Left]:
    """What may be left below `top` when the power is cut after these operations, which took place there.

    before: a folder that holds what was on the disk at their beginning

    All subsets of what is uncertain are tried where it is little; else none of it, all, each thing alone, all but each,
    and some drawn by the seed. Each outcome comes once.
    """
    root = _replayed(record, top, _read(before) if before else _Names())
    uncertain = list(_uncertain(root))
    seen = []
    for kept in _subsets(uncertain, random.Random(seed)):
        left = _left(root, frozenset(kept))
        if left not in seen:
            seen.append(left)
            yield left


def arrived(record: Sequence[Operation], top: Path) -> Left:
    """What is below `top`, empty at first, where all has arrived: as running programs see it, and after a kill."""
    root = _replayed(record, top, _Names())
    return _left(root, frozenset(_uncertain(root)))


def _replayed(record: Sequence[Operation], top: Path, root: _Names) -> _Names:
    def find(path: Path) -> _File | _Names:
        found: _File | _Names = root
        for part in path.relative_to(top).parts:
            assert isinstance(found, _Names)
            found = found.now[part]
        return found

    for operation in record:
        path = operation.path
        if operation.kind in ("fsync folder", "fsync"):
            synced = find(path)
            if isinstance(synced, _Names):
                synced.inside, synced.later = dict(synced.now), []
            else:
                synced.data, synced.later = synced.data + b"".join(synced.later), []
        elif operation.kind == "write":
            written = find(path)
            assert isinstance(written, _File)
            written.later.append(operation.data)
        else:
            parent = find(path.parent)
            assert isinstance(parent, _Names)
            if operation.kind == "make folder":
                if path.name not in parent.now:
                    parent.change((path.name, _Names()))
            elif operation.kind == "create":
                parent.change((path.name, _File()))
            elif operation.kind == "rename":
                assert operation.target is not None
                assert operation.target.parent == path.parent
                parent.change((path.name, None), (operation.target.name, find(path)))
            else:  # remove, remove folder
                parent.change((path.name, None))
    return root


def _read(folder: Path) -> _Names:
    names = _Names()
    for path in folder.iterdir():
        names.inside[path.name] = _read(path) if path.is_dir() else _File(path.read_bytes())
    names.now = dict(names.inside)
    return names


def _uncertain(root: _Names) -> Iterator[tuple[int, int]]:
    """Each change and each write that may have arrived or not: (whose, its number)."""
    seen: set[int] = set()
    pending: list[_File | _Names] = [root]
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield from ((id(one), number) for number in range(len(one.later)))
        if isinstance(one, _Names):
            pending += one.inside.values()
            pending += [new for changes in one.later for _, new in changes if new is not None]


def _subsets(things: list[tuple[int, int]], draw: random.Random) -> Iterator[list[tuple[int, int]]]:
    if len(things) <= SMALL:
        for number in range(1 << len(things)):
            yield [thing for place, thing in enumerate(things) if number >> place & 1]
        return
    yield []
    yield things
    for thing in things:
        yield [thing]
        yield [other for other in things if other != thing]
    for _ in range(DRAWN):
        yield [thing for thing in things if draw.random() < 0.5]
