"""Origin: where the retained journal begins, and whose it is.

Written before anything is trimmed: the number up to which change sets may be gone, the schema version that every
table had there, and the identity of the source. A change set above that number which is missing is a loss, not a trim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lakefeed.change.table import TableId
from lakefeed.errors import JournalDamagedError
from lakefeed.journal import checked_json
from lakefeed.journal.atomic import write_atomic


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    trimmed: int = 0
    identity: str | None = None
    versions: Mapping[TableId, int] = field(default_factory=dict)

    def save(self, path: Path, *, fsync: bool) -> None:
        body = {
            "trimmed": self.trimmed,
            "identity": self.identity,
            "versions": {str(table): version for table, version in sorted(self.versions.items())},
        }
        write_atomic(path, checked_json.pack(body), fsync=fsync)

    @classmethod
    def load(cls, path: Path) -> Origin:
        body = checked_json.unpack(path.read_bytes(), path)
        try:
            versions = {TableId.parse(name): int(version) for name, version in body["versions"].items()}
            return cls(trimmed=int(body["trimmed"]), identity=body["identity"], versions=versions)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise JournalDamagedError(f"{path} is damaged: it is not a journal's origin ({error!r})") from error
