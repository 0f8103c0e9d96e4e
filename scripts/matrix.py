"""``make matrix``: the tests of MySQL and MariaDB with every version of their servers, one after the other.

Prints what ran, with which result, and what could not be had and why. Ends with 1 if a test failed or a server could
not be had: what did not run proves nothing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

from lakefeed.testing.server.fetch import FetchError
from lakefeed.testing.server.mysql import RELEASES, MysqlServer, Release

TESTS = "tests/mysql"


def main(names: list[str]) -> int:
    known = {f"{one.flavour}-{one.version}": one for one in RELEASES}
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"There is no {', '.join(unknown)}; there are {', '.join(known)}.", file=sys.stderr)
        return 2
    results = {name: _run(release) for name, release in known.items() if not names or name in names}
    print("\nDatabase servers:")
    for name, (version, _, result) in results.items():
        print(f"  {name:<16}{version:<42}{result}")
    return 0 if all(is_good for _, is_good, _ in results.values()) else 1


def _run(release: Release) -> tuple[str, bool, str]:
    """The server's own version, whether all is well, and a sentence."""
    name = f"LAKEFEED_{release.flavour.upper()}"
    os.environ[name] = release.version
    try:
        release.fetch()
        with (
            MysqlServer.start(release.flavour) as server,
            server.connect() as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("SELECT version()")
            version = str(cursor.fetchone()[0])  # type: ignore[index]  # one row
    except FetchError as error:
        return "", False, f"not run: {error}"
    except AssertionError as error:
        return "", False, f"not run: it does not start: {str(error).strip().splitlines()[-1]}"
    print(f"\n{release.flavour} {version}", flush=True)
    chosen = "not mariadb" if release.flavour == "mysql" else "mariadb"  # by the parameter in a test's name
    command = [sys.executable, "-m", "pytest", TESTS, "-n", "0", "-q", "-m", "not slow", "-k", chosen]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tests:
        last = ""
        for line in tests.stdout or ():
            print(line, end="", flush=True)
            last = line.strip() or last
    del os.environ[name]
    return version, tests.returncode == 0, re.sub(r"[= ]+$|^[= ]+", "", last)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
