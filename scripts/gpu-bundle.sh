#!/usr/bin/env bash
# Packs executables for a machine with a GPU and little else: gpu-bundle.sh FOLDER EXECUTABLE...
# FOLDER gets bundle.tar.gz, with the executables and the shared libraries that they need but for those of the C and C++
# runtimes, CUDA and MPI; and `env`, which unpacks it there and sets the paths: `source FOLDER/env && trireme info`.
# MPI_ARCHIVE, a tar file of an Open MPI's prefix (folder bin, lib, … below one folder), is packed too; without it the
# machine's own mpirun is used. The archive needs tar and gzip there, no compiler and no package.
set -euo pipefail
folder=$1
shift
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
mkdir -p "$folder" "$stage/bin" "$stage/lib"
cp "$@" "$stage/bin/"
strip --strip-unneeded "$stage"/bin/*
machines='^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|stdc\+\+|gcc_s|cuda|cudart|cublas|cublasLt|cudnn.*|nccl|nvrtc.*|nvidia-ml|nvJitLink|cupti|mpi|open-rte|open-pal)\.so.*)$'
for file in "$@"; do ldd "$file"; done >"$stage/libraries"
if grep 'not found' "$stage/libraries" | grep -vE 'lib(cuda|nccl)\.so'; then
  echo "gpu-bundle.sh: these libraries are not on this machine" >&2
  exit 1
fi
awk '$3 ~ /^\// { print $3 }' "$stage/libraries" | sort -u | while read -r library; do
  [[ $(basename "$library") =~ $machines ]] || cp -L "$library" "$stage/lib/"
done
if [ -n "${MPI_ARCHIVE-}" ]; then
  mkdir "$stage/mpi"
  tar -C "$stage/mpi" --strip-components=1 -xf "$MPI_ARCHIVE"
fi
rm "$stage/libraries"
tar -C "$stage" -c . | gzip -9 >"$folder/bundle.tar.gz"
cat >"$folder/env" <<'END'
_from=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
_to=/tmp/trireme-bundle-$(id -u)
if ! cmp -s "$_from/bundle.tar.gz" "$_to/bundle.tar.gz"; then
  rm -rf "$_to"
  mkdir -p "$_to"
  tar -C "$_to" -xzf "$_from/bundle.tar.gz" && cp "$_from/bundle.tar.gz" "$_to/"
fi
# CUDA's libraries, cuDNN and NCCL: of the toolkit, or of Python packages.
_python=$(python3 -c '
import glob, os, site, sysconfig
roots = {*site.getsitepackages(), sysconfig.get_paths()["purelib"]}
print(":".join(d for root in roots for d in glob.glob(os.path.join(root, "nvidia", "**", "lib"), recursive=True)))' 2>/dev/null)
export PATH=$_to/bin:$PATH
# The bundle's libraries come last, so that the machine's own programs find their own.
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}${CUDA_HOME:-/usr/local/cuda}/lib64${_python:+:$_python}:$_to/lib
if [ -d "$_to/mpi" ]; then
  export OPAL_PREFIX=$_to/mpi PATH=$_to/mpi/bin:$PATH LD_LIBRARY_PATH=$_to/mpi/lib:$LD_LIBRARY_PATH
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
unset _from _to _python
END
most=$((60 << 20)) size=$(stat -c %s "$folder/bundle.tar.gz")
printf '%s: %d MiB\n' "$folder/bundle.tar.gz" $((size >> 20))
[ "$size" -le $most ] || { echo "gpu-bundle.sh: more than $((most >> 20)) MiB" >&2; exit 1; }
