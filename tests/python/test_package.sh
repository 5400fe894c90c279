#!/bin/bash
# The Python package around the library of this build: its tests, with the first python3 that has NumPy; the wheel's files.
set -u
[ -z "${SANITIZE:-}" ] || { echo "skipped: the library of a sanitizer build needs its runtime in the program"; exit 77; }
[ -x "$BUILD_DIR/tenon" ] || { echo "no program at $BUILD_DIR/tenon"; exit 77; }
python=
for candidate in "${TENON_PYTHON:-python3}" /usr/bin/python3; do
    if "$candidate" -c 'import numpy, sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then python=$candidate && break; fi
done
[ -n "$python" ] || { echo "skipped: no python3 with NumPy (Debian: python3-numpy)"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export TENON_CACHE_DIR=$dir/cache PYTHONDONTWRITEBYTECODE=1
export TENON_INCLUDE=$SOURCE_DIR/include TENON_GENERATED_INCLUDE=$BUILD_DIR/include
"$python" "$SOURCE_DIR/python/backend.py" stage "$dir" "$BUILD_DIR" || { echo "FAILED: stage"; exit 1; }
cd "$SOURCE_DIR/python/tests" || exit 1
PYTHONPATH=$dir "$python" -W error::ResourceWarning -m unittest 2>"$dir/log"
code=$?
tail -40 "$dir/log"
[ $code = 0 ] || exit 1
n=$(sed -n 's/^Ran \([0-9]*\) tests.*/\1/p' "$dir/log")
echo "count: $n tests of the Python package"
