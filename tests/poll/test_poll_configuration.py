"""``capture: poll`` in a configuration file, and the ``diff`` command: what is read, and what answers a mistake."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.poll.actors import iso, now_us

from lakefeed.app.build import build_pipeline
from lakefeed.app.cli import execute
from lakefeed.app.config import Config, load_config
from lakefeed.capture.poll.config import FullDiffConfig, PollRuleConfig
from lakefeed.capture.poll.rule import FullDiff, NullPolicy, Pace, SoftDelete, TableRule
from lakefeed.capture.poll.source import PostgresPolling, SqlitePolling
from lakefeed.errors import ConfigError

SQLITE = """\
pipeline: shop
source:
  kind: sqlite
  path: shop.db
  capture: poll
  rules:
    t: {updated_at: changed, safety_lag_seconds: 0}
lake: {path: ./lake}
"""
POSTGRES = SQLITE.replace("kind: sqlite\n  path: shop.db", "kind: postgres\n  dsn: host=h")


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, changed TEXT NOT NULL)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(key, iso(now_us())) for key in range(30)])
        connection.commit()
    return tmp_path


def load(directory: Path, text: str) -> Config:
    file = directory / "shop.yaml"
    file.write_text(text, encoding="utf-8")
    return load_config(file, {})


def test_a28_rules_are_by_pattern_with_every_setting_of_the_library(shop: Path) -> None:
    text = SQLITE.replace(
        "    t: {updated_at: changed, safety_lag_seconds: 0}\n",
        "    t: {updated_at: changed, created_at: made, key: [a, b], columns: [c], soft_delete: gone, where: a > 1,\n"
        "        batch_rows: 7, safety_lag_seconds: 2, null_updated_at: ignore}\n"
        "    u*: {full_diff: {every_seconds: 60, max_deleted_share: 0.5, compare_rows: true}}\n"
        "    w: {full_diff: {}}\n"
        "  poll_seconds: 0.5\n",
    )
    source = load(shop, text).source.source()
    assert isinstance(source, SqlitePolling)
    assert source.pace == Pace(poll_seconds=0.5)
    assert source.rules == {
        "t": TableRule(
            updated_at="changed",
            created_at="made",
            key=["a", "b"],
            columns=["c"],
            deletes=SoftDelete("gone"),
            where="a > 1",
            batch_rows=7,
            safety_lag_seconds=2.0,
            null_updated_at=NullPolicy.IGNORE,
        ),
        "u*": TableRule(deletes=FullDiff(every_seconds=60.0, max_deleted_share=0.5, compare_rows=True)),
        "w": TableRule(deletes=FullDiff()),
    }


def test_defaults_are_the_librarys(tmp_path: Path) -> None:
    source = load(tmp_path, POSTGRES.replace("  rules:\n", "").replace("    t:", "  #")).source.source()
    assert source == PostgresPolling("host=h", text_columns=())
    plain = TableRule()
    rule = PollRuleConfig()
    assert (rule.batch_rows, rule.safety_lag_seconds) == (plain.batch_rows, plain.safety_lag_seconds)
    assert rule.null_updated_at == plain.null_updated_at.value
    assert FullDiff(**FullDiffConfig().model_dump()) == FullDiff()


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("{updated: x}", "line 7: there is no key 'updated' in source.rules.t; valid keys are updated_at, created_at"),
        ("{null_updated_at: skip}", "source.rules.t.null_updated_at: 'skip' is not a choice; available: stop"),
        ("{full_diff: {evry_seconds: 5}}", "no key 'evry_seconds' in source.rules.t.full_diff; valid keys are every"),
        ("{full_diff: {max_deleted_share: 2}}", "source.rules.t.full_diff.max_deleted_share: '2' must be at most 1"),
        ("{batch_rows: 0}", "source.rules.t.batch_rows: '0' must be at least 1"),
        ("{key: id}", "source.rules.t.key: 'id' must be a list"),
        ("5", "source.rules.t: '5' must be a section with keys of its own"),
        ("{tables: [a]}", "there is no key 'tables' in source.rules.t"),
    ],
)  # fmt: skip
def test_a31_a_mistake_in_a_rule_names_its_key_and_the_choices(tmp_path: Path, rule: str, expected: str) -> None:
    for text in (SQLITE, POSTGRES):
        with pytest.raises(ConfigError) as caught:
            load(tmp_path, text.replace("{updated_at: changed, safety_lag_seconds: 0}", rule))
        assert expected in caught.value.message


def test_rules_that_are_no_section_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"source\.rules: 'all' must be a section"):
        load(tmp_path, SQLITE.replace("rules:\n    t: {updated_at: changed, safety_lag_seconds: 0}", "rules: all"))


def test_two_ways_to_find_deletes_are_refused(tmp_path: Path) -> None:
    config = load(tmp_path, SQLITE.replace("updated_at: changed", "soft_delete: gone, full_diff: {}"))
    with pytest.raises(ConfigError, match=r"source\.rules\.t has soft_delete and full_diff"):
        config.source.table_rules()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SQLITE.replace("capture: poll", "capture: trigger"), "source.rules is for capture: poll"),
        (POSTGRES.replace("capture: poll", "provision: false\n  capture: poll"), "provision is for capture: log"),
        (POSTGRES.replace("capture: poll", "before_images: true\n  capture: poll"), "images is for capture: log"),
        (SQLITE.replace("capture: poll", "before_images: true\n  capture: poll"), "images is for capture: trigger"),
    ],
)  # fmt: skip
def test_a_key_of_another_way_to_capture_is_refused(shop: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        build_pipeline(load(shop, text))


def test_diff_of_a_source_that_tells_its_deletes_is_refused_with_the_reason(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load(shop, SQLITE.replace("  capture: poll\n  rules:\n    t: {updated_at: changed, safety_lag_seconds: 0}\n", ""))
    assert execute(["diff", str(shop / "shop.yaml")]) == 2
    said = capsys.readouterr().err
    assert "reports every delete by itself" in said
    assert "capture: poll" in said


@pytest.mark.spark
def test_a25_the_diff_command_finds_deletes_and_the_next_sync_applies_them(
    shop: Path, capsys: pytest.CaptureFixture[str], spark: object
) -> None:
    load(shop, SQLITE)
    file = str(shop / "shop.yaml")

    def answer(*arguments: str, code: int = 0) -> dict[str, dict[str, object]]:
        assert execute([*arguments, "--json"]) == code
        found: dict[str, dict[str, object]] = json.loads(capsys.readouterr().out)
        return found

    answer("sync", file)
    with closing(sqlite3.connect(shop / "shop.db")) as connection:
        connection.execute("DELETE FROM t WHERE id < 20")
        connection.commit()
    refused = answer("diff", file, code=1)["main.t"]
    assert (refused["source_rows"], refused["lake_rows"], refused["deleted"]) == (10, 30, 20)
    assert "more than the 10%" in str(refused["refused"])
    assert execute(["status", file]) == 0
    assert "--max-deleted-share" in capsys.readouterr().out
    assert execute(["diff", file, "main.t", "--max-deleted-share", "0.7"]) == 0
    assert "the next sync" in capsys.readouterr().out
    assert answer("sync", file)["rows"] == {"inserted": 0, "updated": 0, "deleted": 20}
    assert execute(["status", file]) == 0
    assert "compared with the source" in capsys.readouterr().out
