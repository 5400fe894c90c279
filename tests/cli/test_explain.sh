#!/bin/bash
# The two views of tenon explain say the same: each kernel, its bytes, what it computes, its schedule and its decisions, and each
# place in memory stand in the text and in the JSON with the same figures, references between the JSON's lists hold, and each edge
# between kernels has a reason.
# Labels: long
set -u
tenon=$BUILD_DIR/tenon
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export TENON_CACHE_DIR=$work/cache
failed=0 checked=0

cat >"$work/check.py" <<'EOF'
import json, re, sys
text, x, what = open(sys.argv[1]).read(), json.load(open(sys.argv[2])), sys.argv[3]
problems = []
def same(name, a, b):
    if a != b:
        problems.append(f"{name}: {a!r} in the text, {b!r} in the JSON")
values, decisions = {v["id"]: v for v in x["values"]}, x["decisions"]
def named(v):
    n = values[v]
    return f"%{v} {n['op']} {n['shape']}" + (f" ({n['name']})" if "name" in n else "")
def kib(n):
    return f"{n / 1024:.1f}"
head, *kernels = re.split(r"^kernel \d+: ", text.split("\nplaces of ")[0], flags=re.M)
same("kernels", len(kernels), len(x["kernels"]))
same("kernels in the first line", re.match(r"graph @\S+: (\d+) kernels? \((\d+) different", head).groups(),
     (str(len(x["kernels"])), str(x["distinct_kernels"])))
for name, key in (("temporaries: ", "arena_bytes"), ("lower bound ", "arena_bound"), ("states ", "state_bytes"), ("memory: ", "program_bytes")):
    same(key, re.search(re.escape(name) + r"([0-9.]+) KiB", head).group(1), kib(x[key]))
for i, (t, k) in enumerate(zip(kernels, x["kernels"])):
    at = f"kernel {i} "
    m = re.match(r"(\S+?)(?: \(code of kernel (\d+)\))?, read ([0-9.]+) KiB, written ([0-9.]+) KiB", t)
    same(at + "name", m.group(1), k["name"])
    same(at + "code", int(m.group(2) or i), k["code"])
    same(at + "bytes", m.groups()[2:], (kib(k["bytes_read"]), kib(k["bytes_written"])))
    same(at + "ops", re.search(r"^   computes *(.*)$", t, re.M).group(1), ", ".join(v["op"] for v in k["values"]))
    steps = re.search(r"^   schedule: (.*)$", t, re.M)
    same(at + "schedule", steps and steps.group(1), "; ".join(k["schedule"]) if "schedule" in k else None)
    lines = re.findall(r"^      ([+-] .*)$", t, re.M)
    said = []
    for d in (decisions[d] for d in k["decisions"]):
        said.append(f"{'+' if d['fused'] else '-'} {named(d['value'])}: {d['reason']}" +
                    (f", not joined with {named(d['with'])}" if d["with"] and not d["fused"] else ""))
        if d["value"] not in [v["id"] for v in k["values"]]:
            problems.append(at + f"has a decision about value {d['value']}, which it does not compute")
    same(at + "decisions", lines, said)
    same(at + "in place", re.findall(r"^   in place: (.*)$", t, re.M),
         [f"{named(p['value'])} over {named(p['over'])}" for p in k["in_place"]])
    same(at + "accesses", len(re.findall(r"^   (?:reads|writes) %", t, re.M)), len(k.get("accesses", [])))
    for v in k["values"]:
        same(at + f"op of value {v['id']}", values[v["id"]]["op"], v["op"])
    if not any(b["writes"] for b in k["touches"]):
        problems.append(at + "writes nothing")
places = re.findall(r"^   b(\d+) +at (\d+) +(\d+) +(\d+)", text, re.M)
same("places", sorted(tuple(map(int, p)) for p in places),
     sorted((b["buffer"], b["offset"], b["bytes"], b["alignment"]) for b in x["buffers"]))
touched = {b["buffer"] for k in x["kernels"] for b in k["touches"]}
for b in x["buffers"]:
    if b["slot"] == 0 and not (b["buffer"] in touched and b["first"] <= b["last"] < len(x["kernels"])):
        problems.append(f"temporary b{b['buffer']} of launches {b['first']} to {b['last']} is not touched by them")
# Whatever a kernel reads of what an earlier one has written is an edge, and each edge says why they are not one kernel.
edges, written = {(e["from"], e["to"]) for e in x["edges"]}, {}
for i, k in enumerate(x["kernels"]):
    for t in k["touches"]:
        if t["reads"] and written.get(t["buffer"], i) != i and (written[t["buffer"]], i) not in edges:
            problems.append(f"no edge from kernel {written[t['buffer']]} to {i}, which reads b{t['buffer']}")
    written.update({t["buffer"]: i for t in k["touches"] if t["writes"]})
for e in x["edges"]:
    if not 0 <= e["decision"] < len(decisions) or decisions[e["decision"]]["fused"] or not decisions[e["decision"]]["reason"]:
        problems.append(f"nothing says why kernels {e['from']} and {e['to']} are two")
for v in x["values"]:
    if not set(v.get("in", [])) <= {0} | set(values):
        problems.append(f"value {v['id']} has an operand that is none")
    if "kernel" in v and v["id"] not in [w["id"] for w in x["kernels"][v["kernel"]]["values"]]:
        problems.append(f"kernel {v['kernel']} does not compute value {v['id']}")
for p in problems[:10]:
    print(f"test_explain: {what}: {p}")
sys.exit(bool(problems))
EOF

check() { # GRAPH OPTIONS..
    "$tenon" explain "$@" >"$work/text" 2>"$work/err" && "$tenon" explain "$@" --json >"$work/json" 2>"$work/err" &&
        python3 "$work/check.py" "$work/text" "$work/json" "$*" || { cat "$work/err"; failed=1; }
    checked=$((checked + 1))
}
for model in mlp:8x64 digits digits-train:16 attention cnn linear_softmax:20x30x40 layernorm fractional_pool; do
    for fusion in 0 2 3; do check "@$model" --fusion "$fusion" --threads 2; done
    check "@$model" --device null
done
cat >"$work/unused.tn" <<'EOF'
graph @unused(x f32[4], y f32[4], state "a\"b" f32[4]) {
  %1 = exp x  f32[4]
  return %1 as "z"
}
EOF
check "$work/unused.tn"
grep -q '^no result depends on input y' "$work/text" || { echo "test_explain: the unused input is not named"; failed=1; }
[ "$failed" = 0 ] || exit 1
echo "count: $checked explanations say the same as text and as JSON"
