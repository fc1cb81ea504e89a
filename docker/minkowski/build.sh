#!/usr/bin/env bash
# Builds MinkowskiEngine 0.5.4 CPU-only from its PyPI source package, for the optional `minkowski` backend and its parity test.
#
# usage: docker/minkowski/build.sh [target-directory]
#   target-directory: where the two packages are put (default: site-packages of the active Python)
#   environment: PYTHON (default python3), MAX_JOBS (default 2), WORK (default a temporary directory, removed at the end)
#
# Needs a C++17 compiler, torch, setuptools and ninja in the active Python, and OpenBLAS headers (Debian: libopenblas-dev). Takes about
# 15 minutes on two cores. The 2021 release predates Python 3.10 and the current setuptools; the edits below are all that it
# takes. Nothing of its source stays in this repository.
set -euo pipefail

PYTHON=${PYTHON:-python3}
VERSION=0.5.4
TARGET=${1:-$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')}
export MAX_JOBS=${MAX_JOBS:-2}
if [ -z "${WORK:-}" ]; then
    WORK=$(mktemp -d)
    trap 'rm -rf "$WORK"' EXIT
fi
mkdir -p "$WORK/shim" "$TARGET"

# Its setup.py asks numpy.distutils for a BLAS (gone since numpy 2 on Python 3.12) and calls `pip uninstall` on import, which
# must not touch the user's environment while pip only reads the package's metadata.
cat >"$WORK/shim/sitecustomize.py" <<'PY'
import sys
import types

distutils, info = types.ModuleType("numpy.distutils"), types.ModuleType("numpy.distutils.system_info")
info.get_info = lambda name, *_: {"libraries": [name]}
distutils.system_info = info
sys.modules.update({"numpy.distutils": distutils, "numpy.distutils.system_info": info})
PY
printf '#!/bin/sh\nexit 0\n' >"$WORK/shim/pip"
chmod +x "$WORK/shim/pip"

echo "fetching MinkowskiEngine $VERSION"
PATH="$WORK/shim:$PATH" PYTHONPATH="$WORK/shim${PYTHONPATH:+:$PYTHONPATH}" "$PYTHON" -m pip download -q --no-deps \
    --no-binary :all: --no-build-isolation -d "$WORK" "MinkowskiEngine==$VERSION"
tar -xf "$WORK/MinkowskiEngine-$VERSION.tar.gz" -C "$WORK"
cd "$WORK/MinkowskiEngine-$VERSION"

sed -i 's/^from collections import Sequence/from collections.abc import Sequence/' MinkowskiEngine/*.py MinkowskiEngine/utils/*.py
sed -i 's/^from collections.abc import Sequence, namedtuple/from collections import namedtuple\nfrom collections.abc import Sequence/' \
    MinkowskiEngine/MinkowskiKernelGenerator.py
sed -i '/^run_command(/d' setup.py
mkdir -p MinkowskiEngineBackend

echo "compiling with $MAX_JOBS job(s)"
CC=${CXX:-g++} "$PYTHON" setup.py -q build_ext --inplace --cpu_only --blas=openblas >"$WORK/build.log" 2>&1 || {
    tail -40 "$WORK/build.log"
    exit 1
}
(cd /tmp && PYTHONPATH="$WORK/MinkowskiEngine-$VERSION" "$PYTHON" -c 'import MinkowskiEngine')
cp -r MinkowskiEngine MinkowskiEngineBackend "$TARGET/"
echo "installed MinkowskiEngine $VERSION (CPU) into $TARGET"
