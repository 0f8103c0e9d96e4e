"""Every error that Lakefeed raises, with its retry policy and the operator's remedy.

    LakefeedError
    ├── ConfigError                 the configuration is wrong                          never retried, exit 2
    ├── StateError                  the state of the object does not allow the call
    ├── CheckpointError             a checkpoint cannot be used
    │   ├── CheckpointDamagedError  its file does not parse or fails its checksum
    │   └── CheckpointRewindError   it would move progress back, or to another source
    ├── SourceError                 the database side
    │   ├── SourceUnavailableError  cannot be reached or is locked right now            retried
    │   ├── SourceSetupError        an object or a privilege is missing
    │   ├── SourceChangedError      this is not the database that the pipeline belongs to
    │   ├── PositionLostError       the source no longer has what comes after the pipeline's position
    │   └── DecodeError             bytes or values that the decoder does not understand
    ├── JournalError                the durable change sets
    │   ├── JournalDamagedError     a file is torn, missing or fails its checksum
    │   ├── JournalFullError        no room left to write                               retried
    │   ├── StorageUnavailableError the object store does not answer, or refuses for now      retried
    │   └── LeaseError              another writer owns the pipeline
    │       └── LeaseLostError      another writer took over, or may have: open the journal again    retried
    ├── HangError                   a thread of ``run`` shows no sign of life
    ├── LakeError                   the Spark side
    │   ├── SparkSetupError         no Java, no jars, a session that cannot work
    │   ├── CommitFailedError       the commit did not happen                           retried
    │   └── CommitUnknownError      the commit may have happened: read back, then decide retried
    └── TableStoppedError           one table cannot go on; the others do
        └── RebuildNeededError      it can go on after another copy, which the flow makes

Rules. A remedy says what a person does; whoever retries an error says so: `run`, the listener, ``status``. A driver's
error is mapped once, at the boundary, with ``raise … from``. "Failed" and "unknown" are different classes because they
are handled differently. All classes can be pickled, because Spark tasks raise them too.
"""

from __future__ import annotations

import re
from dataclasses import replace
from enum import Enum
from typing import Any, ClassVar, TypeVar


class Retry(Enum):
    """What a retry wrapper does with an error of this class."""

    NEVER = "never"
    BACKOFF = "backoff"


IN_CONFIGURATION = "in the configuration"
"""Replaced by the name of the configuration file, if there is one."""
_NAMES = "check|plan|sync|run|status|dashboard|journal|verify|repair|resnapshot|rebuild|diff|maintain|uninstall"
_COMMAND = re.compile(rf"\blakefeed ({_NAMES})(?: FILE\b|(?=[`.,;:]|$))")
"""A command in a message. The library does not know the configuration file: it writes FILE, or the bare command."""
_CALL = re.compile(
    r"\blakefeed (?:(check|plan|sync|run|status|maintain|uninstall)(?: FILE\b(?! --)|(?=[`.,;:]|$))"
    r"|(rebuild|diff) FILE (\w++(?:\.\w++)*+)( --from-source)?+(?! --))"
)
_SIGNATURE = re.compile(r"(\bsig=)[^&\s'\"…]+", re.IGNORECASE)
_Told = TypeVar("_Told")
_METHODS = {"sync": "sync_once", "diff": "full_diff"}


def without_signature(text: str) -> str:
    """A message without the signatures of SAS tokens: libraries put whole addresses into their errors."""
    return _SIGNATURE.sub(r"\1…", text)


def with_file(text: str, file: str) -> str:
    """A message with the user's own file name in its commands."""
    return _COMMAND.sub(lambda match: f"lakefeed {match[1]} {file}", text.replace(IN_CONFIGURATION, f"in {file}"))


def in_python(text: str) -> str:
    """A message for a pipeline without a file: commands become method calls where there is such a method."""

    def call(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        given = [*([f'"{match[3]}"'] if match[3] else []), *(["from_source=True"] if match[4] else [])]
        return f"pipeline.{_METHODS.get(name, name)}({', '.join(given)})"

    return _CALL.sub(call, text.replace("lakefeed check FILE --sql", "pipeline.check()"))


def for_reader(text: str, file: str | None) -> str:
    """A message for whoever works with a pipeline: ``file`` is as in ``LakefeedError``."""
    if file is None:
        return text
    return with_file(text, file) if file else in_python(text)


def told(one: _Told, file: str | None) -> _Told:
    """A result, status or finding whose sentences are for the reader that ``file`` says, as those of errors are."""
    found: dict[str, Any] = {name: getattr(one, name, None) for name in ("problem", "error", "reason", "remedy")}
    texts = {name: for_reader(text, file) for name, text in found.items() if isinstance(text, str)}
    changed = {name: text for name, text in texts.items() if text != found[name]}  # an SQL statement keeps its type
    return replace(one, **changed) if changed else one  # type: ignore[type-var]  # a dataclass, whichever


class LakefeedError(Exception):
    """Base of all errors. ``message`` says what is wrong, ``remedy`` what the operator does; ``str`` has both.

    ``file`` is the configuration file of the pipeline that raised the error; ``str`` puts it into commands. If it is
    empty, there is no file, and ``str`` names method calls. If it is None, the text stays as it is, with FILE.
    """

    file: str | None = None
    retry: ClassVar[Retry] = Retry.NEVER
    exit_code: ClassVar[int] = 3
    default_remedy: ClassVar[str] = "See the message; nothing was lost, and the command can be run again."

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        message = without_signature(message)
        super().__init__(message)
        self.message = message
        self.remedy = remedy or self.default_remedy

    def __str__(self) -> str:
        return for_reader(f"{self.message}\nRemedy: {self.remedy}", self.file)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.remedy))


