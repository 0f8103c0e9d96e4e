#!/usr/bin/env bash
# Creates .venv-connect: what .venv has, and the client of Spark Connect. pandas and gRPC come with it, which Lakefeed
# does without elsewhere, so that the other tests prove that it does.
set -euo pipefail
cd "$(dirname "$0")/.."

weed() { ln -sf "$PWD/.venv/bin/weed" .venv-connect/bin/weed; } # SeaweedFS, which tests look for beside their Python

if [ -e .venv-connect/.ready ]; then
  weed
  exit 0
fi
.venv/bin/python -m venv --clear .venv-connect
packages=$(.venv-connect/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$packages/venv.pth"
echo "$PWD/src" >> "$packages/venv.pth"
.venv/bin/python -c 'import tomllib; print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["connect"]))' \
  > .venv-connect/client.txt
.venv-connect/bin/pip install --quiet --disable-pip-version-check -r .venv-connect/client.txt
weed
touch .venv-connect/.ready
