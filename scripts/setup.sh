#!/usr/bin/env bash
# Makes .venv with everything that the project, its tests and its demo need. Quick when nothing changed.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\033[2m%s\033[0m\n' "setup: $*" >&2; }

need_apt() {  # need_apt COMMAND PACKAGE... : install the packages when the command is missing and we may
  local command=$1; shift
  command -v "$command" >/dev/null 2>&1 && return 0
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    say "installing $*"
    { [ -n "${APT_FRESH:-}" ] || apt-get update -qq; } && APT_FRESH=1
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null || say "could not install $*"
  else
    say "missing: $command (Debian/Ubuntu: apt-get install $*)"
  fi
}

python=${PYTHON:-}
if [ -z "$python" ]; then
  for candidate in python3.11 python3.12 python3.13 python3; do
    if command -v "$candidate" >/dev/null 2>&1 && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
      python=$candidate; break
    fi
  done
fi
[ -n "$python" ] || { echo "setup: Python 3.11 or newer is needed; install it or set PYTHON=/path/to/python3" >&2; exit 1; }

stamp=.venv/.setup-$(cat pyproject.toml scripts/setup.sh | sha256sum | cut -c1-16)
[ -e "$stamp" ] && exit 0

need_apt rg ripgrep
need_apt git git
if [ ! -x .venv/bin/python ]; then
  say "making .venv with $($python --version)"
  if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    [ "$(id -u)" = 0 ] && { apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "python$version-venv" >/dev/null; }
  fi
  "$python" -m venv .venv
fi
say "installing the package and its tools (the first time takes minutes)"
.venv/bin/python -m pip install -q --disable-pip-version-check -e '.[test,lint]'

# PyTorch: the CPU build is enough and is a tenth of the size. Without it the demo uses plain processes,
# and the tests that drive real PyTorch jobs fail in CI (CI=true) and are skipped elsewhere.
if ! .venv/bin/python -c 'import torch' 2>/dev/null; then
  say "installing PyTorch (CPU)"
  .venv/bin/python -m pip install -q --disable-pip-version-check --retries 1 --timeout 60 numpy "torch==${TORCH_VERSION:-2.13.0}" \
    --extra-index-url "${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}" 2>/dev/null ||
    .venv/bin/python -m pip install -q --disable-pip-version-check numpy "torch==${TORCH_VERSION:-2.13.0}" ||
    say "no PyTorch to be had here: going on without"
fi
rm -f .venv/.setup-*
touch "$stamp"
say "done: .venv/bin/jobwatchdog"
