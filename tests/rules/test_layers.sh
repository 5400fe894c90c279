#!/bin/bash
# The layer check accepts this tree and catches each kind of wrong include.
set -eu
check=$SOURCE_DIR/scripts/check-layers
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$check" "$SOURCE_DIR" || exit 1

wrong=0
catches() { # catches FILE INCLUDE: a tree with that one include must fail, and the message names the file
    rm -rf "$work/t"
    mkdir -p "$work/t/$(dirname "$1")"
    printf '#include <stdio.h>\n#include "%s"\n' "$2" >"$work/t/$1"
    if out=$("$check" "$work/t"); then
        echo "FAIL: $1 may include $2?" >&2
        exit 1
    fi
    [[ $out == *"$1:2:"* ]] || { echo "FAIL: message does not name $1:2: $out" >&2; exit 1; }
    wrong=$((wrong + 1))
}
catches src/base/a.c ir/graph.h
catches src/ir/a.c eval/eval.h
catches src/eval/a.c grad/grad.h
catches src/pass/a.c grad/grad.h
catches src/emit/a.c rt/device.h
catches src/sched/a.h mem/plan.h
catches src/rt/a.c drive/objects.h
catches src/drive/a.c api/api.h
catches src/pass/a.c ../ir/graph.h
catches src/ir/a.c nn/layers.h
catches src/drive/a.c nowhere/base.h
catches cli/a.c drive/objects.h
catches bench/a.c drive/objects.h
catches cli/a.c bench/bench.h
catches io/a.c base/base.h
catches nn/a.c ir/graph.h
catches examples/a.c base/base.h
says() { # says FILE LINE: a tree with that one line must fail, and the message names it
    rm -rf "$work/t"
    mkdir -p "$work/t/$(dirname "$1")"
    printf '#include <stdio.h>\n%s\n' "$2" >"$work/t/$1"
    if out=$("$check" "$work/t"); then
        echo "FAIL: $1 may say $2?" >&2
        exit 1
    fi
    [[ $out == *"$1:2: a constant of a machine"* ]] || { echo "FAIL: message does not name $1:2: $out" >&2; exit 1; }
    wrong=$((wrong + 1))
}
says src/recipe/a.c '#define FETCH_NS 400.0'
says src/loop/a.c 'enum { COPY_CYCLES = 12 };'
says src/sched/a.h 'enum { FIRST_CACHE_BYTES = 32 << 10 };'
says src/recipe/a.h '#define LINE_BYTES 64'
rm -rf "$work/t"
mkdir -p "$work/t/src/recipe"
echo 'enum { LINES = 2 * MACHINE_LINE_BYTES };' >"$work/t/src/recipe/a.c"
"$check" "$work/t" >/dev/null
echo "count: $wrong wrong includes and constants caught of $wrong planted"
