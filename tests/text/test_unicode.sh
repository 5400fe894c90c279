#!/bin/bash
# text/unicode.def and text/nfc.def have the letters and numbers that Python's unicodedata has, where that is of the same version of Unicode.
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
# text/nfc.def: classes, and characters with their parts
text = open("text/nfc.def").read()
def dec(c):
    d = unicodedata.decomposition(chr(c))
    return [int(x, 16) for x in d.split()] if d and not d.startswith("<") else None
classes = {}
for a, n, k in re.findall(r"CLASS\(0x([0-9A-F]+), (\d+), (\d+)\)", text):
    for c in range(int(a, 16), int(a, 16) + int(n)):
        classes[c] = int(k)
bad += any(unicodedata.combining(chr(c)) != classes.get(c, 0) % 255 for c in range(0x10000) if not 0xD800 <= c < 0xE000)
seconds, made = [int(c, 16) for c in re.findall(r"SECOND\(0x([0-9A-F]+)\)", text)], {}
for name in "PAIR", "ONLY":
    at = 0
    for step, first, second in re.findall(name + r"\((\d+), (0x[0-9A-F]+|0), (\d+)\)", text):
        at += int(step) * (1 if int(first, 16) else 256)
        if int(first, 16):
            made[at] = (name, [int(first, 16)] + ([seconds[int(second) - 1]] if int(second) else []))
for c in range(0x10000):
    d = None if 0xD800 <= c < 0xE000 or 0xF900 <= c < 0xFB00 else dec(c)
    name = "PAIR" if d and len(d) == 2 and unicodedata.normalize("NFC", chr(c)) == chr(c) else "ONLY"
    bad += made.get(c) != ((name, d) if d else None)
    if name == "PAIR" and d:
        bad += d[1] not in classes
    elif d:
        bad += c not in classes
print(f"count: {len(classes)} combining characters, {len(made)} characters of parts are those of Unicode")
sys.exit(bad > 0)
EOF
