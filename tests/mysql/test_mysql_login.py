"""Who is let in, and what is encrypted: TLS with an authority of its own, kinds of passwords, no way around either."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pymysql
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from tests.mysql.conftest import FLAVOURS, version_of
from tests.mysql.play import Play

from lakefeed.capture.mysql import database as databases
from lakefeed.capture.mysql.database import Database
from lakefeed.change.batch import Operation
from lakefeed.errors import ConfigError, SourceSetupError, SourceUnavailableError
from lakefeed.testing.capture_subject import changes
from lakefeed.testing.server.fetch import installation
from lakefeed.testing.server.mysql import RELEASES, Flavour, MysqlServer

_MARIADB = [one for one in RELEASES if one.flavour == "mariadb"]


def _certificates(place: Path) -> dict[str, str]:
    """An authority, a server's certificate for the name ``localhost`` alone, and another authority."""
    keys = {name: rsa.generate_private_key(65_537, 2048) for name in ("ca", "server", "other")}
    now = datetime.now(UTC)
    for name, key in keys.items():
        title = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"lakefeed {name}")])
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lakefeed ca")]) if name == "server" else title
        is_authority = name != "server"
        made = (
            x509.CertificateBuilder(issuer, title, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if not is_authority:
            made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        signed = made.sign(keys["ca"] if name == "server" else key, hashes.SHA256())
        (place / f"{name}.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        plain = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        (place / f"{name}.key").write_bytes(plain)
    return {
        "ssl_ca": str(place / "ca.pem"),
        "ssl_cert": str(place / "server.pem"),
        "ssl_key": str(place / "server.key"),
    }


@pytest.fixture(scope="module", params=FLAVOURS)
def secure(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MysqlServer]:
    settings = _certificates(tmp_path_factory.mktemp("tls"))
    if request.param == "mariadb":
        settings["ssl"] = "ON"
    with MysqlServer.start(request.param, settings) as server:
        with server.connect() as admin, admin.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop")
        yield server


def _dsn(server: MysqlServer, mode: str, *, host: str = "localhost", user: str = "root", ca: str = "ca.pem") -> str:
    place = Path(server.settings["ssl_ca"]).with_name(ca)
    return f"{server.flavour}://{user}@{host}:{server.port}/?ssl-mode={mode}&ssl-ca={place}"


def test_t27_a_verified_connection_streams_and_copies(secure: MysqlServer, tmp_path: Path) -> None:
    play = Play(secure, "shop", tmp_path, dsn=_dsn(secure, "VERIFY_IDENTITY"))
    with Database(play.source.dsn, secure.flavour).connection() as connection:
        assert connection.run("SHOW SESSION STATUS LIKE 'Ssl_cipher'")[0][1]
    play.run("INSERT INTO t VALUES " + ", ".join(f"({n}, '{'x' * 1000}')" for n in range(3000)))
    assert changes(play.drain()) == [(Operation.INSERT, n) for n in range(3000)]
    with play.capture.snapshot(play.table).chunks[0].open() as reader:
        assert sum(batch.num_rows for batch in reader) == 3000
    play.close()


def test_t27_a_certificate_that_does_not_verify_is_refused_and_not_tried_again(secure: MysqlServer) -> None:
    with Database(_dsn(secure, "VERIFY_CA", host="127.0.0.1"), secure.flavour).connection() as connection:
        assert connection.value("SELECT 1") == 1
    for dsn in (
        _dsn(secure, "VERIFY_IDENTITY", host="127.0.0.1"),  # the certificate is for another name
        _dsn(secure, "VERIFY_CA", ca="other.pem"),
        _dsn(secure, "VERIFY_IDENTITY", ca="other.pem"),
    ):
        with pytest.raises(SourceSetupError, match="cannot verify its certificate"):
            Database(dsn, secure.flavour).connect()
    with pytest.raises(ConfigError, match="cannot be read"):
        Database(_dsn(secure, "VERIFY_CA", ca="nowhere.pem"), secure.flavour).connect()


def test_accounts_with_a_password_are_let_in_with_and_without_tls(
    secure: MysqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    means = ["VIA mysql_native_password USING PASSWORD('sesame')"]
    if secure.flavour == "mysql":
        kinds = ["caching_sha2_password", *(["mysql_native_password"] if version_of(secure) < (8, 4) else [])]
        means = [f"WITH {kind} BY 'sesame'" for kind in kinds]
    with secure.connect() as admin, admin.cursor() as cursor:
        for number, identified in enumerate(means):
            for mode in ("DISABLED", "VERIFY_IDENTITY"):  # another account for each: the server remembers a login
                user = f"u{number}_{mode.lower()}"
                cursor.execute(f"CREATE USER {user}@localhost IDENTIFIED {identified}")
                monkeypatch.setenv("MYSQL_PWD", "sesame")
                place = Database(_dsn(secure, mode, user=user), secure.flavour)
                with place.connection() as connection:
                    assert connection.value("SELECT CURRENT_USER()") == f"{user}@localhost"
                for wrong in ("", "simsim"):
                    monkeypatch.setenv("MYSQL_PWD", wrong)
                    with pytest.raises(SourceSetupError, match="Access denied"):
                        place.connect()
                cursor.execute(f"DROP USER {user}@localhost")


def test_t27_a_server_without_tls_is_refused(servers: Callable[[Flavour], MysqlServer]) -> None:
    server = servers("mariadb")  # started without
    for mode in ("REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"):
        with pytest.raises(SourceSetupError, match="SSL is required"):
            Database(server.dsn.replace("DISABLED", mode), "mariadb").connect()


@pytest.mark.parametrize("plugin", ["mysql_clear_password", "dialog"])
def test_a_server_that_is_not_verified_gets_no_password_in_clear_text(plugin: str) -> None:
    """One in the middle, which asks for it."""
    heard = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.settimeout(10)
                capabilities = 0x0008_0000 | 0x8000 | 0x0200 | 0x0008  # plugins, passwords, protocol 4.1, a database
                hello = b"\x0a8.0.33\0" + struct.pack("<I", 1) + b"saltsalt\0"
                hello += struct.pack("<HBHHB", capabilities & 0xFFFF, 45, 2, capabilities >> 16, 21) + bytes(10)
                hello += b"saltsaltsalt\0mysql_native_password\0"
                peer.sendall(len(hello).to_bytes(3, "little") + b"\0" + hello)
                heard.extend(peer.recv(4096))
                switch = b"\xfe" + plugin.encode() + b"\0\4Password: "
                peer.sendall(len(switch).to_bytes(3, "little") + b"\2" + switch)
                heard.extend(peer.recv(4096))

        thread = threading.Thread(target=answer)
        thread.start()
        dsn = f"mysql://me:sesame@127.0.0.1:{listener.getsockname()[1]}/?ssl-mode=DISABLED"
        with pytest.raises(SourceSetupError, match="clear text"):
            Database(dsn).connect()
        thread.join(10)
    assert b"me" in heard
    assert b"sesame" not in heard


def test_t27_a_server_that_says_nothing_at_a_login_is_left_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "_CONNECT_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place, began = Database(f"mysql://me@127.0.0.1:{listener.getsockname()[1]}/"), time.monotonic()
        with pytest.raises(SourceUnavailableError):
            place.connect(databases.READING)
    assert time.monotonic() - began < 5


def test_a_password_that_needs_a_missing_package_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(**options: object) -> None:
        raise RuntimeError("'pynacl' package is required for ed25519_password auth method")

    monkeypatch.setattr(pymysql, "connect", connect)
    with pytest.raises(SourceSetupError, match="pynacl") as error:
        Database("mariadb://me@localhost/", "mariadb").connect()
    assert error.value.remedy == "pip install 'lakefeed[mysql]'"


def test_an_account_of_mariadb_with_an_ed25519_password_is_let_in_and_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's side of it is a plugin, which comes with the Debian package of the whole server."""
    version = os.environ.get("LAKEFEED_MARIADB", _MARIADB[0].version)
    suites = {one.version: one.suite for one in _MARIADB if one.maven is None}
    if version not in suites:
        return  # made by somebody else, without the plugin
    place = installation(f"mariadb-{version}-plugins", debian=(suites[version], ("mariadb-server",)))
    settings = {"plugin_dir": str(place / "usr/lib/mysql/plugin"), "plugin_load_add": "auth_ed25519"}
    with MysqlServer.start("mariadb", settings) as server, server.connect() as admin, admin.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        cursor.execute("CREATE USER ed@localhost IDENTIFIED VIA ed25519 USING PASSWORD('sesame')")
        cursor.execute("GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO ed@localhost")
        cursor.execute("GRANT SELECT ON shop.* TO ed@localhost")
        dsn = server.dsn.replace("root@", "ed@")
        for wrong in ("", "simsim"):
            monkeypatch.setenv("MYSQL_PWD", wrong)
            with pytest.raises(SourceSetupError, match="Access denied"):
                Database(dsn, "mariadb").connect()
        monkeypatch.setenv("MYSQL_PWD", "sesame")
        play = Play(server, "shop", tmp_path, dsn=dsn)
        play.run("INSERT INTO t VALUES (1, 'a')")
        assert changes(play.drain()) == [(Operation.INSERT, 1)]
        play.close()


@pytest.mark.parametrize(
    ("dsn", "part"),
    [
        ("mysql:/a@b", "it must begin with mysql://"),  # it would be localhost
        ("mysql://a@b:70000/", "its port is not a number"),
        ("mysql://a:secret@b:x/", "its port is not a number"),
        ("mysql://a:secret@[b/", "its host cannot be read"),
    ],
)
def test_an_address_that_cannot_be_one_is_told_which_part(dsn: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part) as refused:
        Database(dsn, "mysql")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("address", "remedy"),
    [("127.0.0.1:1", "Start the server, or correct host and port"), ("nowhere.invalid", "Correct the host")],
)
def test_a_server_that_is_not_there_is_answered_with_what_to_correct(address: str, remedy: str) -> None:
    with pytest.raises(SourceUnavailableError) as gone:
        Database(f"mysql://a@{address}/", "mysql").connect()
    assert gone.value.remedy.startswith(remedy)
