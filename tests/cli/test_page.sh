#!/bin/bash
# The page of `tenon explain --html`: its data is the JSON of `tenon explain --json`, it asks nothing of the network, it is small,
# and its script short. Where Chromium is installed: no message on its console, and none after everything that can be clicked was;
# a picture of it shows something.
# Labels: long
set -u
tenon=$BUILD_DIR/tenon
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export TENON_CACHE_DIR=$work/cache HOME=$work
failed=0 pages=0
fail() { echo "test_page: $*"; failed=1; }

[ "$(wc -l <"$SOURCE_DIR/cli/report.js")" -lt 400 ] || fail "the script of the page has 400 lines or more"

cat >"$work/check.py" <<'EOP'
import json, re, sys
page, want, most = open(sys.argv[1], encoding="utf-8").read(), json.load(open(sys.argv[2])), int(sys.argv[3])
problems = []
data = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
if len(data) != 1:
    sys.exit(f"{sys.argv[1]}: {len(data)} pieces of data")
data = json.loads(data[0])
program = data["programs"][0]
if program["explain"] != want:
    problems.append("the data is not that of explain --json")
if len(page.encode()) > most:
    problems.append(f"the page has {len(page.encode())} bytes, more than {most}")
rest = page.replace("http://www.w3.org/2000/svg", "")
for bad in re.findall(r"""(?:https?:)?//[a-z]+\.[a-z]|<link |src=|@import|url\(|fetch\(|XMLHttp|import\(""", re.sub(r"(?s)<script type=.*?</script>", "", rest)):
    problems.append(f"the page may ask the network: {bad}")
codes = len({k["code"] for k in want["kernels"]})
# Pass by pass, from the values as given: what is left at the end are the values of the explanation.
passes = program["passes"]
known, live = {v[0]: v for v in passes["given"]}, [v[0] for v in passes["given"]]
for p in passes["passes"]:
    known.update({v[0]: v for v in p["added"]})
    known.update({n: known[n][:4] + [i] for n, i in p["rewired"]})
    live = [n for n in live if n not in p["removed"]] + [v[0] for v in p["added"]]
    if len(live) != p["values"] or not (p["added"] or p["removed"] or p["rewired"]):
        problems.append(f"pass {p['pass']} leaves {len(live)} values, not {p['values']}, or changes nothing")
if set(live) != set(passes["numbers"]):
    problems.append("the passes end with other values")
for number, v in zip(passes["numbers"], want["values"]):
    x = known[number]
    if (x[1], x[2], x[4]) != (v["op"], v["shape"], [passes["numbers"][i - 1] if i else 0 for i in v.get("in", [])]):
        problems.append(f"value {v['id']} is {v}, after the passes {x}")
for v in data.get("variants", []):
    x = v["explain"]
    if not x["short"] or abs(sum(k["launches_us"] for k in x["kernels"]) / x["predicted_us"] - 1) > 0.5 or sum(k["launches"] for k in x["kernels"]) > x["n_kernels"]:
        problems.append(f"what if {v['label']}: kernels do not add up")
    if v["group"] == "Fusion" and int(v["label"][-1]) != x["fusion"]:
        problems.append(f"what if {v['label']}: fusion level {x['fusion']}")
    if v["group"] == "Fusion" and x["fusion"] == want["fusion"] and x["n_kernels"] != want["n_kernels"] and want["device"] == x["device"]:
        problems.append("the same fusion level has other kernels")
for k in want["kernels"]:
    said = k.get("counted_bytes") or k.get("not_counted")
    if bool(said) == want["machine"]["gpu"]:
        problems.append(f"kernel {k['kernel']} says {said} of the simulated caches")
    if isinstance(said, dict) and abs(said["l1"] - k["level_bytes"]["l1"]) > 0.5 * said["l1"]:
        problems.append(f"kernel {k['kernel']}: loads and stores {said['l1']} counted, {k['level_bytes']['l1']} predicted")
if want["n_kernels"] != len(want["kernels"]) or abs(sum(k["predicted_us"] for k in want["kernels"]) - want["predicted_us"]) > 1e-3 * want["predicted_us"]:
    problems.append("the sums are not those of the kernels")
for form, texts in program["texts"].items():
    if len(texts) != codes or not all(t.strip() for t in texts):
        problems.append(f"{len(texts)} texts of {form} for {codes} kernels")
for name in ("kernels", *sys.argv[4:]):
    if name not in program["texts"]:
        problems.append(f"no texts of {name}")
for p in problems:
    print(f"test_page: {sys.argv[1]}: {p}")
sys.exit(bool(problems))
EOP

