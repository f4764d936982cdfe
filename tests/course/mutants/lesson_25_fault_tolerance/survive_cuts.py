"""Answers to survive_cuts: see test_exercises.py."""

_SWEEP = "    if aside.exists():  # of a save that was killed\n        files.remove_folder(aside)\n"
_FOLDERS = "    for folder in [*(path for path in inside if path.is_dir()), aside]:\n        files.sync_folder(folder)\n"
_AGAIN = "    if final.exists():  # damaged, since training has come by here before\n        files.remove_folder(final)\n"
_RENAME = "    files.rename(aside, final)\n"
_SYNC = "    files.sync_folder(root)\n"
_OLD = '    for old in sorted(root.glob("step-*"))[:-2]:\n        files.remove_folder(old)\n'
_WHOLE = "        if now == sums:\n"
_READ = "            now = {name: zlib.crc32((folder / name).read_bytes()) for name in sums}\n"

_BY_LISTS = """
import hashlib
import os
from pathlib import Path

from dtcourse.checkpoint import files


def digests(folder):
    found = []
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            if name != "LIST":
                found.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()} {path.relative_to(folder)}")
    return "\\n".join(sorted(found))


def save_all(root, step, write):
    for left in root.glob("tmp*"):
        files.remove_folder(left)
    aside = root / f"tmp{step}"
    files.make_folder(aside)
    write(aside)
    said = digests(aside)
    files.write_bytes(aside / "LIST", f"{said}\\n{hashlib.sha256(said.encode()).hexdigest()}".encode())
    for place, _, _ in os.walk(aside, topdown=False):
        files.sync_folder(Path(place))
    if (root / f"{step}.whole").exists():
        files.remove_folder(root / f"{step}.whole")
    files.rename(aside, root / f"{step}.whole")
    files.sync_folder(root)
    kept = sorted(root.glob("*.whole"), key=lambda folder: int(folder.stem))
    for old in kept[:-2]:
        files.rename(old, root / f"tmp{old.stem}")
        files.sync_folder(root)
        files.remove_folder(root / f"tmp{old.stem}")


def newest_whole(root):
    found = None
    for folder in sorted(root.glob("*.whole"), key=lambda folder: int(folder.stem)):
        try:
            said, _, check = (folder / "LIST").read_bytes().decode().rpartition("\\n")
        except (OSError, UnicodeDecodeError):
            continue
        if said and said == digests(folder) and check == hashlib.sha256(said.encode()).hexdigest():
            found = int(folder.stem), folder
    return found
"""

_IN_PLACE = """
import zlib

from dtcourse.checkpoint import files


def save_all(root, step, write):
    folder = root / f"step-{step:08d}"
    if folder.exists():
        files.remove_folder(folder)
    files.make_folder(folder)
    write(folder)
    inside = sorted(folder.rglob("*"))
    for one in [*(path for path in inside if path.is_dir()), folder]:
        files.sync_folder(one)
    files.sync_folder(root)
    lines = [f"{zlib.adler32(p.read_bytes())} {p.relative_to(folder)}" for p in inside if p.is_file()]
    # The name is there from the beginning; the mark alone says that it counts.
    files.write_bytes(folder / "mark", "\\n".join(lines).encode())
    files.sync_folder(folder)
    for old in sorted(root.glob("step-*"))[:-2]:
        files.remove_folder(old)


def newest_whole(root):
    for folder in sorted(root.glob("step-*"), reverse=True):
        try:
            for line in (folder / "mark").read_text().splitlines():
                value, name = line.split(" ", 1)
                if zlib.adler32((folder / name).read_bytes()) != int(value):
                    raise ValueError(name)
        except (OSError, ValueError):
            continue
        return int(folder.name[5:]), folder
    return None
"""

_LESSON = '''
from dtcourse.checkpoint import files


def save_all(root, step, write):
    """The lesson's: one folder, under one name."""
    if (root / "new").exists():
        files.remove_folder(root / "new")
    files.make_folder(root / "new")
    write(root / "new")
    if (root / "old").exists():
        files.remove_folder(root / "old")
    if (root / "checkpoint").exists():
        files.rename(root / "checkpoint", root / "old")
    files.rename(root / "new", root / "checkpoint")
    files.sync_folder(root)


def newest_whole(root):
    for folder in (root / "checkpoint", root / "old"):
        if (folder / "random").exists():
            return int((folder / "random").read_bytes()[18:22]), folder
    return None
'''

MUTANTS = [
    ("the folders' names are not synced", "What makes certain", ((_FOLDERS, ""),)),
    ("the lesson's cell, with a folder", "What makes certain", _LESSON),
    ("the new name is not synced", "What makes certain", ((_SYNC, ""),)),
    ("only the outer folder is synced", "What makes certain", (("[*(path for path in inside if path.is_dir()), aside]", "[aside]"),)),
    ("a killed save is in the way", "What has the killed save left behind", ((_SWEEP, ""),)),
    ("the old one goes first", "Is there a moment at which the old one is gone", ((_OLD, ""), (_RENAME, _OLD.replace("[:-2]", "") + _RENAME))),
    ("all stay", "the newest 2 are to stay", ((_OLD, ""),)),
    ("one stays", "the newest 2 are to stay", (("[:-2]", "[:-1]"),)),
    ("checksums are not compared", "What could say that these are not the bytes", ((_WHOLE, "        if now:\n"),)),
    ("sizes are compared alone", "What could say that these are not the bytes", ((_READ, "            now = {name: len((folder / name).read_bytes()) for name in sums}\n"), ("path.relative_to(aside).as_posix(): zlib.crc32(path.read_bytes())", "path.relative_to(aside).as_posix(): len(path.read_bytes())"))),
    ("folders in the order of their text", "After the save of step 1000", (('f"step-{step:08d}"', 'f"step-{step}"'),)),
    ("the first start dies", "A first start looks, too", (('    for folder in sorted(root.glob("step-*"), reverse=True):\n', '    if not any(root.iterdir()):\n        raise FileNotFoundError(root)\n    for folder in sorted(root.glob("step-*"), reverse=True):\n'),)),
    ("a damaged one is in the way", "What stands in the way of the new one", ((_AGAIN, ""),)),
    ("past the door", "past dtcourse.checkpoint.files", ((_RENAME, "    aside.rename(final)\n"),)),
    ("the course's", "asks you to write that yourself", ((_SWEEP, "    from dtcourse.fault_tolerance import folders\n\n    folders.sweep(root)\n" + _SWEEP),)),
]  # fmt: skip
NAMED = "the new name is not synced"

NOTHING = [
    (
        "nothing",
        "\ndef save_all(root, step, write):\n    pass\n\n\ndef newest_whole(root):\n    return None\n",
    ),
    (
        "the step alone",
        "\ndef save_all(root, step, write):\n    (root / str(step)).mkdir()\n\n\n"
        "def newest_whole(root):\n    step = max(int(path.name) for path in root.iterdir())\n"
        "    return step, root / str(step)\n",
    ),
]

ACCEPTED = [
    ("lists of digests, old ones renamed before they go", _BY_LISTS),
    ("in place, and a mark at the end", _IN_PLACE),
]
