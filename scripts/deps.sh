#!/usr/bin/env bash
# Installs the Debian packages that a purpose needs and that are missing: deps.sh [build] [mpich] [lint] [demo] [fuzz] [report] [docs] [package] [slurm].
# With nothing missing it takes a few milliseconds. Without root rights it prints the command to run instead.
# On systems without apt it leaves the libraries to the site: CMake names any that it cannot find.
# Where cuDNN is found, building also takes its frontend (headers alone) from the Python package index, into build/deps.
set -euo pipefail

build="cmake ninja-build ccache pkg-config g++ libopenmpi-dev openmpi-bin libhdf5-dev hdf5-tools libdnnl-dev
  libcli11-dev libtomlplusplus-dev libfmt-dev nlohmann-json3-dev libsentencepiece-dev libpcre2-dev zlib1g-dev libzstd-dev
  libxxhash-dev libgtest-dev libgmock-dev libbenchmark-dev libhwy-dev python3"
mpich="mpich libmpich-dev"  # beside Open MPI, which stays what mpirun and mpicc are
lint="clang-format clang-tidy shellcheck libomp-dev"  # clang-tidy reads its own omp.h
demo="bible-kjv"
fuzz="clang libclang-rt-dev"
report="gnuplot-nox"  # the plots of `trireme report --html`
docs="doxygen"
package="dpkg-dev file lintian"
slurm="slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge iproute2"

cd "$(dirname "$0")/.."
wanted=
builds=
for purpose in "${@:-build}"; do
  case $purpose in
    build) wanted+=" $build" builds=yes ;;
    mpich) wanted+=" $mpich" ;;
    lint) wanted+=" $lint" ;;
    format) wanted+=" clang-format shellcheck" ;;
    demo) wanted+=" $demo" ;;
    fuzz) wanted+=" $fuzz" ;;
    report) wanted+=" $report" ;;
    docs) wanted+=" $docs" ;;
    package) wanted+=" $package" ;;
    slurm) wanted+=" $slurm" ;;
    *) echo "deps.sh: unknown purpose $purpose: build, mpich, lint, format, demo, fuzz, report, docs, package or slurm" >&2; exit 2 ;;
  esac
done

# The folder whose include/ has cuDNN's header, or nothing.
find_cudnn() {
  local compiler root
  compiler=$(readlink -f "$(command -v nvcc || true)" || true)
  for root in "${CUDNN_ROOT:-}" "${CUDA_HOME:-}" "${CUDA_PATH:-}" "${compiler%/bin/nvcc}" /usr/local/cuda /usr; do
    [ -n "$root" ] && [ -e "$root/include/cudnn.h" ] && echo "$root" && return
  done
  true
}

frontend=1.32.0
frontend_folder=build/deps/cudnn-frontend
lacks_frontend() {
  local cudnn root
  [ ! -e $frontend_folder/include/cudnn_frontend.h ] || return 1
  cudnn=$(find_cudnn)
  [ -n "$cudnn" ] || return 1
  for root in "$cudnn" "${CUDNN_FRONTEND_ROOT:-}" /usr; do
    [ ! -e "$root/include/cudnn_frontend.h" ] || return 1
  done
}

# Without network Trireme is built without cuDNN's attention.
fetch_frontend() {
  local work
  echo "Fetching cudnn-frontend $frontend from the Python package index"
  mkdir -p $frontend_folder
  work=$(mktemp -d -p $frontend_folder)
  if python3 -m pip --disable-pip-version-check -q --retries 1 --timeout 15 download --no-deps --only-binary=:all: -d "$work" "nvidia-cudnn-frontend==$frontend" &&
    python3 -m zipfile -e "$work"/*.whl "$work/wheel"; then
    cp "$work"/wheel/*.dist-info/licenses/LICENSE-MIT.txt "$work/wheel/include/"
    mv -T "$work/wheel/include" $frontend_folder/include
  else
    echo "deps.sh: continuing without cuDNN's attention: cudnn-frontend could not be fetched; name a folder that has it in CUDNN_FRONTEND_ROOT" >&2
  fi
  rm -rf "$work"
}

install_packages() {
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    echo "No apt here: using the libraries this system offers (docs/install.md lists what is needed)."
    return 0
  fi

  list_missing() {
    local have
    have=" $(dpkg-query -W -f='${db:Status-Abbrev}${Package}\n' $wanted 2>/dev/null | sed -n 's/^ii *//p' | tr '\n' ' ')"
    for package in $wanted; do
      [[ $have == *" $package "* ]] || printf '%s ' "$package"
    done
  }

  missing=$(list_missing)
  [ -n "$missing" ] || return 0

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
    return 0
  fi
  apt update
  install
}

install_packages
if [ -n "$builds" ] && lacks_frontend; then
  # Only needed for these purposes: its absence must not fail a build.
  python3 -m pip --version >/dev/null 2>&1 || (wanted=python3-pip && install_packages) || true
  fetch_frontend
fi
