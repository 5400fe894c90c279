#!/bin/bash
# Generated code has names where people look for them: gdb stops in a kernel by its name and finds the way back to main, from
# inside a kernel and from what it called; perf puts samples down to kernels. Each part is skipped where its program is missing
# or the system does not let it work.
set -u
tenon=$BUILD_DIR/tenon
[ -x "$tenon" ] || { echo "no program at $tenon"; exit 77; }
[ -z "${SANITIZE:-}" ] || { echo "skipped: sanitizers and debuggers do not mix"; exit 77; }
case $("$tenon" devices 2>/dev/null) in *avx512* | *avx2* | *sse2*) ;; *) echo "skipped: no machine code on this processor"; exit 77 ;; esac
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
unset TENON_CPU
export TENON_NAME_CODE=1 DEBUGINFOD_URLS=
bad=0 done=0
fail() { echo "FAILED: $*"; bad=1; }

cat >"$dir/net.tn" <<'TN'
graph @net(x f64[37,5]) {
  %1 = sinh x f64[37,5]
  %2 = exp %1 f64[37,5]
  return %2 as "z"
}
TN

forget() { # forget PID: what perf was told of it
    [ -n "${1:-}" ] && rm -f "/tmp/perf-$1.map"
}
# frames PATTERN...: the backtrace in $dir/bt has these, one a line, in this order, other frames between them
frames() {
    local at=1 line
    for want in "$@"; do
        line=$(tail -n +"$at" "$dir/bt" | grep -nE "^#[0-9]+ .*\b$want\b" | head -1 | cut -d: -f1)
        [ -n "$line" ] || { fail "gdb: no frame $want behind the others:"; cat "$dir/bt"; return; }
        at=$((at + line))
    done
}
debug() { # debug BREAKPOINT
    gdb -nx -batch -ex "set breakpoint pending on" -ex "break $1" -ex run -ex bt -ex "info inferiors" --args "$tenon" run "$dir/net.tn" -q -t 1 \
        >"$dir/bt" 2>&1
    forget $(sed -n 's/^\* 1 *process \([0-9]*\).*/\1/p' "$dir/bt")
}
if ! command -v gdb >/dev/null; then
    echo "skipped: no gdb"
elif ! gdb -nx -batch -ex run --args true >"$dir/try" 2>&1 || grep -q "ptrace" "$dir/try"; then
    echo "skipped: gdb may not trace a process here"
else
    debug sinh
    frames '_*sinh(_[a-z0-9]+)?' 'kernel_[0-9]+_exp_[0-9]+' tn_main tn_session_run main
    kernel=$(grep -oE 'kernel_[0-9]+_exp_[0-9]+' "$dir/bt" | head -1)
    debug "${kernel:-none}"
    frames "$kernel" tn_main tn_session_run main
    done=$((done + 1))
fi

if ! command -v perf >/dev/null; then
    echo "skipped: no perf"
elif ! perf record -q -o "$dir/try" true >/dev/null 2>&1; then
    echo "skipped: perf may not record here"
else
    perf record -q -o "$dir/data" "$tenon" run @mlp:16x256 --steps 200 -q -t 1 >/dev/null 2>"$dir/err" || fail "perf record: $(cat "$dir/err")"
    perf report -i "$dir/data" --stdio --no-children --sort symbol >"$dir/report" 2>/dev/null
    grep -qE 'tenon:kernel_[0-9]+_' "$dir/report" || { fail "perf: no sample in a kernel by name:"; head -30 "$dir/report"; }
    forget $(perf script -i "$dir/data" -F pid 2>/dev/null | tr -d ' ' | sort -u | head -1)
    done=$((done + 1))
fi
[ $bad = 0 ] && [ $done = 0 ] && exit 77
[ $bad = 0 ] && echo "names: gdb and perf, $done of 2 tried, name the kernels"
exit $bad
