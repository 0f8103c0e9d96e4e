"""The configuration file: what is read, and what every mistake in it is answered with."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from lakefeed.app.build import LAKES, build_pipeline, evolution, rules
from lakefeed.app.command.prepare import template
from lakefeed.app.config import Config, LakeConfig, load_config, schema_text
from lakefeed.capture.postgres.config import PostgresConfig
from lakefeed.capture.postgres.source import Postgres
from lakefeed.capture.registry import SOURCES, source_config
from lakefeed.capture.sqlite.config import SqliteConfig
from lakefeed.change.table import TableId
from lakefeed.change.watermark import Watermark
from lakefeed.errors import ConfigError
from lakefeed.flow.options import PipelineOptions
from lakefeed.journal.options import JournalOptions
from lakefeed.lake.iceberg import Iceberg
from lakefeed.lake.mode import Temporal
from lakefeed.lake.route import Rule
from lakefeed.lake.schema.policy import Evolution

MINIMAL = """\
pipeline: shop
source:
  kind: sqlite
  path: shop.db
lake:
  path: ./lake
"""


def load(directory: Path, text: str, environment: dict[str, str] | None = None) -> Config:
    file = directory / "shop.yaml"
    file.write_text(text, encoding="utf-8")
    return load_config(file, environment or {})


def mistake(directory: Path, text: str, environment: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(directory, text, environment)
    assert caught.value.remedy
    return caught.value.message


def test_a_minimal_file_takes_its_defaults_from_the_library(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL)
    assert (config.source.capture, config.source.tables) == ("trigger", ["*"])
    assert (config.lake.format, config.lake.mode) == ("delta", "mirror")
    assert config.sync.interval_seconds == PipelineOptions().interval_seconds
    assert config.journal.max_backlog_bytes == PipelineOptions().max_backlog_bytes
    assert config.journal.keep_change_sets == JournalOptions().keep_change_sets


def test_the_file_that_init_writes_is_valid_and_says_the_defaults(tmp_path: Path) -> None:
    text = template("sqlite", "shop.yaml")
    assert load(tmp_path, text) == load(tmp_path, MINIMAL)
    lines = text.splitlines()
    begin = next(index for index, line in enumerate(lines) if line.startswith("# journal:"))
    uncommented = "\n".join([*lines[:begin], *(line.removeprefix("# ") for line in lines[begin:])])
    assert uncommented.count("journal:") == 1
    assert load(tmp_path, uncommented.replace("#   ", "  ")) == load(tmp_path, MINIMAL)


POSTGRES = MINIMAL.replace("kind: sqlite\n  path: shop.db", "kind: postgres\n  dsn: host=h dbname=shop password=${PW}")


def test_a_postgres_source_takes_its_defaults_from_the_library(tmp_path: Path) -> None:
    config = load(tmp_path, POSTGRES, {"PW": "hunter2"})
    assert isinstance(config.source, PostgresConfig)
    assert config.source.dsn == "host=h dbname=shop password=hunter2"
    assert "hunter2" not in repr(config)
    library = Postgres("host=h")
    assert config.source.source() == replace(library, dsn=config.source.dsn)


def test_the_file_that_init_writes_for_postgres_is_valid(tmp_path: Path) -> None:
    text = template("postgres", "shop.yaml")
    plain = load(
        tmp_path, POSTGRES.replace("host=h dbname=shop password=${PW}", "host=localhost dbname=shop user=lakefeed")
    )
    assert load(tmp_path, text) == plain
    assert load(tmp_path, text.replace("# text_columns", "text_columns").replace("# provision", "provision")) == plain


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("dsn: host=h dbname=shop password=${PW}", "path: shop.db", "source.path belongs to sqlite; valid keys of"),
        ("dsn: host=h dbname=shop password=${PW}", "tables: [a]", "line 2: source.dsn is missing"),
        ("kind: postgres", "kind: postgres\n  capture: trigger", "this version does not have 'trigger' yet; available: log"),  # noqa: E501
        ("kind: postgres", "kind: postgres\n  provision: maybe", "line 4: source.provision: 'maybe' must be true or"),
        ("kind: postgres", "kind: postgres\n  text_columns: a.b.c", "source.text_columns: 'a.b.c' must be a list"),
        ("kind: postgres", "kind: postgres\n  tabels: [a]", "no key 'tabels' in source; valid keys are kind, cap"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_postgres_source_is_answered_with_its_own_keys(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    text = mistake(tmp_path, POSTGRES.replace(old, new), {"PW": "hunter2"})
    assert expected in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    ("dsn", "expected"),
    [
        ("host dbname=shop password=${PW}", "part 1 has no '='"),
        ("host=h ${PW}", "part 2 has no '='"),
        ("hots=h password=${PW}", "there is no option 'hots'"),
        ("host=h password='${PW}", "a quote is not closed"),
        ("postgresql://u:${PW}@[h", "it is not a valid URI"),
    ],
)
def test_a_connection_string_that_is_none_is_refused_with_its_wrong_part_and_without_showing_it(
    tmp_path: Path, dsn: str, expected: str
) -> None:
    config = load(tmp_path, POSTGRES.replace("host=h dbname=shop password=${PW}", f'"{dsn}"'), {"PW": "hunter2"})
    with pytest.raises(ConfigError, match=r"source\.dsn is not a PostgreSQL connection string: ") as caught:
        build_pipeline(config)
    assert expected in caught.value.message
    assert "hunter2" not in str(caught.value) + caught.value.remedy


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("format: iceberg\n  deletion_vectors: true", "lake.deletion_vectors is for Delta tables"),
        ("namespace: x", "lake.namespace is for Iceberg tables"),
    ],
)
def test_a_setting_of_the_other_format_is_refused_with_the_remedy(tmp_path: Path, line: str, expected: str) -> None:
    (tmp_path / "shop.db").touch()
    config = load(tmp_path, MINIMAL.replace("path: ./lake", f"path: ./lake\n  {line}"))
    with pytest.raises(ConfigError, match=expected) as caught:
        build_pipeline(config)
    assert caught.value.remedy


def test_relative_paths_belong_to_the_directory_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf").mkdir()
    monkeypatch.chdir("/")
    config = load(tmp_path / "conf", MINIMAL)
    assert isinstance(config.source, SqliteConfig)
    assert config.source.path == str(tmp_path / "conf" / "shop.db")
    assert config.lake.path == str(tmp_path / "conf" / "lake")
    assert config.state().directory == tmp_path / "conf" / "lake" / "_lakefeed" / "shop"


STORE = """\
journal: {path: "s3://bucket/journal/", lease_seconds: 9}
storage:
  {endpoint: "https://store", access_key_id: me, secret_access_key: "${SECRET}", options: {skip_signature: "false"}}