page() { # page NAME BYTES FORMS.. -- ARGUMENTS.. of explain
    local name=$1 most=$2 forms=()
    shift 2
    while [ "$1" != -- ]; do forms+=("$1"); shift; done
    shift
    local only=()
    for o in "$@"; do case $o in --measure | --no-what-if | --seconds=* | --against=*) ;; *) only+=("$o") ;; esac; done
    "$tenon" explain "$@" --no-ceilings --html "$work/$name.html" 2>"$work/err" && "$tenon" explain "${only[@]}" --json >"$work/json" 2>>"$work/err" &&
        python3 "$work/check.py" "$work/$name.html" "$work/json" "$most" "${forms[@]}" || { cat "$work/err"; fail "$*"; }
    pages=$((pages + 1))
}
page mlp 400000 c x86 scalar -- @mlp:8x64 --threads 2 --measure --seconds=0
page train 1000000 c x86 -- @digits-train:16 --threads 2 --against=@digits-train:8
page gpu 500000 cuda -- @digits --device cuda --no-what-if
page plain 300000 c x86 -- @attention --fusion 0 --no-what-if
cat >"$work/odd.tn" <<'EOG'
graph @odd(x f32[4], state "</script><b>\"w\"" f32[4]) {
  %1 = exp x  f32[4]
  return %1 as "z\\<!--"
}
EOG
page odd 200000 -- "$work/odd.tn"
awk 'BEGIN { print "graph @huge(x f32[8,8], w f32[8,8]) {\n  %1 = tanh x f32[8,8]"
    for (i = 2; i <= 100000; i++) printf "  %%%d = %s f32[8,8]\n", i, i % 9 ? "sin %" i - 1 : "dot %" i - 1 ", w contract=[1]x[0]"
    print "  return %100000 as \"y\"\n}" }' >"$work/huge.tn"
"$tenon" explain "$work/huge.tn" --no-what-if --no-ceilings --html "$work/huge.html" 2>"$work/err" || fail "a huge graph: $(cat "$work/err")"
grep -q '"short":true' "$work/huge.html" && [ "$(stat -c %s "$work/huge.html")" -lt 200000 ] && grep -q '"n_kernels":[0-9]' "$work/huge.html" || fail "the page of a huge graph is no summary"
"$tenon" explain @mlp --measure 2>/dev/null && fail "--measure without --html"
"$tenon" explain @mlp --html "$work/none/page.html" 2>"$work/err" && fail "a folder that does not exist"
grep -q "cannot write .*none/page.html" "$work/err" || fail "what is said of a folder that does not exist: $(cat "$work/err")"

browser=$(command -v chromium) || browser=
if [ -n "$browser" ] && [ -z "$SANITIZE" ]; then
    cat >"$work/click.html" <<'EOC'
<script>
setTimeout(() => {
  let n = 0;
  const click = e => { n++; e.dispatchEvent(new MouseEvent('click', { bubbles: true, cancelable: true })); };
  for (const q of ['button', '.node', 'tr[data-k]', '[role=button]']) [...document.querySelectorAll(q)].slice(0, 60).forEach(click);
  for (const i of document.querySelectorAll('input')) { i.value = i.type === 'range' ? i.max : 'a'; i.dispatchEvent(new Event('input', { bubbles: true })); }
  for (const s of document.querySelectorAll('select')) [...s.options].slice(0, 8).forEach(o => { s.value = o.value; s.dispatchEvent(new Event('change', { bubbles: true })); n++; });
  for (const panel of document.querySelectorAll('section')) panel.style.contentVisibility = 'visible'; // as if looked at
  const empty = [...document.querySelectorAll('section')].filter(s => s.innerText.length < 60 || s.getBoundingClientRect().height < 60).map(s => s.id);
  const wide = document.documentElement.scrollWidth > innerWidth + 1;
  document.title = `clicked ${n}, empty [${empty}], wide ${wide}`;
}, 50);
</script>
EOC
    see() { timeout 120 "$browser" --headless=new --no-sandbox --disable-gpu --hide-scrollbars --virtual-time-budget=1000 \
        --user-data-dir="$work/profile" --enable-logging=stderr "$@" 2>"$work/log"; }
    for name in train odd huge; do
        sed '/^<\/body>/e cat '"$work/click.html" "$work/$name.html" >"$work/clicked.html"
        see --window-size=390,800 --dump-dom "file://$work/clicked.html" >"$work/dom" || fail "$name: Chromium fails"
        grep -i 'CONSOLE' "$work/log" && fail "$name: messages on the console"
        grep -qE '<title>clicked [1-9][0-9]*, empty \[\], wide false</title>' "$work/dom" || fail "$name: $(grep -o '<title>clicked[^<]*' "$work/dom")"
    done
    for how in 1000,2500; do
        see --window-size=$how --screenshot="$work/shot.png" "file://$work/train.html" >/dev/null
        python3 - "$work/shot.png" <<'EOP' || fail "the picture for $how shows nothing"
import sys, zlib, struct
data, at, packed = open(sys.argv[1], "rb").read(), 8, b""
while at < len(data):
    n, kind = struct.unpack(">I4s", data[at:at + 8])
    packed += data[at + 8:at + 8 + n] if kind == b"IDAT" else b""
    at += 12 + n
sys.exit(len(packed) < 30000 or len(set(zlib.decompress(packed))) < 50)
EOP
    done
    echo "count: $pages pages say what explain --json says; Chromium shows them without complaint"
else
    echo "count: $pages pages say what explain --json says"
fi
exit $failed
