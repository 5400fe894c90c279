#!/bin/bash
# --dtype bf16 and f16: every command that takes a graph contracts in 16 bits; inputs and outputs stay f32, values are near those of
# f32, verify agrees; other types are refused.
set -u
tenon=$BUILD_DIR/tenon
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export TENON_CACHE_DIR=$work/cache
failed=0
fail() { echo "test_dtype: $*"; failed=1; }

cat >"$work/net.tn" <<'EOF'
graph @net(x f32[5,24], w f32[24,18]) {
  %1 = dot x, w contract=[1]x[0] f32[5,18]
  %2 = tanh %1 f32[5,18]
  %3 = const 0.3 f32[18,3]
  %4 = dot %2, %3 contract=[1]x[0] f32[5,3]
  %5 = sum %2 axes=[1] f32[5,1]
  return %4 as "y", %5 as "s"
}
EOF
values() { "$tenon" run "$work/net.tn" --seed 3 --output y "$@" 2>/dev/null | tr -c '0-9.e+-' '\n' | grep '[0-9]\.[0-9]'; }
values >"$work/f32"
[ "$(wc -l <"$work/f32")" = 15 ] || fail "values of f32: $(paste -sd' ' "$work/f32")"
for type in bf16:0.05 f16:0.005; do
    values --dtype "${type%:*}" >"$work/half"
    paste "$work/f32" "$work/half" | awk -v most="${type#*:}" '{ d = $1 - $2; if (d < 0) d = -d; if (d > 0) n++; if (d > most) bad++ }
        END { exit !(NR == 15 && n > 0 && !bad) }' || fail "values in ${type%:*}: $(paste -sd' ' "$work/half")"
    "$tenon" verify "$work/net.tn" --dtype "${type%:*}" >/dev/null 2>"$work/err" || fail "verify in ${type%:*}: $(cat "$work/err")"
done
"$tenon" verify @digits-train:8 --dtype f16 >/dev/null 2>"$work/err" || fail "verify of gradients in f16: $(cat "$work/err")" # some are less than its smallest numbers
"$tenon" emit "$work/net.tn" --dtype bf16 --target=kernels >"$work/kernels"; grep -q " bf16" "$work/kernels" || fail "emit has no bf16"
"$tenon" explain "$work/net.tn" --dtype bf16 | grep -q 'bf16' || fail "explain has no bf16"
"$tenon" export "$work/net.tn" --dtype bf16 -o "$work/net.c" || fail "export"
grep -q 'const float \*in_x.*float \*out_y' "$work/net.h" || fail "the exported function gives no float"
"$tenon" profile "$work/net.tn" --dtype bf16 >/dev/null 2>&1 || fail "profile"
for command in run emit explain verify tune profile export; do
    "$tenon" "$command" --help | grep -q -e '--dtype' || fail "help of $command lacks --dtype"
    for type in i8 f64 half; do
        options=
        [ $command = export ] && options="-o $work/x.c"
        # shellcheck disable=SC2086
        "$tenon" "$command" "$work/net.tn" --dtype $type $options >/dev/null 2>"$work/err"
        code=$?
        [ $code = 2 ] && grep -q "dtype is f32, bf16 or f16, not $type" "$work/err" || fail "$command --dtype $type: $code, $(head -1 "$work/err")"
    done
done
[ $failed = 0 ] && echo "count: 2 types of 16 bits"
exit $failed
