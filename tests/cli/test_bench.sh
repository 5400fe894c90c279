#!/bin/bash
# Every benchmark at tiny sizes: exit code, JSON with the keys that scripts rely on, CSV, SVG; a spoiled result is caught; other
# programs (here: small scripts that speak the protocol) appear as rivals, also when they refuse, lie dead or are missing. A short
# campaign: a third of those of OpenCL, in turns.
# Labels: slow
set -u
. "$SOURCE_DIR/tests/support/campaign.sh"
tenon=$BUILD_DIR/tenon
[ -x "$tenon" ] || { echo "no program at $tenon"; exit 77; }
command -v python3 >/dev/null || { echo "no python3 to read JSON with"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export TENON_CACHE_DIR=$dir/cache
bad=0 runs=0
fail() { echo "FAILED: $*"; bad=1; }

# bench KEYS ARGS...: runs it, and wants these keys in every row
bench() {
    local keys=$1
    shift
    runs=$((runs + 1))
    "$tenon" bench "$@" --json -q --seconds 0.005 --csv "$dir/rows.csv" --plot "$dir/plot.svg" >"$dir/out" 2>"$dir/err" || {
        fail "bench $*"
        cat "$dir/err"
        return
    }
    python3 - "$dir/out" "$dir/rows.csv" "$keys" <<'PY' || fail "bench $*: the report"
import csv, json, sys
report = json.load(open(sys.argv[1]))
assert report["schema"] == 1 and report["command"].startswith("bench ")
machine = report["machine"]
assert machine["cores"] >= 1 and all(v > 0 for k in ("peak_gflops", "copy_gbs") for v in machine[k].values()), machine
rows = report["rows"]
assert rows, "no rows"
for r in rows:
    missing = [k for k in sys.argv[3].split(",") if k not in r]
    assert not missing, (missing, r)
    if "median_us" in r:
        assert 0 < r["best_us"] <= r["p10_us"] <= r["median_us"] <= r["p90_us"], r
    if "err_bound" in r:
        assert 0 <= r["max_abs_err"] <= r["err_bound"], r
    for k in ("peak_ratio", "best_ratio", "bandwidth_ratio", "roof_ratio"):
        assert r.get(k, 1) > 0, r
table = list(csv.DictReader(open(sys.argv[2])))
assert len(table) == len(rows) and not any(None in t for t in table) and all(t["best_us"] or "median_us" not in r for t, r in zip(table, rows))
PY
    [ "$(head -c 4 "$dir/plot.svg" 2>/dev/null)" = "<svg" ] || fail "bench $*: no plot"
    rm -f "$dir/rows.csv" "$dir/plot.svg"
}
# spoiled WORDS ARGS...: the same with one element of the result spoiled ends with code 1 and says so
spoiled() {
    local words=$1
    shift
    runs=$((runs + 1))
    "$tenon" bench "$@" --plant-error -q --seconds 0.005 >"$dir/out" 2>"$dir/err"
    [ $? = 1 ] || fail "bench $*: a spoiled result is not noticed"
    grep -q "$words" "$dir/err" || { fail "bench $*: no '$words'"; cat "$dir/err"; }
}

time="median_us,p10_us,p90_us,best_us,mallocs,threads,work"
checked="$time,max_abs_err,max_ulp,err_bound"
bench "$checked,mode,gflops,peak_gflops,peak_ratio,best_ratio,kernels" modes --depths 4 --sizes 5 --modes graph,compiled,loop
spoiled "element" modes --depths 4 --sizes 5 --modes compiled --cache on
spoiled "loop, fusion 3, no cache, cpu" modes --depths 4 --sizes 5 --modes loop --cache off --fusion 3

# Every mode with the kernel cache and without it, compiled and loop at each fusion level, which is applied.
runs=$((runs + 1))
"$tenon" bench modes --depths 6 --sizes 8 --fusion 0-3 --json -q --seconds 0.005 --csv "$dir/rows.csv" --svg "$dir/plot.svg" >"$dir/out" 2>"$dir/err" ||
    { fail "bench modes"; cat "$dir/err"; }
python3 - "$dir/out" "$dir/rows.csv" "$dir/plot.svg" <<'PY' || fail "bench modes: the variants"
import csv, json, sys
report, plot = json.load(open(sys.argv[1])), open(sys.argv[3]).read()
rows = {(r["mode"], r["cache"], r["fusion"]): r for r in report["rows"]}
want = {("naive", "off", 0), ("immediate", "on", 0), ("graph", "on", 0), ("graph", "off", 0)}
want |= {(m, c, f) for m in ("compiled", "loop") for c in ("on", "off") for f in range(4)}
assert set(rows) == want and len(report["rows"]) == len(want), sorted(set(rows) ^ want)
assert "compiled again inside the timer" in report["note"] and report["note"] in plot
for (mode, cache, fusion), r in rows.items():
    when = "before" if cache == "on" else "in each call of 100" if mode == "loop" else "in each run"
    assert r["variant"] == "compiled " + when, r
    label = mode + (f", fusion {fusion}" if mode in ("compiled", "loop") else "") + (", no cache" if cache == "off" and mode != "naive" else "")
    assert f">{label}</text>" in plot, label
for mode in ("compiled", "loop"):
    kernels = [rows[mode, "on", f]["kernels"] for f in range(4)]
    assert kernels == sorted(kernels, reverse=True) and kernels[0] > kernels[3], (mode, kernels)
assert all(rows[m, "off", 3]["best_us"] > rows[m, "on", 3]["best_us"] for m in ("compiled", "loop"))
assert {t["cache"] for t in csv.DictReader(open(sys.argv[2]))} == {"on", "off"}
PY
[ "$("$tenon" bench modes --depths 4 --sizes 5 --cache on --json -q --seconds 0.002 | grep -c '"cache": "off"')" = 1 ] || fail "bench modes --cache on: more than naive is without the cache"
"$tenon" bench modes --cache maybe >/dev/null 2>"$dir/err"
[ $? = 2 ] && grep -q "'maybe' is not on or off" "$dir/err" || fail "bench modes --cache maybe"
bench "$checked,rung,gflops,peak_gflops,peak_ratio,best_ratio" ladder matmul --sizes 9
spoiled "rung" ladder matmul --sizes 9
bench "$checked,case,variant,mode,compile_us,kernels,gflops,peak_gflops,peak_ratio,best_ratio,roof_ratio" gemm --sizes 1,7,65
bench "$checked,gbs,bandwidth_gbs,bandwidth_ratio" gemm --cases 1x1024x1024 --threads 1
spoiled "element" gemm --sizes 5
bench "$checked,case,variant,gflops,peak_ratio,best_ratio" conv --sizes 6 --threads 1
spoiled "element" conv --sizes 5 --threads 1
bench "$checked,case,variant,footprint,gbs,bandwidth_gbs,bandwidth_ratio,best_bandwidth_ratio" rows --sizes 1,19
spoiled "element" rows --sizes 19 --cases copy
bench "$checked,case,batch,gflops,peak_ratio" train --batch 2 --threads 1
spoiled "element" train --batch 2 --threads 1 --cases digits
bench "$checked,case,kernels,budget_us,budget_ratio" compile --cases kernel --threads 1
bench "$checked,case,kernels,budget_us,budget_ratio" compile --cases depth --threads 1 # a name with a comma
spoiled "off by" compile --cases kernel --threads 1
bench "work,case,variant,threads,median_us,p10_us,p90_us,best_us,p99_us,max_abs_err,err_bound,asked_per_second,per_second,mean_batch" serve --cases 'at 0.5'
spoiled "element" serve --cases 'at 0.5'
bench "$checked,case,variant,size,batch" contention --sizes 17
python3 - "$dir/out" <<'PY2' || fail "bench contention: the report"
import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
assert [r["variant"] for r in rows] == ["quiet"] * 2 + ["one busy program"] * 2 + ["2 sessions", "4 sessions"], rows
assert all(("one_session_ratio" if "sessions" in r["variant"] else "one_thread_ratio") in r for r in rows), rows
assert all(("quiet_ratio" in r) == (r["variant"] == "one busy program") for r in rows), rows
PY2
spoiled "double precision" contention --sizes 17
bench "work,case" memory --largest 0 --sizes 64 --threads 1,2
spoiled "wrong result" memory --largest 0 --sizes 64 --cases access

# The plot of memory: bandwidth and latency below each other, and the levels of the caches as vertical lines with their names.
runs=$((runs + 1))
"$tenon" bench memory --largest 1 --cases bandwidth,latency,cache --threads 1 --seconds 0.02 --json -q --svg "$dir/plot.svg" --html "$dir/page.html" >"$dir/out" 2>"$dir/err" || { fail "bench memory --svg"; cat "$dir/err"; }
python3 - "$dir/out" "$dir/plot.svg" "$dir/page.html" <<'PY' || fail "bench memory: the plot"
import json, re, sys
rows, plot = json.load(open(sys.argv[1]))["rows"], open(sys.argv[2]).read()
page = open(sys.argv[3]).read() # the same picture, and a row of the table a row
assert page.count("<tr>") == len(rows) + 1 and plot.strip() in page, (page.count("<tr>"), len(rows))
assert ">GB/s (median)<" in plot and ">nanoseconds a load (median)<" in plot and ">pointer chase<" in plot
points = [len(p.split()) for p in re.findall(r'points="([^"]*)"', plot)]
assert sum(r["work"] == "latency" for r in rows) in points, points
marks = re.findall(r'class="mark"', plot)
caches = [r for r in rows if r["work"] == "cache"]
words = re.findall(r">((?:L1 data|L2|L3) [0-9.]+ [KM]iB)<", plot)
assert len(words) == len(marks) >= len(caches), (words, caches)
assert not caches or "found by Tenon" in plot
assert marks, "no mark"
ticks = re.findall(r">([0-9]+ [KM]iB)</text>", plot)
assert "64 KiB" in ticks and len(set(ticks)) >= 3, ticks
PY
bench "$checked,case,variant,size" exp write-vs-move --sizes 17 --threads 1
bench "$checked,case,variant,size" exp dot-sum-dot --sizes 17 --threads 1
for way in "C, three steps" "C, one movement" "C, two movements" "graph" "graph, one movement" "graph, two movements"; do
    grep -q "\"variant\": \"$way\"" "$dir/out" || fail "bench exp dot-sum-dot has no '$way'"
done
spoiled "element" exp dot-sum-dot --sizes 17 --threads 1

# Devices, where there is one.
if "$tenon" devices --json | python3 -c 'import json, sys; sys.exit(not any(d["name"] == "opencl" and "detail" in d for d in json.load(sys.stdin)["devices"]))'; then
    if campaign_has 0 3; then
        # optimised by PoCL, too: kernels that run for longer than they compile
        POCL_EXTRA_BUILD_FLAGS='' bench "work,case,device,footprint" memory --device opencl --largest 0 --cases bandwidth,latency,access,atomics,barriers
        spoiled "wrong result" memory --device opencl --largest 0 --cases access
        spoiled "wrong result" memory --device opencl --largest 0 --cases latency
    fi
    if campaign_has 1 3; then
        bench "$checked,variant,device" exp dot-sum-dot --device opencl --sizes 17
        python3 - "$dir/out" <<'PY' || fail "bench exp --device: where the rows were measured"
import json, sys
report = json.load(open(sys.argv[1]))
assert "plain C loops of one thread on the host" in report["note"] and "device opencl" in report["note"], report["note"]
assert all(r["device"] == ("cpu" if r["variant"].startswith("C,") else "opencl") for r in report["rows"])
assert {r["device"] for r in report["rows"]} == {"cpu", "opencl"}
PY
    fi
    if campaign_has 2 3; then
        bench "work,rung,device,size,err_bound" ladder sum --device opencl --sizes 65
        mkdir "$dir/tmp"
        TMPDIR=$dir/tmp bench "work,case,variant,device,size,compile_us,budget_us,budget_ratio" compile --device opencl --sizes 4
        rmdir "$dir/tmp" || fail "bench compile leaves its cache"
        spoiled "off by" compile --device opencl --sizes 4
    fi
fi

# Exactness of functions: no plot, and sizes of its own.
runs=$((runs + 2))
"$tenon" bench ulp --functions exp,pow,mod --samples 5000 --seconds 0.005 --csv "$dir/rows.csv" --json -q >"$dir/out" 2>"$dir/err" || { fail "bench ulp"; cat "$dir/err"; }
python3 - "$dir/out" <<'PY' || fail "bench ulp: the report"
import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
assert [r["case"] for r in rows] == ["exp", "pow", "mod"], rows
for r in rows:
    assert r["inputs"] == 5000 and 0 < r["max_ulp"] <= r["ulp_bound"] and r["us_per_million"] > 0 and r["gbs"] > 0 and r["worst"], r
PY
"$tenon" bench sum --sizes 5001 --threads 1 --seconds 0.005 --json -q >"$dir/out" 2>"$dir/err" || { fail "bench sum"; cat "$dir/err"; }
python3 - "$dir/out" <<'PY' || fail "bench sum: the report"
import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
assert len(rows) == 24, len(rows)
error = {(r["work"], r["case"]): r["max_abs_err"] for r in rows}
assert all(0 <= r["max_abs_err"] <= r["err_bound"] and r["median_us"] > 0 for r in rows)
assert error["0.1", "graph, compensated"] < error["0.1", "C, one after the other"] / 100
PY
"$tenon" bench sum --sizes 5001 --threads 1 --plant-error --seconds 0.005 -q >"$dir/out" 2>"$dir/err"
[ $? = 1 ] && grep -q "is allowed" "$dir/err" || fail "bench sum: a spoiled result is not noticed"
"$tenon" bench ir --sizes 3000 --seconds 0.005 --json -q >"$dir/out" 2>"$dir/err" || { fail "bench ir"; cat "$dir/err"; }
python3 - "$dir/out" <<'PY' || fail "bench ir: the report"
import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
assert [r["case"] for r in rows] == ["build", "print", "parse", "check", "walk"], rows
assert all(r["size"] > 3000 and r["per_second"] > 0 for r in rows)
PY
"$tenon" bench ir --sizes 3000 --seconds 0.005 --plant-error -q >"$dir/out" 2>"$dir/err"
[ $? = 1 ] && grep -q "reads back" "$dir/err" || fail "bench ir: a spoiled text is not noticed"
# Bytes from memory by the model against simulated caches: nine of ten kernels within a tenth.
"$tenon" bench bytes --json >"$dir/out" 2>"$dir/err" || { fail "bench bytes"; cat "$dir/err"; }
python3 -c 'import json, sys; w = json.load(open(sys.argv[1]))["within_a_tenth"]; sys.exit(w["kernels"] != 60 or min(w["memory"], w["memory_cold"]) < 54)' "$dir/out" || fail "bench bytes: $(tail -c 120 "$dir/out")"
runs=$((runs + 1))
"$tenon" bench model --threads 1 --samples 12 --cases matmul --seconds 0.005 --json -q >"$dir/out" 2>"$dir/err" || { fail "bench model"; cat "$dir/err"; }
"$tenon" bench model --threads 1 --samples 12 --cases random --seconds 0.005 --json -q >"$dir/random" 2>"$dir/err" || { fail "bench model"; cat "$dir/err"; }
python3 - "$dir/out" "$dir/random" <<'PY' || fail "bench model: the report"
import json, sys
models, random = (json.load(open(f)) for f in sys.argv[1:])
assert {"@matmul:64", "@matmul:1024"} <= {r["graph"] for r in models["rows"]} and len(random["rows"]) == 12
for report in models, random:
    rows, said = report["rows"], report["all"]
    assert all(r["predicted_us"] > 0 and r["best_us"] > 0 and r["threads"] == 1 and r["bound"] for r in rows)
    assert all(r["l1_bytes"] > 0 and r["l1_bytes"] * 100 > r["l2_bytes"] >= 0 <= r["memory_bytes"] for r in rows)
    def ranks(key):
        order = sorted(r[key] for r in rows)
        return [order.index(r[key]) + (order.count(r[key]) - 1) / 2 for r in rows]
    x, y = ranks("predicted_us"), ranks("best_us")
    mean = (len(rows) - 1) / 2
    dot = lambda a, b: sum((p - mean) * (q - mean) for p, q in zip(a, b))
    assert abs(said["rank_correlation"] - dot(x, y) / (dot(x, x) * dot(y, y)) ** .5) < 1e-6
    errors = sorted(abs(r["predicted_us"] / r["best_us"] - 1) for r in rows)
    assert said["kernels"] == len(rows) and errors[(len(rows) - 1) // 2] - 1e-6 <= said["median_error"] <= errors[len(rows) // 2] + 1e-6
PY
"$tenon" bench ulp --functions exp --samples 5000 --plant-error --seconds 0.005 -q >"$dir/out" 2>"$dir/err"
[ $? = 1 ] && grep -q "further" "$dir/err" || fail "bench ulp: a spoiled result is not noticed"

# Operands as their transposes: checked like the others; a list that is none is wrong usage.
"$tenon" bench gemm --sizes 13 --trans nt,tn,tt --threads 1 --json -q --seconds 0.002 >"$dir/out" || fail "bench gemm --trans"
[ "$(grep -oE '"variant": "(input|constant) (nt|tn|tt)"' "$dir/out" | sort -u | wc -l)" = 6 ] || fail "bench gemm --trans has not six variants"
# A schedule by hand: for the programs with a kernel of that name; where a step is refused, and in other benchmarks, it is said.
name=$("$tenon" bench gemm --sizes 16 --threads 1 --seconds 0.002 --schedule <(echo 'schedule @none { tile }') 2>&1 | sed -nE 's/.*its kernels are ([a-z0-9_]+).*/\1/p' | head -1)
[ -n "$name" ] || fail "bench gemm --schedule names no kernels"
echo "schedule @$name { hoist; vectorize i1 4; unroll_jam i0 4; tile; multiply_add }" >"$dir/hand.s"
"$tenon" bench gemm --sizes 16 --threads 1 --json -q --seconds 0.002 --schedule "$dir/hand.s" >"$dir/out" 2>"$dir/err" || fail "bench gemm --schedule: $(cat "$dir/err")"
grep -q '"variant": "[a-z]*, by hand"' "$dir/out" || fail "bench gemm --schedule has no row by hand"
echo "schedule @$name { vectorize k2 3; tile }" >"$dir/hand.s"
out=$("$tenon" bench gemm --sizes 16 --threads 1 --seconds 0.002 --schedule "$dir/hand.s" 2>&1)
[ $? = 2 ] || fail "bench gemm takes a schedule that is not possible"
grep -q 'as its recipe has it: .*step 1, "vectorize k2 3"' <<<"$out" || fail "bench gemm --schedule, refused: $out"
bench "$checked,size,variant" control --sizes 40
spoiled "off by" control --sizes 40 --cases matrix
python3 - <<PY || fail "bench control: no ratios to the C loops"
import json, subprocess, sys
rows = json.loads(subprocess.run(["$tenon", "bench", "control", "--sizes", "50", "-q", "--seconds", "0.005", "--json"], capture_output=True).stdout)["rows"]
assert len(rows) == 10 and {r["variant"] for r in rows} == {"graph", "C loop"}, rows
assert all(("rival_ratio" in r) == (r["variant"] == "graph") for r in rows) and all(r["compile_us"] > 0 for r in rows if r["variant"] == "graph"), rows
PY
bench "$checked,size,batch,depth,gflops,peak_ratio,roof_ratio,kernels" rnn --sizes 5 --batch 3 --threads 1
spoiled "off by" rnn --sizes 5 --batch 1 --cases training
bench "$checked,size,batch,footprint,bandwidth_ratio" sort --sizes 37,300 --threads 1
spoiled "off by" sort --sizes 37 --cases top-k
bench "$checked,size,batch,footprint,bandwidth_ratio" concat --sizes 3,70 --threads 1
spoiled "off by" concat --sizes 3 --cases gradient
bench "$checked,size,batch,variant,inputs,bandwidth_ratio" sparse --sizes 1,40 --threads 1
spoiled "off by" sparse --sizes 40 --cases gradient
runs=$((runs + 1))
"$tenon" bench dynamic --samples 3 --largest 5 --threads 1 --cases mlp --json -q --seconds 0.005 >"$dir/out" 2>"$dir/err" || { fail "bench dynamic"; cat "$dir/err"; }
python3 - "$dir/out" <<'PY' || fail "bench dynamic: the report"
import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
assert [r["variant"] for r in rows] == ["one program"] * 3 + ["geometric mean", "worst"], rows
for r in rows[:3]:
    assert r["max_abs_err"] <= r["err_bound"] and r["mallocs"] == 0 and abs(r["specialised_us"] / r["median_us"] - r["specialised_ratio"]) < 0.01, r
assert rows[4]["specialised_ratio"] <= rows[3]["specialised_ratio"] and rows[4]["compile_us"] > 0, rows
PY
spoiled "off by" dynamic --samples 2 --largest 3 --threads 1 --cases mlp
"$tenon" bench modes --schedule "$dir/hand.s" >"$dir/out" 2>&1
[ $? = 2 ] || fail "bench modes takes a schedule"

"$tenon" bench gemm --sizes 13 --trans nt,x >/dev/null 2>&1
[ $? = 2 ] || fail "bench gemm --trans nt,x"

# Nothing is allocated inside the timed runs of compiled graphs.
"$tenon" bench gemm --sizes 16 --threads 1 --json -q --seconds 0.005 >"$dir/out"
python3 -c 'import json, sys; sys.exit(any(r["mallocs"] for r in json.load(open(sys.argv[1]))["rows"]))' "$dir/out" || fail "allocations in timed runs"

# Rivals.
mkdir "$dir/rivals"
cat >"$dir/rivals/start" <<'RIVAL'
#!/bin/bash
case $1 in
ort) echo "ready 1.0 on $2" ;;
jax) echo "ready 2.0" ;;
openblas) echo "ready 3.0" ;;
torch) echo "absent not today"; exit ;;
onednn) exit 3 ;;
*) echo "absent no such thing"; exit ;;
esac
while read -r word id rest; do
    case $word in
    case) [ "$1" = jax ] && echo "no wrong result" || echo "ok 0.1" ;;
    run) [ "$1" = openblas ] && exit
        echo "t $(printf '%d.%06d' 0 $((rest < 900 ? rest * 1000 : 900000)))" ;;
    *) echo ok ;;
    esac
