"""What Lakefeed keeps is for its own user alone; the lake tables are for whoever the directory lets in."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lakefeed.app import cli
from lakefeed.app.preflight import secret_findings
from lakefeed.durable import make_directory, replace_file


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """The most careless setting there is."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_state_files_are_0600_and_their_directories_0700_whatever_the_umask(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT)")
        connection.execute("INSERT INTO items VALUES (1, 'a')")
    file = tmp_path / "shop.yaml"
    file.write_text("pipeline: shop\nsource: {kind: sqlite, path: shop.db, tables: ['*']}\nlake: {path: ./new/lake}\n")
    assert cli.execute(["sync", str(file), "-q"]) == 0
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("INSERT INTO items VALUES (2, 'b')")
    assert cli.execute(["sync", str(file), "-q", "--tables", "items"]) == 0
    assert cli.execute(["verify", str(file), "-q"]) == 0
    root = tmp_path / "new" / "lake" / "_lakefeed"
    below = sorted(root.rglob("*"))
    assert {path.suffix for path in below} >= {".json", ".parquet", ""}
    wrong = {path.relative_to(root): oct(mode(path)) for path in below if mode(path) != (0o700, 0o600)[path.is_file()]}
    assert wrong == {}
    assert mode(root) == 0o700
    assert mode(tmp_path / "new" / "lake") == 0o777, "the lake's own directory follows the umask"
    assert mode(tmp_path / "new" / "lake" / "main" / "items") == 0o777


def test_rights_that_somebody_has_set_stay(tmp_path: Path) -> None:
    kept = tmp_path / "_lakefeed" / "shop"
    make_directory(kept)
    assert mode(kept) == 0o700
    kept.chmod(0o750)
    make_directory(kept)
    make_directory(kept / "tables")
    assert (mode(kept), mode(kept / "tables")) == (0o750, 0o700)
    replace_file(kept / "a.json", b"{}")
    assert mode(kept / "a.json") == 0o600


@pytest.mark.parametrize(
    ("dsn", "is_found"),
    [
        ("host=h dbname=shop password=hunter2", True),
        ("postgresql://lakefeed:hunter2@h/shop", True),
        ("host=h dbname=shop password='${SHOP_PASSWORD}'", False),
        ("host=h dbname=shop password=${SHOP_PASSWORD}", False),
        ("postgresql://lakefeed:${SHOP_PASSWORD}@h/shop", False),
        ("postgresql://lakefeed@h/shop", False),
    ],
)
def test_check_warns_of_a_secret_in_a_file_that_others_may_read(
    tmp_path: Path, dsn: str, is_found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "sesame")
    file = tmp_path / "shop.yaml"
    file.write_text(
        f'pipeline: shop\nsource: {{kind: postgres, dsn: "{dsn}"}}\n'
        "lake: {path: lake, format: iceberg, catalog: {type: rest, uri: 'http://h', credential: 'a:b', prefix: p}}\n"
    )
    file.chmod(0o644)
    found = secret_findings(file)
    assert [one.problem.split()[0] for one in found] == ["source.dsn"] * is_found + ["lake.catalog.credential"]
    assert not [one for one in found if "hunter2" in one.problem + one.remedy]
    assert found[0].remedy.startswith(f"chmod 600 {file}")
    file.chmod(0o600)
    assert secret_findings(file) == ()