def _rebuild(kind: type[LakefeedError], message: str, remedy: str) -> LakefeedError:
    return kind(message, remedy=remedy)


_KEY = re.compile(r"(?:source|lake|sync|journal|maintenance)\.\w+(?:\.\w+)*")


class ConfigError(LakefeedError):
    """The default remedy is to correct the key that the message begins with."""

    exit_code = 2
    default_remedy = "Correct the configuration; `lakefeed init` writes a commented one."

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        key = _KEY.match(message)
        super().__init__(message, remedy=remedy or (f"Correct {key[0]} {IN_CONFIGURATION}." if key else None))


class StateError(LakefeedError):
    """``str`` is only the message: the caller is a program, not an operator, and may compare it."""

    default_remedy = "Call the methods in the order start, poll, commit, stop."

    def __str__(self) -> str:
        return self.message


class CheckpointError(LakefeedError):
    default_remedy = "Inspect the checkpoint that the message names."


class CheckpointDamagedError(CheckpointError):
    default_remedy = "Restore the file from a backup, or delete it on purpose to start that stream from the beginning."


class CheckpointRewindError(CheckpointError):
    default_remedy = "Delete the checkpoint on purpose if the stream really should restart from an earlier position."


class SourceError(LakefeedError):
    default_remedy = "Run `lakefeed check` against the source."


class SourceUnavailableError(SourceError):
    retry = Retry.BACKOFF
    default_remedy = "Check that the database is up, can be reached from here and is not locked."


class SourceSetupError(SourceError):
    default_remedy = "Run `lakefeed check`, which prints the statement that repairs it."


class SourceChangedError(SourceError):
    default_remedy = "Point the configuration at the original database, or use a new pipeline name for this one."


class PositionLostError(SourceError):
    default_remedy = (
        "Choose: restore the source's log, or delete the pipeline's state and let it copy every table again."
    )


class DecodeError(SourceError):
    default_remedy = "Keep the message and report it; the position has not moved, so nothing is lost."


class JournalError(LakefeedError):
    default_remedy = "Inspect the journal directory that the message names."


class JournalDamagedError(JournalError):
    default_remedy = (
        "Restore the named file from a backup; without one, move the state directory away, and Lakefeed copies every "
        "table again."
    )


class JournalFullError(JournalError):
    retry = Retry.BACKOFF
    default_remedy = "Free space on the journal's disk."


class StorageUnavailableError(JournalError):
    retry = Retry.BACKOFF
    default_remedy = "Check that the object store can be reached from here, and that the credentials are valid."


class LeaseError(JournalError):
    default_remedy = "Stop the other process first; one pipeline has one writer."


class LeaseLostError(LeaseError):
    retry = Retry.BACKOFF
    default_remedy = "None needed: this process stops writing, and goes on once it has the lease again."


class HangError(LakefeedError):
    """A thread of a running pipeline shows no sign of life. It cannot be ended, so that its process should."""

    default_remedy = "Start the process again: it goes on where the journal ends. The log says where it hung."


class LakeError(LakefeedError):
    default_remedy = "Inspect the table that the message names; the journal keeps every change until it is applied."


class SparkSetupError(LakeError):
    default_remedy = 'Set JAVA_HOME to a Java 17 or 21, or run `pip install "lakefeed[java]"`.'


class CommitFailedError(LakeError):
    retry = Retry.BACKOFF
    default_remedy = "The next sync tries again by itself; nothing of the failed commit is visible."


class CommitUnknownError(LakeError):
    retry = Retry.BACKOFF
    default_remedy = "Lakefeed reads the table's applied number back before it decides."


class TableStoppedError(LakefeedError):
    """One table cannot go on. ``table`` names it; the other tables are not affected."""

    default_remedy = "Follow the remedy in `lakefeed status`, then run `lakefeed sync` again."

    def __init__(self, message: str, *, remedy: str | None = None, table: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.table = table

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild_table, (type(self), self.message, self.remedy, self.table))


class RebuildCause(Enum):
    """SOURCE: the source changed the table in a way that the lake table cannot follow; one copy settles it.

    COPY: the table changed while it was copied, and these changes cannot be applied to the copied rows. The next copy
    may run into the same.
    """

    SOURCE = "source"
    COPY = "copy"


class RebuildNeededError(TableStoppedError):
    """The lake table can go on only after it is copied again, because of ``cause``."""

    default_remedy = "The next sync copies the table again by itself."

    def __init__(
        self, message: str, *, remedy: str | None = None, table: str = "", cause: RebuildCause = RebuildCause.SOURCE
    ) -> None:
        super().__init__(message, remedy=remedy, table=table)
        self.cause = cause

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild_table, (type(self), self.message, self.remedy, self.table, self.cause))


def _rebuild_table(
    kind: type[TableStoppedError], message: str, remedy: str, table: str, cause: RebuildCause | None = None
) -> TableStoppedError:
    if cause is not None and issubclass(kind, RebuildNeededError):
        return kind(message, remedy=remedy, table=table, cause=cause)
    return kind(message, remedy=remedy, table=table)