done
RIVAL
chmod +x "$dir/rivals/start"
"$tenon" bench gemm --sizes 8 --threads 1 --seconds 0.005 --rivals --rivals-dir "$dir/rivals" --json --csv "$dir/rows.csv" >"$dir/out" 2>"$dir/err" || fail "rivals"
python3 - "$dir/out" "$dir/rows.csv" <<'PY' || fail "rivals in the report"
import csv, json, sys
report = json.load(open(sys.argv[1]))
assert report["rivals"] == {"ort": "1.0 on 1", "jax": "2.0"}, report
assert report["rivals_absent"]["torch"] == "not today" and report["rivals_absent"]["openblas"] == "stopped answering" and "onednn" in report["rivals_absent"], report
for r in report["rows"]:
    assert list(r["rivals"]) == ["ort"] and 900 < r["rivals"]["ort"] < 1100 and r["rival_ratio"] > 1, r
assert all(abs(float(t["ort_us"]) - 1000) < 100 and not t["jax_us"] for t in csv.DictReader(open(sys.argv[2])))
PY
"$tenon" bench contention --sizes 8 --seconds 0.005 --rivals --rivals-only ort --rivals-dir "$dir/rivals" --json -q >"$dir/out2" || fail "contention with rivals"
python3 - "$dir/out2" <<'PY' || fail "rivals beside other work"
import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
assert [list(r.get("rivals", [])) for r in rows] == [[], ["ort"], [], ["ort"], [], []], rows
PY
grep -q "openblas failed while it was timed" "$dir/err" || fail "a death is not reported"
grep -q "jax does not do" "$dir/err" || fail "a refusal is not reported"
"$tenon" bench gemm --sizes 8 --threads 1 --seconds 0.005 --rivals --rivals-dir "$dir/nowhere" --json >"$dir/out" 2>"$dir/err" || fail "no rivals at all"
python3 -c 'import json, sys; r = json.load(open(sys.argv[1])); sys.exit(len(r["rivals_absent"]) != 9 or r["rivals"] != {})' "$dir/out" || fail "absent rivals are not named"
runs=$((runs + 4))
pgrep -P $$ >/dev/null && fail "processes are left over"

echo "count: $runs benchmarks run"
exit $bad
