"""Profiles of ``~/.aws``: what is taken from where, and that a store with authentication lets every library in."""

from __future__ import annotations

import sqlite3
import uuid
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.storage.on_store import read_store

from lakefeed import Delta, Pipeline, Sqlite
from lakefeed.errors import ConfigError, LakefeedError
from lakefeed.lake.location import file_io, spark_options
from lakefeed.storage import location
from lakefeed.storage.location import options_of, storage_at
from lakefeed.storage.profile import with_profile
from lakefeed.testing.server.object_store import OPTIONS, Seaweed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VARIABLES = [
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
]
CREDENTIALS = """
[default]
aws_access_key_id = default-key
aws_secret_access_key = default%secret

[shop]
aws_access_key_id = shop-key
aws_secret_access_key = shop-secret
aws_session_token = shop-token
"""
CONFIG = """
[default]
region = eu-west-1

[profile shop]
region = eu-central-1
endpoint_url = https://s3.example

[profile sso]
sso_session = company
region = eu-west-3

[profile role]
role_arn = arn:aws:iam::1:role/x
source_profile = default
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(location, "_given", {})
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(CREDENTIALS)
    (tmp_path / ".aws" / "config").write_text(CONFIG)
    return tmp_path


SHOP = {
    "access_key_id": "shop-key",
    "secret_access_key": "shop-secret",
    "session_token": "shop-token",
    "region": "eu-central-1",
    "endpoint": "https://s3.example",
}


def test_the_default_profile_is_used_where_nothing_is_said(home: Path) -> None:
    keys = {"access_key_id": "default-key", "secret_access_key": "default%secret"}
    assert with_profile({}) == {**keys, "region": "eu-west-1"}
    assert with_profile({"region": "us-east-2"}) == {**keys, "region": "us-east-2"}
    for name in ("credentials", "config"):
        (home / ".aws" / name).unlink()
    assert with_profile({}) == {}, "then the role of the machine, by the libraries"


def test_a_profile_is_named_by_the_environment_or_the_configuration(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert with_profile({"profile": "shop"}) == SHOP
    monkeypatch.setenv("AWS_PROFILE", "shop")
    assert with_profile({}) == SHOP
    assert with_profile({"aws_region": "x", "endpoint_url": "y"}).keys() == {
        "access_key_id",
        "secret_access_key",
        "session_token",
        "aws_region",
        "endpoint_url",
    }
    (home / "elsewhere").write_text("[shop]\naws_access_key_id = a\naws_secret_access_key = b\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(home / "elsewhere"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(home / "none"))
    assert with_profile({}) == {"access_key_id": "a", "secret_access_key": "b"}


def test_keys_that_are_given_come_before_a_profile_and_are_not_mixed_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"access_key_id": "own", "secret_access_key": "mine"}
    assert with_profile(given) == {**given, "region": "eu-west-1"}
    assert with_profile({**given, "profile": "shop"}) == {
        **given,
        "region": "eu-central-1",
        "endpoint": SHOP["endpoint"],
    }
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-the-environment")
    monkeypatch.setenv("AWS_REGION", "from-the-environment")
    assert with_profile({}) == {}
    assert with_profile({"profile": "shop"}) == SHOP, "what the configuration names comes before the environment"


def test_what_is_not_supported_is_refused_and_no_key_is_in_the_text(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, how in (("sso", "sso_session"), ("role", "role_arn")):
        with pytest.raises(ConfigError, match=f"gets its keys by {how}") as refused:
            with_profile({"profile": name})
        assert f"aws configure export-credentials --profile {name} --format env" in refused.value.remedy
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ConfigError, match="there is no profile 'nobody'"):
        with_profile({})
    (home / ".aws" / "credentials").write_text("aws_secret_access_key = very-secret\n")
    with pytest.raises(ConfigError, match="cannot be read") as broken:
        with_profile({})
    assert "very-secret" not in str(broken.value)
    monkeypatch.delenv("AWS_PROFILE")
    (home / ".aws" / "credentials").write_text("")
    (home / ".aws" / "config").write_text("[default]\nsso_start_url = https://company.example\n")
    assert with_profile({}) == {}
    assert "sso_start_url, which is not supported" in caplog.text


def test_only_s3_has_profiles() -> None:
    assert options_of("gs://bucket/x") == {}
    assert options_of("/a/directory") == {}


def in_home(home: Path, seaweed: Seaweed) -> None:
    keys = f"aws_access_key_id = {OPTIONS['access_key_id']}\naws_secret_access_key = {OPTIONS['secret_access_key']}\n"
    (home / ".aws" / "credentials").write_text(
        f"[lake]\n{keys}[wrong]\naws_access_key_id = x\naws_secret_access_key = y\n"
    )
    (home / ".aws" / "config").write_text(f"[profile lake]\nregion = us-east-1\nendpoint_url = {seaweed.endpoint}\n")


def test_a_store_with_authentication_is_opened_by_a_profile(home: Path, seaweed: Seaweed) -> None:
    in_home(home, seaweed)
    address = f"s3://lakefeed/{uuid.uuid4().hex}"
    storage = storage_at(address, {"profile": "lake", "allow_http": "true"})
    storage.create("a", b"1")
    assert storage_at(address).read("a") == b"1", "the bucket's options are known from here on"
    wrong = {"profile": "wrong", "allow_http": "true", "endpoint": seaweed.endpoint, "region": "us-east-1"}
    with pytest.raises(LakefeedError) as refused:
        storage_at(address, wrong).read("a")
    assert "'y'" not in str(refused.value)


@pytest.mark.spark
def test_a_pipeline_with_a_profile_reaches_the_store_by_every_library(
    home: Path, spark: SparkSession, seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal by obstore, copies by pyarrow, commits by deltalake, merges by Hadoop's connector."""
    in_home(home, seaweed)
    monkeypatch.setenv("AWS_PROFILE", "lake")
    address, path = f"s3://lakefeed/{uuid.uuid4().hex}", home / "shop.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("CREATE TABLE a (id INTEGER PRIMARY KEY, v TEXT)")
        writer.executemany("INSERT INTO a VALUES (?, 'x')", [(number,) for number in range(5)])
        lake = Delta(spark, address, storage_options={"allow_http": "true"})
        with Pipeline(Sqlite(str(path)), lake, storage_options={"allow_http": "true"}) as pipeline:
            pipeline.sync_once()
            writer.execute("UPDATE a SET v = 'y' WHERE id = 3")
            pipeline.sync_once()
    rows = read_store(f"{address}/main/a", seaweed.options)
    assert sorted((row["id"], row["v"]) for row in rows) == [(0, "x"), (1, "x"), (2, "x"), (3, "y"), (4, "x")]
    assert spark_options(address)["fs.s3a.bucket.lakefeed.access.key"] == OPTIONS["access_key_id"]
    assert file_io(address)["s3.access-key-id"] == OPTIONS["access_key_id"], "for Iceberg, in Java and in Python"
