"""The template: a process split off from the fork server that has the course loaded, and splits off ranks in its turn.

Every rank would import the course's packages anew, which takes longer than to form its group. The fork server cannot
have them, since what it has once imported it keeps, and an edit of the course must be seen. So they are loaded in a
process that can be thrown away: when one of the course's files has changed, the template goes, ranks come from the
fork server itself again, importing what they use, and the next template loads meanwhile. Nobody ever waits for one.

To load the whole course, and to put it into large pages, takes two seconds beside launches that follow one another at
once. So the first template loads only what the notebook has loaded of the course and what its calls name, which takes
a moment; it serves until the second one, with all of it, is ready.

Linux alone has it. Elsewhere we could not count its threads (macOS starts some on its own), so ranks come from the
fork server, which is what multiprocessing does on macOS as well.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from importlib.machinery import PathFinder

import dtcourse
from dtcourse.launch import server
from dtcourse.launch.course_files import sources
from dtcourse.launch.template_process import Template

POSSIBLE = os.path.isdir("/proc/self/task")

_template: Template | None = None
_next: Template | None = None  # the one with the whole course, while it loads
_leaving: list[int] = []  # process ids of those that were let go
_named: set[str] = set()  # modules of the course that calls have named
_killed = 0
_serves = False  # what `refresh` last said
_follows_edits = True
_lock = threading.RLock()


def start_early() -> None:
    """Has a template made, without waiting for it, where there is none."""
    global _template
    with _lock, suppress(OSError):
        if POSSIBLE and _template is None:
            _template = Template(complete=False)


def note(modules: Iterable[str]) -> None:
    """Says what the call of a launch that follows names of the course."""
    with _lock:
        _named.update(modules)


def go_on() -> None:
    """Between a notebook's cells: what the last one has imported is loaded, and the next template begun."""
    with suppress(OSError):  # will be said at the next launch
        refresh()


def leave_edits_to_others() -> None:
    """From now on an edit of the course makes no new template: whoever sends us calls looks, and lets us go."""
    global _follows_edits
    _follows_edits = False


def refresh() -> bool:
    """Whether ranks can come from a template that is what the files are. One that is not goes, and the next is begun.

    To be asked before each launch. What depends on the last template is to be thrown away where the answer is no, and
    where `current` is another one now.
    """
    global _serves, _killed
    with _lock:
        _serves = False
        if _template is None:
            return False
        _template.look()
        if _template.is_ready and _template.is_complete:
            _killed = 0
        lost = _template.server_pid != server.ensure_running()
        edited = _follows_edits and _template.sources != sources()
        if lost or edited or _may_be_followed(_template):
            discard()
            start_early()
        if _template is None:
            return False
        _template.tell(_named)
        _complete_it()
        _serves = _template.is_ready and _is_what_a_rank_would_import()
        return _serves


def _complete_it() -> None:
    """Has one with the whole course made behind the first, and puts it in its place when it is ready."""
    global _template, _next
    if _template is None or _template.is_complete or not _template.is_ready:
        return
    if _next is not None:
        _next.look()
        if _next.is_ready:
            _let_go(_template)
            _template, _next = _next, None
            return
        if not _may_be_followed(_next):
            return
        _let_go(_next)
    _next = None
    with suppress(OSError):
        _next = Template(complete=True)


def _may_be_followed(one: Template) -> bool:
    """Whether it was killed, thrice in a row at most; one that would not serve is followed by none like it."""
    global _killed
    if not one.has_failed or one.process.exitcode in (0, None):
        return False
    _killed += 1
    return _killed <= 3


def _is_what_a_rank_would_import() -> bool:
    """False where sys.path has come to lead to another dtcourse than the one that runs here."""
    found = PathFinder.find_spec("dtcourse")
    return found is None or found.origin == dtcourse.__file__


def discard() -> None:
    """Lets go of the template, and of the next one."""
    global _template, _next
    with _lock:
        for one in _both():
            _let_go(one)
        _template = _next = None


def _let_go(one: Template) -> None:
    if (known := one.pid()) is not None:
        _leaving.append(known)
    one.close()


def connect(descriptors: list[int]) -> tuple[int, int]:
    """Asks the template for a child. ConnectionError where there is none to ask."""
    global _serves
    with _lock:
        if _template is None or not _serves:
            raise ConnectionRefusedError("there is no template")
        try:
            return _template.server.connect_to_new_process(descriptors)  # type: ignore[attr-defined]
        # with FileNotFoundError, its socket is gone from the folder of temporary files
        except OSError as error:
            _serves, _template.is_ready, _template.has_failed = False, False, True
            raise ConnectionRefusedError("the template does not answer") from error


def current() -> object:
    """The template that ranks come from, to be compared; None where there is none."""
    return _template


def pid() -> int | None:
    """The process id of the template that ranks come from, once the fork server has split it off."""
    with _lock:
        return None if _template is None else _template.pid()


def is_complete() -> bool:
    """Whether ranks come from a template that has the whole course."""
    with _lock:
        return _serves and _template is not None and _template.is_complete


def pids() -> set[int]:
    """The processes of the template, of the next one, and of those that end with their last ranks."""
    with _lock:
        _leaving[:] = [one for one in _leaving if os.path.exists(f"/proc/{one}")]
        return {known for one in _both() if (known := one.pid()) is not None} | {*_leaving}


def _both() -> list[Template]:
    return [one for one in (_template, _next) if one is not None]


def _forget() -> None:
    """In a process forked off this one: the templates are not its own."""
    global _template, _next, _lock
    for one in _both():
        one.forget()
    _template, _next, _lock = None, None, threading.RLock()
    _leaving.clear()


os.register_at_fork(after_in_child=_forget)