"""


def test_the_journal_can_be_in_an_object_store_and_its_secret_is_shown_nowhere(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL + STORE, {"SECRET": "HUNTER2"})
    assert (config.lake.path, config.journal.path) == (str(tmp_path / "lake"), "s3://bucket/journal")
    assert config.storage.to_options() == {
        "endpoint": "https://store",
        "access_key_id": "me",
        "secret_access_key": "HUNTER2",
        "skip_signature": "false",
    }
    assert str(config.state()) == "s3://bucket/journal/_lakefeed/shop"
    assert "HUNTER2" not in repr(config) + repr(config.state())
    moved = load(tmp_path, MINIMAL + "journal: {path: ../journal}\n")
    assert moved.state().directory == tmp_path.parent / "journal" / "_lakefeed" / "shop"
    text = mistake(tmp_path, MINIMAL + "journal: {lease_seconds: 1}\n")
    assert "journal.lease_seconds" in text


def test_a_hadoop_catalog_in_an_object_store_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="it commits by a rename, which is not atomic in an object store"):
        Iceberg(lambda: pytest.fail("no Spark is needed to say so"), "s3://bucket/lake")


def test_an_unknown_key_is_named_with_its_place_line_and_the_valid_keys(tmp_path: Path) -> None:
    text = mistake(tmp_path, MINIMAL.replace("  path: ./lake", "  path: ./lake\n  fromat: delta"))
    assert text.endswith(
        "shop.yaml, line 7: there is no key 'fromat' in lake; valid keys are path, format, mode, options, evolution, out_of_range, tables, naming, salt, deletion_vectors, catalog, namespace; did you mean format?"  # noqa: E501
    )
    text = mistake(tmp_path, MINIMAL + "sinc: {}\n")
    assert "line 7: there is no key 'sinc' at the top; valid keys are pipeline, source, lake, sync, journal" in text
    assert "did you mean sync?" in text


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("kind: sqlite", "kind: sqlserver", "this version does not have 'sqlserver' yet; available: sqlite, postgres, mysql, mariadb"),  # noqa: E501
        ("kind: sqlite", "kind: sqlit", "'sqlit' is not a choice; available: sqlite, postgres, mysql, mariadb; did you mean sqlite?"),  # noqa: E501
        ("path: shop.db", "path: shop.db\n  capture: log", "capture: this version does not have 'log' yet; available: trigger"),  # noqa: E501
        ("path: ./lake", "path: l\n  format: iceburg", "'iceburg' is not a choice; available: delta, iceberg; did you mean"),  # noqa: E501
        ("path: ./lake", "path: l\n  mode: miror", "lake.mode: 'miror' is not a choice; available: mirror"),
        ("path: ./lake", "path: hdfs://host/lake", "lake.path: Lakefeed knows no storage for hdfs://"),
        ("path: shop.db", "dsn: postgresql://u@h/d", "line 4: source.dsn belongs to postgres, mysql, mariadb; valid keys of sqlite"),  # noqa: E501
    ],
)  # fmt: skip
def test_a_wrong_choice_is_answered_with_what_there_is(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert expected in mistake(tmp_path, MINIMAL.replace(old, new))


def test_a_kind_that_is_not_there_yet_hides_what_follows_from_it(tmp_path: Path) -> None:
    text = mistake(tmp_path, MINIMAL.replace("kind: sqlite\n  path: shop.db", "kind: sqlserver\n  dsn: mysql://u@h/d"))
    assert "source.kind: this version does not have 'sqlserver' yet" in text
    assert "dsn" not in text
    assert "missing" not in text


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("pipeline: shop\n", "", "line 1: pipeline is missing"),
        ("  kind: sqlite\n", "", "line 2: source.kind is missing; available: sqlite, postgres"),
        ("  path: shop.db\n", "", "line 2: source.path is missing"),
        ("lake:\n  path: ./lake\n", "", "lake is missing; it is a section with the keys path, format, mode"),
        ("pipeline: shop", "pipeline: Shop One", "line 1: pipeline: 'Shop One' must begin with a letter a-z or digit"),
        ("pipeline: shop", "pipeline: -shop", "pipeline: '-shop' must begin with"),
        ("pipeline: shop", "pipeline: 7", "pipeline: '7' must be text; put it in quotes"),
        ("pipeline: shop", f"pipeline: {'x' * 65}", "must not be longer than 64 characters"),
        ("path: shop.db", "path: shop.db\n  tables: orders", "line 5: source.tables: 'orders' must be a list"),
        ("path: shop.db", "path: shop.db\n  tables: []", "source.tables: this must name at least one"),
        ("path: shop.db", "path: shop.db\n  tables: ['']", "source.tables.0: '' must not be empty"),
        ("path: shop.db", "path: ''", "source.path: '' must not be empty"),
        ("lake:\n  path: ./lake", "lake: here", "line 5: lake: 'here' must be a section with keys of its own"),
    ],
)  # fmt: skip
def test_a_missing_or_misshapen_value_names_its_key(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert expected in mistake(tmp_path, MINIMAL.replace(old, new))


@pytest.mark.parametrize(
    ("addition", "expected"),
    [
        ("sync: {interval_seconds: 0}", "sync.interval_seconds: '0' must be more than 0"),
        ("sync: {interval_seconds: .inf}", "sync.interval_seconds: '.inf' must be a number"),
        ("sync: {interval_seconds: yes}", "sync.interval_seconds: 'yes' must be a number"),
        ("sync: {interval_seconds: 1 s}", "sync.interval_seconds: '1 s' must be a number"),
        ("sync: {interval_seconds: 100000}", "sync.interval_seconds: '100000' must be at most 86400"),
        ("journal: {keep_change_sets: -1}", "journal.keep_change_sets: '-1' must be at least 0"),
        ("journal: {keep_change_sets: 1.5}", "journal.keep_change_sets: '1.5' must be a whole number"),
        ("journal: {max_backlog_bytes: 5}", "journal.max_backlog_bytes: '5' must be at least 1048576"),
    ],
)
def test_a_number_out_of_range_says_the_range(tmp_path: Path, addition: str, expected: str) -> None:
    assert expected in mistake(tmp_path, MINIMAL + addition + "\n")


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("{match: a, mode: miror}", "lake.tables.0.mode: 'miror' is not a choice; available: mirror, temporal, append"),
        (
            "{match: a, mode: mirror, nmae: b}",
            "there is no key 'nmae' in lake.tables.0; valid keys are match, mode, name",
        ),
        ("{mode: mirror}", "lake.tables.0.match is missing"),
        ("5", "lake.tables.0: '5' must be a section with keys of its own"),
    ],
)
def test_a_mistake_in_a_list_of_sections_names_its_place(tmp_path: Path, item: str, expected: str) -> None:
    assert expected in mistake(tmp_path, MINIMAL.replace("  path: ./lake", f"  path: ./lake\n  tables: [{item}]"))


def test_several_mistakes_are_said_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = mistake(tmp_path, MINIMAL.replace("shop\n", "SHOP\n", 1).replace("path: ./lake", "path: l\n  mode: x"))
    first, second = text.index("line 1: pipeline"), text.index("line 7: lake.mode")
    assert "has 2 mistakes" in text
    assert first < second


def test_a_key_given_twice_names_both_lines(tmp_path: Path) -> None:
    text = mistake(tmp_path, MINIMAL + "pipeline: other\n")
    assert text.endswith("line 7: 'pipeline' is given twice, first in line 1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pipeline: [shop\nsource:", "line 2: this is not YAML"),
        ("", "must be a mapping of keys to values, but is empty"),
        ("- a\n- b\n", "but is a list"),
        ("just text", "but is a single value"),
        ("a:\n\tb: 1\n", "line 2: this line has a tab, and YAML allows spaces only"),
        ("a: \x01", "is not YAML"),
        ("pipeline: {shop\n", "line 2: this is not YAML"),  # where the file has ended
        ("a: 2026-13-45", "is not YAML: month must be in 1..12"),
        ("a: &b [*b]", "is not YAML"),
        ("a: !!python/object:os.system x", "is not YAML"),
    ],
)
def test_a_file_that_is_no_configuration_says_what_it_is(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in mistake(tmp_path, text)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no file .*gone\.yaml") as caught:
        load_config(tmp_path / "gone.yaml")
    assert "lakefeed init" in caught.value.remedy
    with pytest.raises(ConfigError, match="is a directory"):
        load_config(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"pipeline: \xe9")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        load_config(tmp_path / "latin.yaml")


def test_a_variable_is_taken_from_the_environment(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL.replace("shop.db", "${SHOP_DIR}/${NAME}.db"), {"SHOP_DIR": "/data", "NAME": "x"})
    assert isinstance(config.source, SqliteConfig)
    assert config.source.path == "/data/x.db"


def test_an_unset_variable_is_named_with_its_line(tmp_path: Path) -> None:
    text = mistake(tmp_path, MINIMAL.replace("shop.db", "${SHOP_DB}"))
    assert text.endswith("line 4: source.path needs the environment variable SHOP_DB, which is not set")


def test_the_value_of_a_variable_is_never_in_a_message(tmp_path: Path) -> None:
    for old, new in (
        ("kind: sqlite", "kind: ${SECRET}"),
        ("shop\n", "'${SECRET}'\n"),
        ("path: ./lake", "x: ${SECRET}"),
    ):
        with pytest.raises(ConfigError) as caught:
            load(tmp_path, MINIMAL.replace(old, new, 1), {"SECRET": "HUNTER2 "})
        assert "HUNTER2" not in caught.value.message + caught.value.remedy
        assert caught.value.__cause__ is None
    assert "'${SECRET}'" in mistake(tmp_path, MINIMAL.replace("sqlite", "${SECRET}"), {"SECRET": "HUNTER2"})


@pytest.mark.parametrize("kind", SOURCES)
def test_everything_that_a_configuration_can_choose_can_be_built(tmp_path: Path, kind: str) -> None:
    (tmp_path / "shop.db").touch()
    section = source_config(kind)
    assert get_args(section.model_fields["kind"].annotation) == (kind,)
    text = template(kind, "shop.yaml").replace("shop.db", str(tmp_path / "shop.db"))
    for capture in get_args(section.model_fields["capture"].annotation):
        chosen = load(tmp_path, re.sub("capture: [a-z]+", f"capture: {capture}", text)).source
        assert chosen.source().bind("shop").kind in ((kind, f"{kind}_gtid") if capture != "poll" else (Watermark.kind,))
        assert chosen.dialect().default_schema
        assert chosen.verify_reader(TableId("main", "t")) is not None


def test_every_format_that_a_configuration_can_choose_can_be_built() -> None:
    assert set(get_args(LakeConfig.model_fields["format"].annotation)) == set(LAKES)


def test_the_published_schema_is_current() -> None:
    published = Path(__file__).parents[2] / "docs" / "lakefeed.schema.json"
    assert published.read_text(encoding="utf-8") == schema_text(), "run make schema"


HISTORY = """\
  mode: mirror
  options: {soft_delete: deleted_at}
  tables:
    - match: orders
      mode: temporal
      name: "{table}_history"
      options: {track_except: [note]}
