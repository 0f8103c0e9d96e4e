"""Keys that a cloud hands out to an instance, a container or a service account: every library gets them by itself.

The S3 server is real and takes one pair of keys; who hands it out is an imitation (``cloud``). Each test works in a
process of its own, because libraries keep what the environment said when they were loaded.
"""

from __future__ import annotations

import os
import sqlite3
import ssl
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.storage.cloud import cloud

from lakefeed.lake.location import spark_options
from lakefeed.storage import location
from lakefeed.testing.server.object_store import Seaweed

_LIBRARIES = {
    "obstore": """
from lakefeed.storage.location import storage_at
storage_at(address, options).create("a", b"1")""",
    "deltalake": """
import pyarrow
from deltalake import write_deltalake
write_deltalake(f"{address}/table", pyarrow.table({"a": [1]}), storage_options=options)""",
    "pyarrow": """
from lakefeed.lake.location import filesystem
from lakefeed.storage.location import give_options
give_options(address, options)
files, path = filesystem(f"{address}/b")
files.open_output_stream(path).close()""",
}


def run(arguments: list[str], place: Path, variables: dict[str, str], seconds: float) -> str:
    """A process with no credentials but those that the variables lead to."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment = {**own, "HOME": str(place), "AWS_REGION": "us-east-1", **variables}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=place, env=environment, capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def use(library: str, seaweed: Seaweed, address: str, place: Path, variables: dict[str, str]) -> None:
    options = {"endpoint": seaweed.endpoint, "allow_http": "true", "region": "us-east-1"}
    run(["-c", f"address, options = {address!r}, {options!r}{_LIBRARIES[library]}"], place, variables, 60)


@pytest.mark.parametrize("library", [*_LIBRARIES])
@pytest.mark.parametrize("way", ["instance", "container"])
def test_keys_of_an_instance_and_a_container(
    seaweed: Seaweed, address: str, tmp_path: Path, library: str, way: str
) -> None:
    with cloud(tmp_path) as given:
        use(library, seaweed, address, tmp_path, getattr(given, way))
        assert given.asked[0] == (way, "a-token" if way == "container" else "")


@pytest.mark.parametrize("library", ["obstore", "deltalake"])
def test_keys_of_a_service_account(seaweed: Seaweed, address: str, tmp_path: Path, library: str) -> None:
    """pyarrow asks the cloud's own token service, whatever the environment says."""
    with cloud(tmp_path, certified(tmp_path)) as given:
        sts = given.service_account(f"https://localhost:{given.port}")
        use(library, seaweed, address, tmp_path, {**sts, "SSL_CERT_FILE": str(tmp_path / "ca.pem")})
        assert given.asked[0] == ("AssumeRoleWithWebIdentity", "a-token")


def test_hadoops_connector_is_told_of_a_service_account_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(location, "_given", {})
    name, address = "fs.s3a.bucket.shop.aws.credentials.provider", "s3://shop/lake"
    assert name not in spark_options(address)
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/token")
    assert name not in spark_options(address), "a role belongs to it"
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/x")
    assert spark_options(address)[name].endswith(".WebIdentityTokenFileCredentialsProvider")
    location.give_options(address, {"access_key_id": "a", "secret_access_key": "b"})
    assert name not in spark_options(address), "keys come first"


@pytest.mark.slow
def test_a_pipeline_with_keys_of_a_container(seaweed: Seaweed, address: str, tmp_path: Path) -> None:
    """Journal, copy and merge by whole commands, without one key in a file or in the environment."""
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as writer, cloud(tmp_path) as given:
        writer.execute("CREATE TABLE a (id INTEGER PRIMARY KEY, v TEXT)")
        writer.executemany("INSERT INTO a VALUES (?, 'x')", [(number,) for number in range(5)])
        (tmp_path / "shop.yaml").write_text(
            "pipeline: shop\nsource: {kind: sqlite, path: shop.db, capture: trigger, tables: ['*']}\n"
            f"lake:\n  path: {address}\n  format: delta\n"
            f"storage: {{endpoint: '{seaweed.endpoint}', allow_http: true}}\n"
        )
        sync = ["-m", "lakefeed", "sync", "shop.yaml"]
        run(sync, tmp_path, given.container, 300)
        writer.execute("UPDATE a SET v = 'y' WHERE id = 3")
        run(sync, tmp_path, given.container, 300)
        verify = run(["-m", "lakefeed", "verify", "shop.yaml"], tmp_path, given.container, 300)
        assert "equal" in verify
        assert {way for way, _ in given.asked} == {"container"}


@pytest.mark.slow
def test_spark_with_keys_of_a_service_account(seaweed: Seaweed, address: str, tmp_path: Path) -> None:
    """Hadoop's connector alone: without the setting it tries instance and container, and gives up."""
    script = f"""
from lakefeed import spark_session
from lakefeed.lake.location import spark_options, spark_path
from lakefeed.storage.location import give_options
address = {address!r}
give_options(address, {{"endpoint": {seaweed.endpoint!r}, "allow_http": "true", "region": "us-east-1"}})
spark = spark_session(formats=("delta",), stores=("s3",))
for name, value in spark_options(address).items():
    spark.conf.set(name, value)
spark.range(5).write.parquet(spark_path(f"{{address}}/rows"))
print(spark.read.parquet(spark_path(f"{{address}}/rows")).count(), "rows")
"""
    with cloud(tmp_path) as given:
        said = run(["-c", script], tmp_path, given.service_account(given.address), 300)
        assert "5 rows" in said
        assert given.asked[0] == ("AssumeRoleWithWebIdentity", "a-token")


def certified(place: Path) -> ssl.SSLContext:
    """A server's certificate for localhost, and in ``ca.pem`` that of the authority that signed it."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in ("a test", "localhost")]
    now = datetime.now(UTC)
    made = []
    for key, name, is_authority in ((keys[0], names[0], True), (keys[1], names[1], False)):
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(names[0]).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=1))
        builder = builder.not_valid_after(now + timedelta(days=1))
        builder = builder.add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        if not is_authority:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        made.append(builder.sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    secret = keys[1].private_bytes(serialization.Encoding.PEM, *form)
    (place / "ca.pem").write_bytes(made[0])
    (place / "server.pem").write_bytes(made[1] + secret)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(place / "server.pem")
    return context
