#!/usr/bin/env bash
# package.sh: a Debian package of the build in build/package (CPUs only), with checks of
# its files, its dependencies and its program's start, and by lintian where that is installed.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/package
rm -f "$build"/trireme_*.deb
(cd "$build" && cpack -G DEB >cpack.log) || { cat "$build/cpack.log"; exit 1; }
package=$(ls "$build"/trireme_*.deb)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
dpkg-deb --info "$package" | sed -n 's/^ \(Package\|Version\|Architecture\|Depends\|Recommends\|Installed-Size\)/\1/p'
dpkg-deb --extract "$package" "$work/root"
(cd "$work/root" && find . -type f | LC_ALL=C sort)
[ "$("$work/root/usr/bin/trireme" --version)" != "" ]
if readelf -d "$work/root/usr/bin/trireme" | grep -E 'RPATH|RUNPATH'; then
  echo "package.sh: the packaged program has an RPATH" >&2
  exit 1
fi
if grep -qF "$PWD" "$work/root/usr/bin/trireme"; then
  echo "package.sh: the packaged program names the folder it was built in" >&2
  exit 1
fi
# Into a scratch root, whose dependencies are those of this machine.
if [ "$(id -u)" -eq 0 ]; then
  mkdir -p "$work/scratch/var/lib/dpkg/updates" "$work/scratch/var/lib/dpkg/info"
  cp /var/lib/dpkg/status "$work/scratch/var/lib/dpkg/status"
  dpkg --root="$work/scratch" --install "$package" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  [ -x "$work/scratch/usr/bin/trireme" ]
  echo "installed into a scratch root with its dependencies"
fi
if command -v lintian >/dev/null; then
  lintian --allow-root --tag-display-limit 0 --fail-on error "$package"
  echo "lintian finds no errors"
else
  echo "lintian is not installed; the package was not checked by it"
fi
echo "$package"
