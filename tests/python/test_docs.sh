#!/bin/bash
# docs/python.md says what Python prints: its sessions are run as doctests. The Python of README.md and python/README.md runs.
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
"$python" "$SOURCE_DIR/python/backend.py" stage "$dir" "$BUILD_DIR" || { echo "FAILED: stage"; exit 1; }
for page in README.md python/README.md; do
    sed -n '/^```python$/,/^```$/p' "$SOURCE_DIR/$page" | sed '/^```/d' >"$dir/lines.py"
    [ -s "$dir/lines.py" ] || { echo "FAILED: no Python in $page"; exit 1; }
    (cd "$dir" && "$python" lines.py) || { echo "FAILED: the Python of $page"; exit 1; }
done
PYTHONPATH=$dir "$python" -m doctest "$SOURCE_DIR/docs/python.md" || { echo "FAILED: docs/python.md"; exit 1; }
