"""Log lines of recyclec and recycle-run: one line per event, with time, host, worker, generation and step.

    2026-01-07T12:00:01.234Z INFO host=node3 worker=1:2 generation=4 step=17 recycle_runtime.agent: started

`-` stands for what is not known. Worker, generation and step belong to the process, which `note` tells them;
a line about another worker says so with `extra={"worker": "0:1"}`. Standard library only.

Without `--log-level` and `--log-file`, warnings go to stderr, where users see them between the other output.
So a failure that the job survives is logged as INFO, and a WARNING is for what needs attention.
"""

import contextlib
import logging
import socket
import sys
import time
from dataclasses import dataclass, replace

LEVELS = ("debug", "info", "warning", "error")
LOGGERS = ("recycle_compiler", "recycle_runtime")
_HOST = socket.gethostname()
_UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class LogContext:
    """Fields of this process in every log line."""

    worker: str | None = None
    """`pipeline:stage`."""
    generation: int | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class LogSettings:
    """As the command line gives them; None is the default."""

    level: str | None = None
    file: str | None = None

    def options(self) -> list[str]:
        """The options that give a child process the same settings."""
        level = [] if self.level is None else ["--log-level", self.level]
        return level if self.file is None else [*level, "--log-file", self.file]


_context = LogContext()
_settings = LogSettings()


def note(*, worker: str | None = None, generation: int | None = None, step: int | None = None) -> None:
    """From now on lines of this process have these fields; what is left out stays as it is."""
    global _context
    given = {"worker": worker, "generation": generation, "step": step}
    # The context is of the process and not of a thread: a worker's threads all speak for it.
    _context = replace(_context, **{name: value for name, value in given.items() if value is not None})


def forget_note() -> None:
    """As at the start of a process; for one that has been forked from another's."""
    global _context
    _context = LogContext()


def settings() -> LogSettings:
    """Settings that were configured last."""
    return _settings


def configure(level: str | None = None, file: str | None = None, *, quiet: bool = False) -> None:
    """Send the lines of both packages to a file, which is appended to, or else to stderr.

    OSError if the file cannot be opened.
    """
    global _settings
    handler = _LogFile(file, encoding="utf-8") if file is not None else _Stderr()
    handler.setFormatter(LineFormatter())
    _settings = LogSettings(level, file)
    usual = "info" if file is not None else "error" if quiet else "warning"
    for name in LOGGERS:
        logger = logging.getLogger(name)
        for old in list(logger.handlers):
            logger.removeHandler(old)
            old.close()
        logger.addHandler(handler)
        logger.setLevel((level or usual).upper())
        logger.propagate = False


class LineFormatter(logging.Formatter):
    """One event, one line; a traceback is put into it with its line ends escaped."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = " ".join(f"{name}={_field(record, name)}" for name in ("worker", "generation", "step"))
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        text = text.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n") if "\n" in text else text
        return f"{at}.{int(record.msecs):03}Z {record.levelname} host={_HOST} {fields} {record.name}: {text}"


class _Stderr(logging.StreamHandler):  # pyright: ignore[reportMissingTypeArgument]
    """Writes to what stderr is at that time; one that cannot be written to is no error."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        pass


class _LogFile(logging.FileHandler):
    """Log file whose write errors are reported once, on stderr: a full disk ends no job for its log."""

    _is_told = False

    def close(self) -> None:
        # It tries once more to write what could not be written.
        with contextlib.suppress(OSError):
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        error = sys.exc_info()[1]
        if self._is_told or not isinstance(error, OSError):
            return
        self._is_told = True
        why = (error.strerror or str(error)).lower()
        with contextlib.suppress(OSError, ValueError):
            print(f"warning: cannot write {self.baseFilename}: {why}; the log has gaps", file=sys.stderr)


def _field(record: logging.LogRecord, name: str) -> object:
    value = getattr(record, name, None)
    if value is None:
        value = getattr(_context, name)
    return _UNKNOWN if value is None else value
