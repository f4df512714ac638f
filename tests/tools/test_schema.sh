#!/bin/bash
# The JSON schema of the configuration, by a validator of another language, over all shipped configurations; skipped
# where Python has no jsonschema and no PyYAML (Debian: python3-jsonschema, python3-yaml).
set -u
cd "$(dirname "$0")/../.." || exit 1
echo 1..1
if ! "${PYTHON:-python3}" -c 'import jsonschema, yaml' 2>/dev/null; then
    echo "ok 1 - shipped_configurations_are_valid_by_the_schema # SKIP Python's jsonschema and yaml are not installed"
elif said=$("${PYTHON:-python3}" tests/tools/schema.py build/phalanx models/configs/*.yaml 2>&1); then
    echo "ok 1 - shipped_configurations_are_valid_by_the_schema"
else
    echo "not ok 1 - shipped_configurations_are_valid_by_the_schema"
    echo "# ${said//$'\n'/$'\n'# }"
    exit 1
fi
