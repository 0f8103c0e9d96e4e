#!/usr/bin/env bash
# Writes dist/sbom.cdx.json, then asks which of the locked packages have known holes, and fails if one has. A package that
# could not be asked about fails it, too: silence is no answer. SERVICE=osv asks osv.dev instead of the package index.
set -euo pipefail
cd "$(dirname "$0")/.."

.venv/bin/python -m scripts.sbom dist/sbom.cdx.json

tool=.venv-audit
wanted=pip-audit==2.10.1
if ! "$tool/bin/pip-audit" --version 2>/dev/null | grep -qF "${wanted#*==}"; then
  if command -v uv >/dev/null; then
    uv venv --quiet --clear --python .venv/bin/python "$tool"
    uv pip install --quiet --python "$tool/bin/python" "$wanted"
  else
    .venv/bin/python -m venv --clear "$tool"
    "$tool/bin/python" -m pip install --quiet "$wanted"
  fi
fi

status=0
for lock in requirements.lock requirements-java.lock; do
  echo "$lock:"
  "$tool/bin/pip-audit" --strict --progress-spinner off --disable-pip --require-hashes \
    --vulnerability-service "${SERVICE:-pypi}" -r "$lock" || status=1
done
if [ "$status" -ne 0 ]; then
  echo "The audit found something, or could not ask. Remedy: raise the versions that are named in pyproject.toml, then" \
    "make lock; if packages could not be audited, run it where the package index answers such questions, or with SERVICE=osv." >&2
fi
exit "$status"
