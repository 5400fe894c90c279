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
echo "count: $wrong wrong includes caught of $wrong planted"
