"""What the notebook has set of logging and of warnings, for its ranks: `logging.basicConfig(level=logging.INFO)` or
`warnings.simplefilter("error")` in a cell holds in the functions that are launched after it.

Loggers have their levels in the ranks, and a handler where the notebook's writes to sys.stdout or sys.stderr: what it
writes comes back as a rank's printed lines do. A handler of another kind stays in the notebook, for ranks that wrote to
one file would mix their lines. A filter of warnings goes along unless its category is of a module that the rank has not
loaded.
"""

from __future__ import annotations

import logging
import pickle
import sys
import warnings
from dataclasses import dataclass
from typing import Any

from dtcourse.launch import serialization

# The beginnings of the names of PyTorch's loggers, to which it gives their handlers in each process.
_OF_PYTORCH = ("torch", "strobelight_")
# Action, message and module as patterns, the category by its module and name, line number.
Filter = tuple[str, str | None, tuple[str, str], str | None, int]


@dataclass(frozen=True)
class Handler:
    """A logging.StreamHandler of a logger, by what it writes to."""

    logger: str  # "" is the root
    stream: str  # "stdout" or "stderr"
    level: int
    formatter: serialization.Serialized | None


@dataclass(frozen=True)
class LogSettings:
    """As they are when a launch begins."""

    levels: dict[str, int]  # of loggers that have one of their own; "" is the root
    handlers: list[Handler]
    disabled: int  # logging.disable
    warnings_are_logged: bool  # logging.captureWarnings
    filters: list[Filter]  # of warnings, the first one that fits decides


def current() -> LogSettings:
    """Of this process."""
    loggers = {"": logging.getLogger()}
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger):
            loggers[name] = logger
    return LogSettings(
        levels={name: logger.level for name, logger in loggers.items() if logger.level},
        handlers=[found for name, logger in loggers.items() for found in _handlers(name, logger)],
        disabled=logging.root.manager.disable,
        warnings_are_logged=_warnings_are_logged(),
        filters=_filters(),
    )


def adopt(settings: LogSettings) -> None:
    """In a rank. What is so already stays as it is."""
    for name, level in settings.levels.items():
        logger = logging.getLogger(name or None)
        if logger.level != level:
            logger.setLevel(level)
    with_handlers = {
        handler.logger
        for handler in settings.handlers
        if logging.getLogger(handler.logger or None).handlers
    }
    for handler in settings.handlers:
        if handler.logger not in with_handlers:
            _add(handler)
    logging.disable(settings.disabled)
    if settings.warnings_are_logged != _warnings_are_logged():
        logging.captureWarnings(settings.warnings_are_logged)
    own = _filters()
    for action, message, (module, name), of_module, line in reversed(settings.filters):
        category = getattr(sys.modules.get(module), name, None)
        if category is not None and (action, message, (module, name), of_module, line) not in own:
            warnings.filterwarnings(action, message or "", category, of_module or "", line)  # type: ignore[arg-type]


def _handlers(name: str, logger: logging.Logger) -> list[Handler]:
    if name.startswith(_OF_PYTORCH):
        return []
    found = []
    for handler in logger.handlers:
        for stream in ("stdout", "stderr"):
            if type(handler) is logging.StreamHandler and handler.stream is getattr(sys, stream):
                found.append(Handler(name, stream, handler.level, _formatter(handler)))
    return found


def _formatter(handler: logging.Handler) -> serialization.Serialized | None:
    try:
        return None if handler.formatter is None else serialization.serialize(handler.formatter)
    except (
        Exception
    ):  # one that holds a lock or a file: lines in the usual form are better than none
        return None


def _add(described: Handler) -> None:
    handler = logging.StreamHandler(getattr(sys, described.stream))
    handler.setLevel(described.level)
    if described.formatter is not None:
        stream, buffers = described.formatter
        handler.setFormatter(pickle.loads(stream, buffers=buffers))
    logging.getLogger(described.logger or None).addHandler(handler)


def _filters() -> list[Filter]:
    filters: list[Any] = list(warnings.filters)
    return [
        (
            action,
            _pattern(message),
            (category.__module__, category.__qualname__),
            _pattern(module),
            line,
        )
        for action, message, category, module, line in filters
    ]


def _pattern(text: Any) -> str | None:
    """Of a compiled pattern, or of one of Python's own filters, which have a text there."""
    return text if text is None or isinstance(text, str) else str(text.pattern)


def _warnings_are_logged() -> bool:
    return getattr(warnings.showwarning, "__module__", "") == logging.__name__
