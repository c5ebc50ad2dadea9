#!/usr/bin/env bash
# Installs the Debian packages that a purpose needs and that are missing: deps.sh [build] [lint] [demo] [fuzz] [report] [package] [slurm].
# With nothing missing it takes a few milliseconds. Without root rights it prints the command to run instead.
# On systems without apt it leaves the libraries to the site: CMake names any that it cannot find.
set -euo pipefail

build="cmake ninja-build ccache pkg-config g++ libopenmpi-dev openmpi-bin libhdf5-dev hdf5-tools libdnnl-dev
  libcli11-dev libtomlplusplus-dev libfmt-dev libspdlog-dev nlohmann-json3-dev libsentencepiece-dev libpcre2-dev
  libxxhash-dev libgtest-dev libgmock-dev libbenchmark-dev libhwloc-dev libhwy-dev python3"
lint="clang-format clang-tidy shellcheck libomp-dev"  # clang-tidy reads its own omp.h
demo="bible-kjv"
fuzz="clang libclang-rt-dev"
report="gnuplot-nox"  # the plots of `trireme report --html`
package="dpkg-dev file lintian"
slurm="slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge iproute2"

wanted=
for purpose in "${@:-build}"; do
  case $purpose in
    build) wanted+=" $build" ;;
    lint) wanted+=" $lint" ;;
    format) wanted+=" clang-format shellcheck" ;;
    demo) wanted+=" $demo" ;;
    fuzz) wanted+=" $fuzz" ;;
    report) wanted+=" $report" ;;
    package) wanted+=" $package" ;;
    slurm) wanted+=" $slurm" ;;
    *) echo "deps.sh: unknown purpose $purpose: build, lint, format, demo, fuzz, report, package or slurm" >&2; exit 2 ;;
  esac
done

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  echo "No apt here: using the libraries this system offers (README.md lists what is needed)."
  exit 0
fi

list_missing() {
  local have
  have=" $(dpkg-query -W -f='${db:Status-Abbrev}${Package}\n' $wanted 2>/dev/null | sed -n 's/^ii *//p' | tr '\n' ' ')"
  for package in $wanted; do
    [[ $have == *" $package "* ]] || printf '%s ' "$package"
  done
}

missing=$(list_missing)
[ -n "$missing" ] || exit 0

privileged=()
if [ "$(id -u)" -ne 0 ]; then
  if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    privileged=(sudo -n)
  else
    echo "Packages are missing and this user may not install them. Run:" >&2
    echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends $missing" >&2
    exit 1
  fi
fi

apt() {
  "${privileged[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@"
}
install() { apt install -y --no-install-recommends $missing; }

echo "Installing: $missing"
# Fresh machines have no package lists, and old lists name files that are gone: both need an update first.
if apt-cache show $missing >/dev/null 2>&1 && install; then
  exit 0
fi
apt update
install
