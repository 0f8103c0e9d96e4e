"""``check --sql`` for MySQL and MariaDB: what is printed runs as it is, and then sync works."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakefeed.app.cli import execute
from lakefeed.testing.server.mysql import MysqlServer

WRONG = {"binlog_row_image": "MINIMAL", "binlog_row_metadata": "MINIMAL"}


def statements(script: str) -> list[str]:
    """As the ``mysql`` client takes them: a line may have several, and a comment at its end."""
    lines = [line.partition(" -- ")[0] for line in script.splitlines() if line and not line.startswith("--")]
    return [part.strip() for line in lines for part in line.split(";") if part.strip()]


def test_an_account_that_may_do_nothing_is_ready_after_the_printed_script_was_run_as_it_is(
    server: MysqlServer, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(
        f"pipeline: check\nsource: {{kind: {server.flavour}, dsn: '{server.dsn.replace('root@', 'guest@')}', "
        f"tables: ['{database}.*']}}\nlake: {{path: {tmp_path}/lake}}\n"
    )

    def script(expected: tuple[int, ...]) -> str:
        capsys.readouterr()
        code = execute(["check", str(file), "--sql"])
        printed = capsys.readouterr()
        assert code in expected, printed.out + printed.err
        return printed.out

    with server.connect(database=database) as admin, admin.cursor() as cursor:
        cursor.execute("CREATE USER guest@localhost")
        try:
            cursor.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
            cursor.execute("INSERT INTO t VALUES (1, 2)")
            for name, value in WRONG.items():
                cursor.execute(f"SET GLOBAL {name} = '{value}'")
            for _ in range(3):  # the account sees more each time, and so does check
                for statement in statements(script(expected=(0, 1))):
                    cursor.execute(statement)
            assert "Error" not in script(expected=(0,))
            assert execute(["sync", str(file)]) == 0
            cursor.execute(f"SELECT @@GLOBAL.{', @@GLOBAL.'.join(WRONG)}")
            assert cursor.fetchall()[0] == ("FULL", "FULL")
        finally:
            for name in WRONG:
                cursor.execute(f"SET GLOBAL {name} = 'FULL'")
            cursor.execute("DROP USER guest@localhost")


def test_a_table_that_the_account_sees_and_may_not_read_is_an_error_with_its_grant(
    server: MysqlServer, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(
        f"pipeline: check\nsource: {{kind: {server.flavour}, dsn: '{server.dsn.replace('root@', 'writer@')}', "
        f"tables: ['{database}.*']}}\nlake: {{path: {tmp_path}/lake}}\n"
    )
    right = "BINLOG MONITOR" if server.flavour == "mariadb" else "REPLICATION CLIENT"
    with server.connect(database=database) as admin, admin.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id int PRIMARY KEY)")
        cursor.execute("CREATE USER writer@localhost")
        try:
            cursor.execute(f"GRANT REPLICATION SLAVE, {right} ON *.* TO writer@localhost")
            cursor.execute(f"GRANT INSERT ON {database}.t TO writer@localhost")
            assert execute(["check", str(file), "--sql"]) == 1
            grant = f"GRANT SELECT ON `{database}`.`t` TO 'writer'@'localhost'"
            assert statements(capsys.readouterr().out) == [grant]
            cursor.execute(grant)
            assert execute(["check", str(file)]) == 0
        finally:
            cursor.execute("DROP USER writer@localhost")


def test_a_wrong_password_is_told_with_the_place_where_it_stands(
    server: MysqlServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MYSQL_PWD", "wrong")
    file = tmp_path / "shop.yaml"
    dsn = server.dsn.replace("root@", "secured@")
    file.write_text(
        f"pipeline: check\nsource: {{kind: {server.flavour}, dsn: '{dsn}', tables: ['x.*']}}\nlake: {{path: l}}\n"
    )
    with server.connect() as admin, admin.cursor() as cursor:
        cursor.execute("CREATE USER secured@localhost IDENTIFIED BY 'right'")
        try:
            assert execute(["check", str(file)]) == 1, "a finding, as anything else that would stop a sync"
        finally:
            cursor.execute("DROP USER secured@localhost")
    said = capsys.readouterr().out
    assert "Access denied" in said
    assert "MYSQL_PWD" in said
