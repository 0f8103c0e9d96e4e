"""The bill of materials has every locked package and every jar, with an address that tools understand."""

from __future__ import annotations

import re
from pathlib import Path

from scripts.sbom import document

from lakefeed.lake.formats import FORMATS

ROOT = Path(__file__).parents[2]


def test_every_locked_package_and_every_jar_is_in_the_bill_of_materials() -> None:
    found = document()
    addresses = {one["purl"] for one in found["components"]}
    for lock in ("requirements.lock", "requirements-java.lock"):
        for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / lock).read_text(), re.MULTILINE):
            assert f"pkg:pypi/{name.lower()}@{version}" in addresses
    for known in FORMATS.values():
        for group, name, version in (one.split(":") for one in known.coordinates.split(",")):
            assert f"pkg:maven/{group}/{name}@{version}" in addresses
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    assert found["dependencies"][0]["dependsOn"] == sorted(addresses)
    assert found == document(), "the same lock files give the same document"
