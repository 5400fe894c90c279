#!/bin/bash
# text/unicode.def has the letters and numbers that Python's unicodedata has, where that is of the same version of Unicode.
set -u
cd "$SOURCE_DIR" || exit 1
python3 - <<'EOF'
import re, sys, unicodedata
text = open("text/unicode.def").read()
version = re.search(r"Unicode ([0-9.]+)", text).group(1)
if unicodedata.unidata_version != version:
    print(f"skipped: unicodedata is of Unicode {unicodedata.unidata_version}, the table of {version}")
    sys.exit(77)
bad = 0
for name, kind in (("LETTERS", "L"), ("NUMBERS", "N")):
    ranges = [(int(a, 16), int(b, 16)) for a, b in re.findall(name + r"\(0x([0-9A-F]+), 0x([0-9A-F]+)\)", text)]
    table = {c for a, b in ranges for c in range(a, b + 1)}
    want = {c for c in range(128, 0x110000) if unicodedata.category(chr(c))[0] == kind}
    bad += len(table ^ want) + (ranges != sorted(ranges)) + (sum(b - a + 1 for a, b in ranges) != len(table))
    print(f"count: {len(want)} code points from 128 on are {name.lower()}")
sys.exit(bad > 0)
EOF
