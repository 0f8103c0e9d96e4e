#!/usr/bin/env bash
# Writes the lock files from pyproject.toml: exact versions with hashes, for every platform and Python 3.11 or newer, and
# no registry address in them. Needs uv. The demo has a file of its own, with the same versions and without the tools of
# developers; so has the JRE, because most machines have Java.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v uv >/dev/null || {
  echo "make lock needs uv, which is not on the PATH. Remedy: python3 -m pip install uv" >&2
  exit 1
}

compile() {
  uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
    --no-emit-index-url --no-emit-find-links --no-header --no-annotate "$@"
}

compile --extra dev pyproject.toml --output-file requirements.lock
compile --extra demo --constraint requirements.lock pyproject.toml --output-file requirements-demo.lock
sed -n 's/^java = \["\(.*\)"\]$/\1/p' pyproject.toml | compile - --output-file requirements-java.lock
