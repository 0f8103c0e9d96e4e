"""PostgreSQL step by step, followed to the letter: statements and commands run, and print what the page says."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from scripts.page import blocks, commands, shape

from lakefeed.app import cli
from lakefeed.testing.server.postgres import PostgresServer, find_binaries

PAGE = Path(__file__).resolve().parents[2] / "docs" / "first-postgres.md"
DSN = "host=localhost dbname=shop user=lakefeed"
CODES = {("check", "shop.yaml", "--sql"): 1, ("uninstall", "shop.yaml"): 3}


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_every_statement_and_command_of_the_page_does_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    binaries = find_binaries()
    with PostgresServer.start(binaries[max(binaries)]) as server:
        with psycopg.connect(server.dsn, autocommit=True) as admin:
            admin.execute("CREATE DATABASE shop")
        shop = server.dsn.replace("dbname=postgres", "dbname=shop")
        listed, ran = [(block.language, block.code) for block in blocks(PAGE)], 0
        with psycopg.connect(shop, autocommit=True) as admin:
            for index, (language, code) in enumerate(listed):
                capsys.readouterr()
                if language == "sql":
                    admin.execute(code)
                elif language == "python":
                    exec(compile(code, "page", "exec"), {})
                    assert shape(capsys.readouterr().out) == shape(listed[index + 1][1])
                for words, expected in commands(code):
                    assert cli.execute(words) == CODES.get(tuple(words), 0), capsys.readouterr()
                    said = capsys.readouterr()
                    assert shape(said.err + said.out) == shape(expected), words
                    ran += 1
                    if words[0] == "init":
                        file = tmp_path / "shop.yaml"
                        assert DSN in file.read_text()
                        own = shop.replace("user=postgres", "user=lakefeed")
                        file.write_text(file.read_text().replace(DSN, own))
                    elif "--sql" in words:
                        for line in said.out.splitlines():
                            admin.execute(line or "SELECT 1")
    assert ran == 7
