#!/bin/bash
# docs/tutorial.md, docs/export.md and the parts of docs/course/: their programs compile, their commands run, and each prints what stands below it.
set -eu
[ -z "$SANITIZE" ] || { echo "skipped: the library of a sanitizer build needs its runtime in the program"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PATH=$BUILD_DIR:$PATH TENON_CACHE_DIR=$work/cache
tcc() {
    "$CC" -std=gnu11 -Wall -Wno-psabi -Werror -I"$SOURCE_DIR/include" -I"$BUILD_DIR/include" "$1" -L"$BUILD_DIR" -ltenon \
        -Wl,-rpath,"$BUILD_DIR" -o "${1%.c}"
}
cc() { "$CC" "$@"; }
for doc in tutorial export course/{1-modes,2-matmul,3-caches,4-gpu,5-profilers}; do
    mkdir -p "$work/$doc" && cd "$work/$doc"
    # A block of C goes into the file that its first line names; of one of commands, the block behind it is the output.
    awk '/^```/ { if (kind != "") { kind = ""; close(file); next }
                  kind = $0; if (kind == "```c") file = ""; else if (kind == "```sh") file = ++n ".sh"; else file = n ".want"; next }
         kind == "" { next }
         kind == "```c" && file == "" { split($0, w, " "); file = w[2] }
         { print > file }' "$SOURCE_DIR/docs/$doc.md"
    ls ./*.want >/dev/null || { echo "FAIL: docs/$doc.md has no programs"; exit 1; }
    for ((i = 1; ; i++)); do
        [ -e "$i.sh" ] || break
        touch "$i.want"
        . "./$i.sh" >"$i.got" 2>err || { echo "FAIL: $(cat "$i.sh" err)"; exit 1; }
        diff "$i.want" "$i.got" || { echo "FAIL: what these print is not what docs/$doc.md says: $(cat "$i.sh")"; exit 1; }
    done
    [ "$i" -gt 2 ] || { echo "FAIL: docs/$doc.md has no commands"; exit 1; }
    echo "count: $((i - 1)) steps of docs/$doc.md"
done
