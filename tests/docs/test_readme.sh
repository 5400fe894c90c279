#!/bin/bash
# The program on the first screen of README.md compiles against the library and prints what README.md says it prints.
set -eu
[ -z "$SANITIZE" ] || { echo "skipped: the library of a sanitizer build needs its runtime in the program"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sed -n '/^```c$/,/^```$/p' "$SOURCE_DIR/README.md" | sed '1d;$d' >"$work/first.c"
sed -n '/a\.out$/,/^$/p' "$SOURCE_DIR/README.md" | sed '1d;s/^    //' | sed '/^$/d' >"$work/want"
[ -s "$work/first.c" ] && [ -s "$work/want" ] || { echo "FAIL: no program or no output found in README.md"; exit 1; }
"$CC" -std=gnu11 -Wall -Werror -I"$SOURCE_DIR/include" -I"$BUILD_DIR/include" "$work/first.c" -L"$BUILD_DIR" -ltenon -Wl,-rpath,"$BUILD_DIR" -o "$work/first"
"$work/first" >"$work/got"
diff "$work/want" "$work/got" || { echo "FAIL: the output differs from README.md"; exit 1; }
lines=$(wc -l <"$work/first.c")
[ "$lines" -le 12 ] || { echo "FAIL: the program has $lines lines"; exit 1; }
