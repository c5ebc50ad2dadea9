#!/usr/bin/env bash
# Links between the documents lead to files and headings that exist.
set -euo pipefail
cd "$SOURCE"
exec python3 -B tests/docs/links.py
