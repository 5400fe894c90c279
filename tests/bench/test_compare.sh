#!/bin/bash
# scripts/compare-builds: equal builds pass; a slower row, a row of one build only and a benchmark that fails do not, and are named.
# The builds are scripts with times of their own; the first round of a slow row may be a neighbour's, so it is measured again.
set -u
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
bad=0
command -v python3 >/dev/null || { echo "no python3"; exit 77; }

build() { # build NAME ROWS...: a program whose benchmark has these rows (case=us; case=us/us: later runs have the second time)
    local name=$1 rows=""
    shift
    mkdir -p "$dir/$name"
    for row in "$@"; do
        rows+="${rows:+,}{\"work\": \"gemm\", \"case\": \"${row%%=*}\", \"median_us\": \$(us ${row#*=}), \"best_us\": 40}"
    done
    cat >"$dir/$name/tenon" <<EOF
#!/bin/bash
echo run >>"$dir/$name/runs"
us() { if [ "\$(wc -l <"$dir/$name/runs")" -gt 3 ]; then echo "\${1#*/}"; else echo "\${1%%/*}"; fi; }
[ "$name" != broken ] || { echo "out of cheese" >&2; exit 1; }
cat <<ROWS
{"rows": [$rows]}
ROWS
EOF
    chmod +x "$dir/$name/tenon"
}
expect() { # expect CODE TEXT ARGUMENTS...
    local code=$1 text=$2
    shift 2
    out=$("$SOURCE_DIR/scripts/compare-builds" "$@" --tables gemm 2>&1)
    local got=$?
    [ $got = "$code" ] || { echo "FAILED: $*: exit code $got, expected $code: $out"; bad=1; }
    grep -qF -- "$text" <<<"$out" || { echo "FAILED: $*: no \"$text\" in: $out"; bad=1; }
}
build old a=100 b=50
build same a=100 b=50
build faster a=50 b=50
build slower a=100 b=60
build late a=100 b=60/50
build more a=100 b=50 c=1
build broken a=1
expect 0 "2 rows, geometric mean 1.000" "$dir/old" "$dir/same"
expect 0 "gained  2.000      100.00 ->      50.00 us  gemm a" "$dir/old" "$dir/faster"
expect 1 "short   0.833       50.00 ->      60.00 us  gemm b" "$dir/old" "$dir/slower"
expect 0 "2 rows, geometric mean 1.000" "$dir/old" "$dir/late"
expect 1 "in one build only: gemm c" "$dir/old" "$dir/more"
expect 1 "out of cheese" "$dir/old" "$dir/broken"
expect 1 "geometric mean 0.913: short of 1" "$dir/old" "$dir/slower" --least 0.5
expect 2 "is not a program" "$dir/old" "$dir/nothing"
"$SOURCE_DIR/scripts/compare-builds" "$dir/old" "$dir/slower" --tables gemm --json "$dir/json" >/dev/null 2>&1
python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); assert d["failed"] == 2 and len(d["rows"]) == 2' "$dir/json" || { echo "FAILED: --json"; bad=1; }
expect 0 "2 rows, geometric mean 1.000" "$dir/old" "$dir/slower" --best
# Kept times: nothing is measured twice, other builds' are refused.
expect 0 "round 3" "$dir/old" "$dir/same" --keep "$dir/kept"
runs=$(wc -l <"$dir/same/runs")
expect 0 "2 rows, geometric mean 1.000" "$dir/old" "$dir/same" --keep "$dir/kept"
[ "$(wc -l <"$dir/same/runs")" = "$runs" ] || { echo "FAILED: --keep measured again"; bad=1; }
expect 2 "has the times of other builds" "$dir/old" "$dir/faster" --keep "$dir/kept"
expect 0 "round 4" "$dir/old" "$dir/same" --keep "$dir/kept" --rounds 4
# Only the cases that fall short are measured again.
build asked a=100 b=60
sed -i '2i echo "$*" >>"'"$dir"'/asked/arguments"' "$dir/asked/tenon"
expect 1 "short   0.833" "$dir/old" "$dir/asked" --again 1
grep -q -- "--cases b " <<<"$(tail -1 "$dir/asked/arguments")" || { echo "FAILED: asked for $(tail -1 "$dir/asked/arguments")"; bad=1; }
exit $bad
