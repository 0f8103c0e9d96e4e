"""Finding Java, building a session, checking one that the user brings."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lakefeed.errors import ConfigError, SparkSetupError
from lakefeed.lake.location import escaped, lake_root
from lakefeed.lake.spark.jars import remember_jars, remembered_jars, resolving
from lakefeed.lake.spark.java import _wrapped, find_java, java_version
from lakefeed.lake.spark.session import checked_session, driver_memory_bytes, forget_logs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def fake_java(home: Path, text: str) -> Path:
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    script.chmod(0o755)
    return script


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ("something else", None),
    ],
)
def test_the_version_of_java_is_read_as_java_says_it(tmp_path: Path, text: str, version: int | None) -> None:
    assert java_version(fake_java(tmp_path, text)) == version


def test_a_java_that_is_too_old_is_named_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, 'java version "1.8.0_402"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkSetupError, match="is Java 8") as refused:
        find_java()
    assert "JAVA_HOME" in refused.value.remedy


def test_no_java_at_all_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkSetupError, match="no Java was found"):
        find_java()


def test_the_packaged_java_is_not_given_the_module_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmp_path / "real java"
    real.write_text('#!/bin/sh\nfor one do echo "[$one]"; done\n')
    real.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = _wrapped(real)
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "--add-modules=java.sql", "x'y"]
    answer = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == ["[-cp]", "[a b]", "[]", "[--add-modules=java.sql]", "[x'y]"]


def test_jars_are_remembered_until_one_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ours, sparks = tmp_path / "io.delta_delta-spark_4.1_2.13-4.4.0.jar", tmp_path / "org.x_zstd-jni-1.0.jar"
    ours.touch()
    sparks.touch()
    remember_jars([f"file://{ours}", f"file://{sparks}"])
    assert remembered_jars() == (str(ours),), "a jar that Spark ships is left out"
    ours.unlink()
    assert remembered_jars() == ()


def test_two_processes_that_need_jars_resolve_them_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jar, coordinates = tmp_path / "org.x_own-1.0.jar", "org.x:own:1.0"
    jar.touch()
    found: list[tuple[str, ...]] = []

    def second() -> None:
        with resolving(coordinates) as jars:
            found.append(jars)

    with resolving(coordinates) as jars:
        assert jars == ()
        other = threading.Thread(target=second)
        other.start()
        other.join(0.5)
        assert not found, "the second waits while the first resolves"
        remember_jars([f"file://{jar}"], coordinates)
    other.join(30)
    assert found == [(str(jar),)], "and then has what the first has found"


def test_the_drivers_memory_is_a_share_of_the_machines() -> None:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 1024**3 <= driver_memory_bytes() <= max(1024**3, total // 4)


def test_names_stay_different_and_percent_signs_are_refused() -> None:
    assert [escaped(name) for name in ("orders", "a/b", "_x", "..", "a~2Fb")] == [
        "orders", "a~2Fb", "~5Fx", "~2E.", "a~7E2Fb",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="percent"):
        lake_root("/data/50%/lake")


def test_nothing_of_spark_is_imported_before_it_is_needed(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from lakefeed.change.table import TableId\n"
        "from lakefeed.lake.delta import Delta\n"
        "from lakefeed.lake.engine import Engine\n"
        "loaded = lambda: {m.split('.')[0] for m in sys.modules} & {'pyspark', 'py4j', 'delta', 'deltalake'}\n"
        "assert not loaded(), loaded()\n"
        f"tables = Delta(lambda: 1 / 0, {str(tmp_path)!r}).bind('p')\n"
        "route = tables.routes(TableId('main', 't'))[0]\n"
        "assert tables.table(route).applied(1) is None\n"
        "assert loaded() == {'deltalake'}, loaded()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.spark
def test_a_built_session_is_quiet_on_loopback_and_uses_this_interpreter(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.driver.host") == "127.0.0.1"
    assert conf.get("spark.ui.enabled") == "false"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.pythonExec == sys.executable
    assert checked_session(spark) is spark


@pytest.mark.spark
def test_a_built_session_does_not_remember_the_files_of_every_window(spark: SparkSession) -> None:
    """Spark's own cache has 250 MB of them, each reader's apart, so that nobody ever finds one there again."""
    jvm: Any = spark._jvm
    cache = jvm.org.apache.spark.sql.execution.datasources.FileStatusCache.getOrCreate(spark._jsparkSession)
    assert "NoopCache" in cache.getClass().getName()


def test_a_session_without_delta_is_refused_with_the_settings_to_add(spark: SparkSession) -> None:
    other = spark.newSession()
    other.conf.set("spark.sql.catalog.spark_catalog", "org.example.Other")
    with pytest.raises(SparkSetupError, match="without Delta") as refused:
        checked_session(other)
    assert "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog" in refused.value.remedy


@pytest.mark.spark
def test_a_session_whose_workers_run_another_python_is_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/usr/bin/env")
    with pytest.raises(SparkSetupError, match="/usr/bin/env") as refused:
        checked_session(spark)
    assert f"PYSPARK_PYTHON={sys.executable}" in refused.value.remedy


@pytest.mark.spark
def test_local_files_get_their_permissions_without_a_program_for_each(spark: SparkSession, tmp_path: Path) -> None:
    jvm: Any = spark._jvm
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    files = jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI.create("file:///tmp"), hadoop)
    assert files.getClass().getName() == "lakefeed.LocalFiles"
    spark.range(3).coalesce(1).write.parquet(str(tmp_path / "out"))
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o755
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()} == {0o644}
    assert spark.read.parquet(str(tmp_path / "out")).count() == 3


@pytest.mark.spark
def test_hadoops_configuration_travels_without_the_names_of_its_files(spark: SparkSession) -> None:
    session: Any = spark._jsparkSession
    travels = session.sessionState().newHadoopConf()
    for name in ("io.file.buffer.size", "mapreduce.job.ubertask.enable"):
        assert travels.get(name) is not None
        assert travels.getPropertySources(name) is None


def test_logs_of_old_sessions_go_although_another_process_removes_them_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [tmp_path / f"spark-{number}.log" for number in range(40)]
    for age, path in enumerate(kept):
        path.touch()
        os.utime(path, (1000 - age, 1000 - age))
    listed = list(kept)
    kept[3].unlink()  # after it was listed
    monkeypatch.setattr(Path, "glob", lambda *_: iter(listed))
    forget_logs(tmp_path)
    left = [number for number, path in enumerate(kept) if path.exists()]
    assert left == [number for number in range(len(left) + 1) if number != 3], "the newest stay"
    assert len(left) < 39


@pytest.mark.slow
def test_spark_starts_where_the_machines_name_has_no_address() -> None:
    """As in a container without an entry in /etc/hosts, or on a laptop behind a VPN."""
    own = ["--uts"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--uts"]
    program = "from lakefeed import spark_session; print(spark_session().range(3).count())"
    script = f'hostname no-such-host-of-anyones && exec {sys.executable} -c "{program}"'
    done = subprocess.run(["unshare", *own, "bash", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.split()[-1:] == ["3"], done.stderr
