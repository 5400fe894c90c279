#!/bin/bash
# `tenon emit --target=x86`: what a matrix product keeps in registers while it adds up, whatever its results go through afterwards.
set -u
[ "$(uname -m)" = x86_64 ] || { echo "skipped: no x86-64"; exit 77; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export TENON_CACHE_DIR=$work/cache TENON_CPU=avx2
failed=0 counted=0
for op in exp tanh erf; do
    cat >"$work/g.tn" <<END
graph @g(x f32[768,128], w f32[128,512]) {
  %1 = dot x, w contract=[1]x[0] f32[768,512]
  %2 = $op %1 f32[768,512]
  return %2 as "y"
}
END
    "$BUILD_DIR/tenon" emit "$work/g.tn" --target=x86 >"$work/text" 2>"$work/log" || { cat "$work/log"; failed=1; continue; }
    # Loops end with a jump; the one that multiplies is unrolled, and broadcasts an element of x for each row and step.
    awk -v op="$op" '
        /vbroadcastss/ { n++ }
        /ymm/ && /\[rbp\+/ { bad++; line = $0 }
        / j[a-z]+ / { if (n >= 12) { loops++; if (bad) { print "test_listing: " op ": " bad " sums in memory, as in" line; exit 1 } } n = bad = 0 }
        END { if (!loops) { print "test_listing: " op ": no loop that multiplies"; exit 1 } }' "$work/text" || failed=1
    counted=$((counted + 1))
done
echo "count: $counted products with a function of their results: all sums in registers"
exit $failed
