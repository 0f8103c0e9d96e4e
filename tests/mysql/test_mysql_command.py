"""A pipeline's whole life from MySQL and MariaDB into Delta tables, through the commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from lakefeed.app.cli import execute
from lakefeed.testing.server.mysql import MysqlServer


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_life_from_the_first_sync_to_uninstall(
    server: MysqlServer,
    database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    def answer(*arguments: str, expected: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        code = execute([*arguments, "shop.yaml", "--json"])
        done = capsys.readouterr()
        assert code == expected, done.out + done.err
        found: dict[str, Any] = json.loads(done.out)
        return found

    assert execute(["init", "shop.yaml", "--source", server.flavour]) == 0
    text = (tmp_path / "shop.yaml").read_text()
    text = text.replace(f"{server.flavour}://lakefeed@localhost:3306/", server.dsn).replace("shop.*", f"{database}.*")
    (tmp_path / "shop.yaml").write_text(text)
    connection = server.connect(database=database)
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE items (id int PRIMARY KEY, name varchar(20), price decimal(10,2), at timestamp(6) NULL)"
        )
        cursor.execute("INSERT INTO items VALUES (1, 'a', 1.10, '2020-01-01 00:00:00.5'), (2, NULL, NULL, NULL)")
        assert answer("check")["ready"]
        assert answer("sync")["tables"][f"{database}.items"]["rows"] == 2
        cursor.execute("UPDATE items SET price = 2.20 WHERE id = 2")
        cursor.execute("INSERT INTO items VALUES (3, 'c', 3, now(6))")
        cursor.execute("DELETE FROM items WHERE id = 1")
        cursor.execute("ALTER TABLE items ADD note text")
        cursor.execute("UPDATE items SET note = 'n' WHERE id = 3")
        assert answer("verify", expected=1)["tables"][f"{database}.items"]["differences"]
        answer("sync")
        assert answer("verify")["tables"][f"{database}.items"]["equal"]
        cursor.execute("SELECT id, name, price, note FROM items ORDER BY id")
        expected = [tuple(row) for row in cursor.fetchall()]
    lake = DeltaTable(str(tmp_path / "lake" / database / "items")).to_pyarrow_table().sort_by("id").to_pylist()
    assert [(row["id"], row["name"], row["price"], row["note"]) for row in lake] == expected
    assert answer("uninstall")["removed"] == ["binlog.resume.json"]
    connection.close()
