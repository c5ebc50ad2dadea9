#!/usr/bin/env bash
# The 1,115,394 bytes of Shakespeare on which char-rnn and nanoGPT published losses (the plays are in the public
# domain). tinyshakespeare.sh OUTPUT.txt downloads them, checks the hash, and keeps a right file that is there.
set -euo pipefail
output=${1:?usage: tinyshakespeare.sh OUTPUT.txt}
url=https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt
hash=86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed
matches() { echo "$hash  $1" | sha256sum --check --status 2>/dev/null; }
if matches "$output"; then exit 0; fi
trap 'rm -f "$output.part"' EXIT
if command -v curl >/dev/null; then
  curl -fsSL --retry 3 -o "$output.part" "$url"
else
  wget -q -O "$output.part" "$url"
fi
if ! matches "$output.part"; then
  echo "tinyshakespeare.sh: what $url sends is not the published text" >&2
  exit 1
fi
mv "$output.part" "$output"
