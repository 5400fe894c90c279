#!/bin/bash
# Tuning from end to end: results have the same bits before and after, the database comes back as it was written and its schedules
# are those of later programs, by hand too; a database that anybody wrote is ignored where it does not apply, with a line in the log.
# A short campaign: a fifth of the models, in turns.
# Labels: slow
set -u
. "$SOURCE_DIR/tests/support/campaign.sh"
tenon=$BUILD_DIR/tenon
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0 shapes=0 tuned=0 wild=0 i=0
export TENON_CACHE_DIR=$work/cache
fail() { echo "test_tune: $*"; failed=1; }

# outputs MODEL NAME OPTION..: the bits of all results in $work/NAME
outputs() {
    local model=$1 name=$2
    shift 2
    "$tenon" run "$model" --json --limit=-1 "$@" 2>"$work/log" | python3 -c '
import json, sys
print(json.dumps(json.load(sys.stdin)["outputs"]))' >"$work/$name"
    [ -s "$work/$name" ] || fail "no run of $model: $(head -3 "$work/log")"
}

# Recipes leave little to find, and on a busy machine measurements may show nothing: as many tunings in a short campaign as in a whole one.
for round in $(campaign "$(seq 3)" "$(seq 15)"); do
    [ $tuned -gt 0 ] && break
    for model in @matmul:200x1000x100 @matmul:64x512x512 @conv:1x14x14x32x48 @softmax:100x1000 @mlp:64x256 @linear_softmax:64x64x64; do
        for threads in 1 2; do
            campaign_has $((i++)) 5 || continue
            rm -rf "$TENON_CACHE_DIR"
            outputs "$model" before -t$threads
            "$tenon" emit "$model" -t$threads --target=schedule >"$work/recipe" || fail "no schedule of $model"
            "$tenon" tune "$model" --seconds 0.4 -t$threads --json >"$work/report" 2>"$work/log" || { fail "$model: $(cat "$work/log")"; continue; }
            outputs "$model" after -t$threads
            cmp -s "$work/before" "$work/after" || fail "$model, $threads threads: other bits after tuning"
            "$tenon" emit "$model" -t$threads --target=schedule >"$work/schedule" || fail "no schedule of $model after tuning"
            "$tenon" emit "$model" -t$threads --target=kernels >"$work/kernels"
            python3 - "$work" <<'P' || fail "$model, $threads threads: the database and the report do not agree"
import json, os, re, sys
work = sys.argv[1]
report = json.load(open(work + "/report"))
for k in report["kernels"]:
    assert k["after_us"] <= k["before_us"], k
    assert k["changed"] or k["schedule"] in ("as the recipe has it", "not measured"), k
path = work + "/cache/tuning.txt"
texts = []
if report["kept"]:
    lines = [l for l in open(path).read().splitlines() if not l.startswith("#")]
    texts = sorted(l.split(" ", 3)[3] for l in lines if not l.endswith(" recipe"))
plain = lambda s: re.sub(r"[;\s]+", " ", s).strip()
now = [plain(x) for x in re.findall(r"schedule @\w+ \{\n(.*?)\n\}", open(work + "/schedule").read(), re.S)]
old = [plain(x) for x in re.findall(r"schedule @\w+ \{\n(.*?)\n\}", open(work + "/recipe").read(), re.S)]
for t in texts:
    assert plain(t) in now, (t, now)
assert (sorted(now) != sorted(old)) == bool(texts), (now, old, texts)
open(work + "/n", "w").write(str(len(texts)))
P
            tuned=$((tuned + $(cat "$work/n" 2>/dev/null || echo 0))) shapes=$((shapes + 1))
            # What the database made is made by hand, too.
            TENON_CACHE_DIR=$work/none "$tenon" emit "$model" -t$threads --target=kernels --schedule "$work/schedule" >"$work/hand" 2>&1
            cmp -s "$work/kernels" "$work/hand" || fail "$model, $threads threads: --schedule makes other kernels than the database: $(head -1 "$work/hand")"
        done
    done
done
[ $tuned -gt 0 ] || fail "no kernel of any shape became faster"

# A file that anybody wrote: lines that are none, steps that do not fit, sums in another order. Never an error, never other bits.
model=@matmul:200x300x100
rm -rf "$TENON_CACHE_DIR"
outputs $model before -t1
"$tenon" tune $model --seconds 0.3 -t1 -q >"$work/out" 2>&1 || fail "$(cat "$work/out")"
[ -f "$TENON_CACHE_DIR/tuning.txt" ] || "$tenon" tune $model --seconds 1 -t1 -q >"$work/out" 2>&1
if [ -f "$TENON_CACHE_DIR/tuning.txt" ]; then
    key=$(grep -v '^#' "$TENON_CACHE_DIR/tuning.txt" | head -1 | cut -d' ' -f1)
    while IFS= read -r line; do
        printf '# tenon tuning 2\n%s\n' "$line" >"$TENON_CACHE_DIR/tuning.txt"
        outputs $model after -t1 -v
        cmp -s "$work/before" "$work/after" || fail "\"$line\": other bits"
        grep -q "is ignored: \|were skipped" "$work/log" || fail "\"$line\": nothing in the log: $(cat "$work/log")"
        wild=$((wild + 1))
    done <<END
$key 1 1 hoist; vectorize k2 8; tile; multiply_add
$key 1 1 hoist; vectorize i1 8; tile
$key 1 1 hoist; vectorize i1 7; tile; multiply_add
$key 1 1 hoist; nests { { tile } }; multiply_add
$key 1 1 hoist; hoist; hoist
$key 1 1 steps of another version 3
$key 1 1 gpu_tile 8 8 8 8 8
$key 1 1 {
$key 1 1 hoist; unroll_jam i0 16; unroll_jam i1 999999999999999999999999; tile; multiply_add
nonsense
$key 6 4 2 1 256 0 0 100 90
END
    printf '# tenon tuning 1: an older version\n%s 6 4 2 1 256 0 0 100 90\n' "$key" >"$TENON_CACHE_DIR/tuning.txt"
    "$tenon" run $model -t1 >"$work/out" 2>"$work/log" || fail "a database of another version"
    grep -q "tuning" "$work/log" && fail "a database of another version is worth a warning: $(cat "$work/log")"
fi

"$tenon" tune @matmul:8 --seconds 0.1 --schedule "$work/schedule" >"$work/out" 2>&1 && fail "tune takes a schedule by hand"
grep -q "not from one given by hand" "$work/out" || fail "tune --schedule: $(cat "$work/out")"

[ $failed = 0 ] && echo "count: $shapes tunings with the same bits, $tuned kernels changed, $wild strange databases ignored"
exit $failed
