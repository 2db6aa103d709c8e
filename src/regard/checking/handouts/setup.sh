#!/usr/bin/env bash
# Gradescope runs this once, when it builds the image: Python of at least 3.11, and regard with what it needs.
set -e
cd "$(dirname "${BASH_SOURCE[0]}")"
python=python3
if ! "$python" -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))'; then
    apt-get update
    apt-get install -y python3.11 python3.11-venv
    python=python3.11
fi
"$python" -m venv env
regard=$(ls regard-*.whl 2>/dev/null || echo regard==VERSION)
env/bin/python -m pip install --quiet "$regard" ruff
