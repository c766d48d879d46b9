#!/usr/bin/env bash
# The whole suite. Ray and PyTorch jobs are real; two workers share the machine.
set -euo pipefail
cd "$(dirname "$0")/.."
export RAY_AUTH_MODE=disabled RAY_DISABLE_IMPORT_WARNING=1 PYTHONDONTWRITEBYTECODE=1
.venv/bin/python -m pytest -q -n "${JOBS:-2}" --dist worksteal --durations=15 "$@"