"""


def test_lake_tables_say_another_mode_or_a_second_table(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL + HISTORY)
    assert rules(config.lake) == [Rule("orders", Temporal(track_except=("note",)), "{table}_history")]


EVOLUTION = """
  evolution: {drop_column: keep, change_type: new_column}
  tables:
    - {match: orders, mode: mirror, evolution: {add_column: stop}}
    - {match: "*", mode: append, name: "{table}_log"}
"""


def test_evolution_is_chosen_for_the_lake_and_for_some_tables(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL + EVOLUTION)
    lake = Evolution(drop_column="keep", change_type="new_column")
    assert evolution(config.lake.evolution) == lake
    assert [rule.evolution for rule in rules(config.lake)] == [lake.with_choices({"add_column": "stop"}), None]
    text = mistake(tmp_path, MINIMAL + EVOLUTION.replace("keep", "ignore"))
    assert "lake.evolution.drop_column" in text
    assert all(choice in text for choice in ("evolve", "keep", "stop"))


def test_an_option_that_the_mode_does_not_have_is_refused_with_those_it_has(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL + HISTORY.replace("track_except", "tracks"))
    with pytest.raises(ConfigError, match="mode temporal has no option 'tracks'") as refused:
        rules(config.lake)
    assert "track_except" in refused.value.remedy


def test_a_choice_in_a_mapping_of_the_users_own_names_is_named_with_what_there_is(tmp_path: Path) -> None:
    text = MINIMAL + "  tables: [{match: t, out_of_range: {amount: rebuild}}]\n"
    told = mistake(tmp_path, text)
    assert "lake.tables.0.out_of_range.amount: 'rebuild' is not a choice; available: stop, null, clamp, text" in told
    assert "mistakes" not in told, "that it is no single choice either is not said"


@pytest.mark.parametrize(
    ("lake", "spark", "expected", "remedy"),
    [
        (
            "  format: iceberg\n",
            "{remote: 'sc://host:15002'}",
            "spark.remote: tables of an Iceberg catalog of type hadoop are committed through",
            "delta",
        ),
        ("", "{remote: 'sc://host', master: yarn}", "spark.master cannot be set beside spark.remote", "Remove"),
        (
            "",
            "{remote: 'sc://host', app_name: x, packages: false}",
            "spark.app_name and spark.packages cannot",
            "Remove",
        ),
        ("", "{remote: 'spark://host:7077'}", "spark.remote is not the address of a Spark Connect server", "sc://"),
    ],
)
def test_what_spark_connect_cannot_do_is_refused_before_anything_starts(
    tmp_path: Path, lake: str, spark: str, expected: str, remedy: str
) -> None:
    (tmp_path / "shop.db").touch()
    with pytest.raises(ConfigError, match=re.escape(expected)) as caught:
        build_pipeline(load(tmp_path, f"{MINIMAL}{lake}spark: {spark}\n"))
    assert remedy in caught.value.remedy


def test_a_spark_connect_server_is_connected_to_when_spark_is_needed_and_not_before(tmp_path: Path) -> None:
    (tmp_path / "shop.db").touch()
    build_pipeline(load(tmp_path, f"{MINIMAL}spark: {{remote: 'sc://nobody.invalid:15002', conf: {{a: b}}}}\n"))
