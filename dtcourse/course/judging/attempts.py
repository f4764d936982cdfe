"""What an answer reached for outside its own folder, told to the judge in words.

Nothing here keeps an answer from anything: bubblewrap does (bubblewrap.py). But an answer may swallow the error that it
met, and its author and the instructor should read of it. Each process of an answer in which Python runs a rank has an
audit hook (PEP 578), which cannot be taken off again, and writes a line for the judge. What a program started by the
answer does is not seen here.
"""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

from dtcourse.launch import again

VARIABLE = "DTCOURSE_ATTEMPTS"
LONGEST = 300  # characters of one line
MOST = 200  # lines of one process
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {
    "os.chmod": "change",
    "os.chown": "change",
    "os.link": "link to",
    "os.mkdir": "write to",
    "os.remove": "delete",
    "os.rename": "rename",
    "os.rmdir": "delete",
    "os.symlink": "write to",
    "os.truncate": "write to",
}
_ITSELF = ("", "localhost", "::1", "0.0.0.0", "::")
_watching = False


@dataclass
class Policy:
    """What is an answer's own, and what is not; in its environment, for each of its processes.

    own:     folders that it may write to
    private: folders of which it has nothing to read
    shown:   what it may read although it lies in one of those
    line:    the judge's end of the line, a path that its processes can open
    seen:    where bubblewrap shows this machine's files; all others are not there for it: none, where nothing is hidden
    """

    own: list[str]
    private: list[str]
    shown: list[str]
    line: str = ""
    seen: list[str] = field(default_factory=list)

    def publish(self) -> None:
        """Put it into this process's environment, which its ranks inherit."""
        os.environ[VARIABLE] = json.dumps(asdict(self))


def watch() -> None:
    """From now on, tell the judge what this process reaches for. Nothing, where there is no judge."""
    global _watching
    if _watching or VARIABLE not in os.environ:
        return
    try:
        policy = Policy(**json.loads(os.environ[VARIABLE]))
        line = os.open(policy.line, os.O_WRONLY | os.O_NONBLOCK)
    except (OSError, ValueError, TypeError):  # no /proc (macOS): it goes unsaid
        return
    _watching = True
    again.stays_open(line)
    said: set[str] = set()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        try:
            words = describe(event, arguments, policy)
            if words and words not in said and len(said) < MOST:
                said.add(words)
                os.write(line, (words[:LONGEST] + "\n").encode(errors="replace"))
        except Exception:  # an error here would become the answer's
            pass

    sys.addaudithook(hook)


def describe(event: str, arguments: tuple[Any, ...], policy: Policy) -> str:
    """What an audit event means where it reaches outside ("write to /etc/passwd"), else nothing."""
    if event == "open":
        path, _, flags = arguments
        if isinstance(flags, int) and flags & _WRITING:
            return _changing("write to", path, policy)
        return _reading("read", path, policy)
    if event in ("os.listdir", "os.scandir"):
        return _reading("list", arguments[0], policy)
    if event in _CHANGES:
        paths = arguments[:2] if event in ("os.rename", "os.link") else arguments[:1]
        if event == "os.symlink":
            paths = arguments[1:2]
        return next(filter(None, (_changing(_CHANGES[event], path, policy) for path in paths)), "")
    if event in ("socket.connect", "socket.sendto"):
        return _calling("connect to", arguments[1], policy)
    if event in ("socket.getaddrinfo", "socket.gethostbyname"):
        return _calling("look up", (arguments[0],), policy)
    return ""


def _changing(verb: str, path: Any, policy: Policy) -> str:
    where = _absolute(path)
    processes = _depth(where, ["/proc"]) and not _depth(where, ["/proc/sys"])
    if not where or processes or "__pycache__" in where:
        return ""
    own = _depth(where, [*policy.own, "/dev"])
    return "" if own > _depth(where, policy.private) else f"{verb} {where}"


def _reading(verb: str, path: Any, policy: Policy) -> str:
    where = _absolute(path)
    private = _depth(where, policy.private)
    if not private and policy.seen and not _on_the_way(where, policy):
        return f"{verb} {where}"
    if private <= _depth(where, [*policy.own, *policy.shown]) or where in sys.path:
        return ""  # what is in sys.path, every import looks through
    return f"{verb} {where}"


def _on_the_way(path: str, policy: Policy) -> bool:
    """Whether the path lies in what is shown, or is a folder on the way to it."""
    if _depth(path, policy.own):  # this machine's file of that name is another one
        return os.path.lexists(path)
    there = [*policy.seen, *policy.shown]
    return not path or bool(_depth(path, there)) or any(_depth(one, [path]) for one in there)


def refused(words: list[str], private: list[str]) -> list[str]:
    """Of what was told, what the answer did not get: a read is none where this machine has no such file either.

    words:   what `describe` made of them
    private: see Policy
    """

    def named(one: str) -> bool:
        verb, _, path = one.partition(" ")
        if verb not in ("read", "list") or _depth(path, private):
            return True
        return os.path.lexists(path)

    return list(filter(named, words))


def _calling(verb: str, address: Any, policy: Policy) -> str:
    if isinstance(address, (str, bytes)):  # a socket in the file system, or without a name there
        text = os.fsdecode(address)
        return "" if text.startswith("\0") else _changing(verb, text, policy)
    host = os.fsdecode(address[0]) if address and address[0] is not None else ""
    if host in _ITSELF or host.startswith("127.") or host == os.uname().nodename:
        return ""
    if verb == "look up" and re.fullmatch(r"[\d.]+|[\da-f:]*:[\da-f:.]*", host):
        return ""  # an address already: what is done with it comes next
    port = f":{address[1]}" if len(address) > 1 else ""
    return f"{verb} {host}{port}"


def _absolute(path: Any) -> str:
    """The path that is meant; nothing for an open file's number."""
    if path is None or isinstance(path, int):
        return ""
    return os.path.normpath(os.path.join(os.getcwd(), os.fsdecode(path)))


def _depth(path: str, folders: list[str]) -> int:
    """How long the name of the nearest of these folders is that the path lies in; 0: it lies in none."""
    inside = [one for one in folders if path == one or path.startswith(one.rstrip("/") + "/")]
    return max(map(len, inside), default=0)
