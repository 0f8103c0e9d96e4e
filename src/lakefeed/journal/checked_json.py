"""JSON files that know when they are damaged: the body and its checksum in one document, readable by people."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from lakefeed.errors import JournalDamagedError


def pack(body: dict[str, Any]) -> bytes:
    """The bytes of a file that holds ``body``."""
    return json.dumps({"sha256": _checksum(body), "body": body}, indent=1, ensure_ascii=False).encode()


def unpack(data: bytes, path: Path) -> dict[str, Any]:
    """Inverse of ``pack``. JournalDamagedError, naming ``path``, for anything that ``pack`` did not write."""
    try:
        document = json.loads(data)
        body, checksum = document["body"], document["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise JournalDamagedError(f"{path} is damaged: it is not the JSON that was written ({error})") from error
    if not isinstance(body, dict) or checksum != _checksum(body):
        raise JournalDamagedError(f"{path} is damaged: its checksum does not match its content")
    return body


def _checksum(body: dict[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
