"""Ranks that cannot look into one another, for a launch of code that nobody trusts (distrust.py).

    apart.keep_ranks_apart()    # before the ranks' server starts

They are one user's processes, so the system lets each of them read and write the others' memory: what another rank
alone was given, and what it counts. Landlock (landlock(7), Linux 5.19 and later, where the system's maker has turned it
on) puts each rank into a domain of its own, from its first line on: it opens nothing of a process outside that. Who is
outside may look in as before, since whoever launches the ranks sees by that where they stand still (deadlock.py).
"""

from __future__ import annotations

import ctypes
import os
import sys

_VARIABLE = "DTCOURSE_RANKS_APART"  # in the environment that the server starts with, so in each rank's first one

# linux/landlock.h; the numbers of system calls are the same on all processors
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1  # a flag: say which version there is
_PATH_BENEATH = 1  # a kind of rule
_REFER = 1 << 13  # to move a file to another folder; from version 2 on
_PR_SET_NO_NEW_PRIVS = 38


class _RulesetAttr(ctypes.Structure):
    _fields_ = [("handled_access_fs", ctypes.c_uint64)]


class _PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def possible() -> bool:
    """Whether this system can keep ranks apart."""
    if sys.platform != "linux":
        return False
    version = ctypes.CDLL(None).syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    return bool(version >= 2)  # the first version forbids to move files, whatever its rules say


def keep_ranks_apart() -> None:
    """From the next server on. Nothing happens where the system cannot do it."""
    if possible():
        os.environ[_VARIABLE] = "1"


def close_if_asked() -> None:
    """In a rank, while it has one thread, which this binds with all that it starts. OSError where that fails."""
    if _VARIABLE not in os.environ:
        return
    libc = ctypes.CDLL(None, use_errno=True)

    def call(function: str, *arguments: object) -> int:
        got = int(getattr(libc, function)(*arguments))
        if got < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{function}{arguments[:1]}: {os.strerror(number)}")
        return got

    # A domain has to have rules. This one's only rule allows all that it names: to move files, everywhere.
    ruleset = _RulesetAttr(_REFER)
    rules = call("syscall", _CREATE_RULESET, ctypes.byref(ruleset), ctypes.sizeof(ruleset), 0)
    root = os.open("/", os.O_PATH | os.O_CLOEXEC)
    everywhere = _PathBeneathAttr(_REFER, root)
    call("syscall", _ADD_RULE, rules, _PATH_BENEATH, ctypes.byref(everywhere), 0)
    call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call("syscall", _RESTRICT_SELF, rules, 0)
    os.close(root)
    os.close(rules)
