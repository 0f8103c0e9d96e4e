"""Writes a software bill of materials (CycloneDX 1.6, JSON): ``python -m scripts.sbom FILE``.

Everything that an installation may bring: the packages of requirements.lock and requirements-java.lock with their
hashes, and the jars of the table formats. The same lock files give the same document.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lakefeed.lake.formats import FORMATS

ROOT = Path(__file__).parent.parent
LOCKS = ("requirements.lock", "requirements-java.lock")
_PACKAGE = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def document() -> dict[str, Any]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    own = {
        "type": "application",
        "name": name,
        "version": version,
        "bom-ref": name,
        "purl": f"pkg:pypi/{name}@{version}",
    }
    components = [*python_packages(), *jars()]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                **own,
                "purl": f"pkg:pypi/{name}@{version}",
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": sorted(components, key=lambda one: str(one["purl"])),
        "dependencies": [{"ref": name, "dependsOn": sorted({str(one["bom-ref"]) for one in components})}],
    }


def python_packages() -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for lock in LOCKS:
        text = (ROOT / lock).read_text()
        starts = list(_PACKAGE.finditer(text))
        for index, match in enumerate(starts):
            end = starts[index + 1].start() if index + 1 < len(starts) else len(text)
            purl = f"pkg:pypi/{match[1].lower().replace('_', '-')}@{quote(match[2])}"
            hashes = [{"alg": "SHA-256", "content": one} for one in _HASH.findall(text[match.start() : end])]
            found[purl] = {"type": "library", "name": match[1], "version": match[2], "bom-ref": purl, "purl": purl}
            found[purl]["externalReferences"] = [
                {"type": "distribution", "url": f"pkg:pypi/{match[1]}@{match[2]}", "hashes": hashes}
            ]
    return list(found.values())


def jars() -> list[dict[str, Any]]:
    coordinates = sorted({one for known in FORMATS.values() for one in known.coordinates.split(",")})
    found = []
    for group, artifact, version in (one.split(":") for one in coordinates):
        purl = f"pkg:maven/{group}/{artifact}@{version}"
        found.append(
            {"type": "library", "group": group, "name": artifact, "version": version, "bom-ref": purl, "purl": purl}
        )
    return found


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(document(), indent=1) + "\n")
    print(f"{target}: {len(document()['components'])} components")
