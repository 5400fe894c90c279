#!/bin/bash
# The page of examples/export: the digits network as WebAssembly, drawn by hand in headless Chromium. What it says of a drawing are the
# numbers of `tenon run` for the picture that it shows, no message is on the console, and nothing is wider than a telephone.
# Files for WebAssembly with their weights apart give the numbers of `tenon run`, too, in node.
set -u
for tool in clang wasm-ld python3; do command -v $tool >/dev/null || { echo "skipped: no $tool"; exit 77; }; done
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
tenon=$BUILD_DIR/tenon failures=0 runs=0
export TENON_CACHE_DIR=$dir/cache HOME=$dir
cd "$dir" || exit 1
fail() { echo "FAIL: $*"; failures=$((failures + 1)); }

# Pictures of 3 x 5 dots, moved and with noise, as examples/export/train.c draws them.
python3 - <<'P'
import random, struct
digits = ["### # ## ## ####", " #  #  #  #  # ", "###  #####  ###", "###  ####  ####", "# ## ####  #  #", "####  ###  ####", "####  #### ####", "###  #  #  #  #", "#### ##### ####", "#### ####  ####"]
r, n = random.Random(1), 256
x, t = [], []
for i in range(n):
    d, wide, high = i % 10, r.choice((1, 2)), 1
    t.append(d)
    left, top = r.randrange(0, 9 - 3 * wide), r.randrange(0, 9 - 5 * high)
    for y in range(8):
        for c in range(8):
            column, row = (c - left) // wide, (y - top) // high
            ink = 0 <= column < 3 and 0 <= row < 5 and digits[d][:15][3 * row + column] == "#"
            x.append(min(1, max(0, ink + r.uniform(-0.2, 0.2))))
def save(name, dtype, shape, code, values):
    head = "{'descr': '%s', 'fortran_order': False, 'shape': (%s,), }" % (dtype, ", ".join(map(str, shape)))
    head += " " * (64 - (len(head) + 11) % 64) + "\n"
    open(name, "wb").write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + struct.pack("<%d%s" % (len(values), code), *values))
save("x.npy", "<f4", [n, 8, 8, 1], "f", x)
save("t.npy", "<i4", [n], "i", t)
P
"$tenon" run @digits-train:256 --input x=@x.npy --input t=@t.npy --mode loop --steps 60 --save-state net.safetensors --quiet >loss || fail "no network learned"
numbers() { # numbers PICTURE: of tenon run
    "$tenon" run @digits:1 --state net.safetensors --input "x=1x8x8x1xf32:$1" --output p --limit=-1 --quiet | sed 1d | tr -d '[] \n' | tr , '\n' | awk 'NF { printf "%.4f\n", $1 }'
}

# Weights in a file that the page reads.
if command -v node >/dev/null; then
    "$tenon" export @digits:1 --state net.safetensors -o apart.c --name apart --target=wasm --weights apart.bin --quiet || fail "export --weights"
    flags=$(sed -n 's/^ \* *clang \(.*\) apart.c -o apart.wasm$/\1/p' apart.c)
    clang $flags -Wall -Wextra -Werror -std=c99 apart.c -o apart.wasm || fail "clang $flags"
    cat >apart.js <<'JS'
const fs = require('fs');
WebAssembly.instantiate(fs.readFileSync('apart.wasm')).then(({ instance: { exports: net } }) => {
    if (net.init() === 0) { console.log('took no weights for weights'); process.exit(1); }
    const weights = fs.readFileSync('apart.bin');
    new Uint8Array(net.memory.buffer, net.weights(), weights.length).set(weights);
    if (net.init()) { console.log('init'); process.exit(1); }
    new Float32Array(net.memory.buffer, net.in_x(), 64).fill(0.25);
    net.run();
    for (const v of new Float32Array(net.memory.buffer, net.out_p(), 10)) console.log(v.toFixed(4));
});
JS
    node apart.js >got || fail "node: $(cat got)"
    numbers 0.25 >want
    cmp -s want got || fail "with weights apart: $(paste want got)"
    runs=$((runs + 1))
fi
# Sizes that a call gives.
if command -v node >/dev/null; then
    cat >open.tn <<'T'
graph @open<n 1..6, m 2..12 by 2>(x f32[n,m,5]) {
  %1 = iota axis=1 f32[n,m,5]
  %2 = mul %1, x
  %3 = sum %2 axes=[2] f32[n,m,1]
  return %3 as "y"
}
T
    "$tenon" export open.tn -o open.c --name open --target=wasm --quiet || fail "export --target=wasm of open sizes"
    flags=$(sed -n 's/^ \* *clang \(.*\) open.c -o open.wasm$/\1/p' open.c)
    clang $flags -Wall -Wextra -Werror -std=c99 open.c -o open.wasm || fail "clang $flags"
    cat >open.js <<'JS'
const fs = require('fs');
WebAssembly.instantiate(fs.readFileSync('open.wasm')).then(({ instance: { exports: net } }) => {
    if (net.init() || !net.run(7, 2) || !net.run(1, 3)) { console.log('wrong sizes'); process.exit(1); }
    new Float32Array(net.memory.buffer, net.in_x(), 360).fill(0.25);
    const y = new Float32Array(net.memory.buffer, net.out_y(), 72);
    for (const [n, m] of [[3, 8], [6, 12], [1, 2]]) {
        y.fill(-7);
        if (net.run(n, m) || y.some((v, i) => v !== (i < n * m ? 1.25 * (i % m) : -7))) { console.log(n, m, y); process.exit(1); }
    }
});
JS
    node open.js >got || fail "node: $(cat got)"
    runs=$((runs + 1))
fi
for bad in "--cpu=avx2:neon (its vectors) or scalar" "--threads=2:a page has one"; do
    "$tenon" export @digits:1 -o bad.c --target=wasm "${bad%%:*}" 2>err && fail "${bad%%:*} was taken"
    grep -q -- "${bad#*:}" err || fail "${bad%%:*}: $(cat err)"
done

cp -r "$SOURCE_DIR/examples/export" page && make -s -C page digits.html TENON="$tenon" STATE="$dir/net.safetensors" >out 2>&1
[ -s page/digits.html ] || fail "make digits.html: $(cat out)"
grep -qE '(https?:)?//[a-z]+\.[a-z]|fetch\(|XMLHttp|src=' page/digits.html && fail "the page may ask the network"
browser=$(command -v chromium) || browser=
if [ -n "$browser" ] && [ -z "${SANITIZE:-}" ]; then
    cat >draw.html <<'H'
<script>
setTimeout(() => {
  const canvas = document.getElementById('draw'), box = canvas.getBoundingClientRect();
  const at = (type, [x, y]) => (type === 'pointerup' ? window : canvas).dispatchEvent(new PointerEvent(type, { clientX: box.left + x * box.width, clientY: box.top + y * box.height, bubbles: true }));
  const stroke = points => { at('pointerdown', points[0]); points.slice(1).forEach(p => at('pointermove', p)); at('pointerup', points[0]); };
  const said = [];
  const tell = () => said.push({ picture: Array.from(picture()), chances: [...document.querySelectorAll('#chances tr')].map(r => r.children[2].textContent), answer: document.getElementById('answer').textContent,
    numbers: Array.from(new Float32Array(net.memory.buffer, net.out_p(), 10)).map(v => v.toFixed(4)) });
  stroke([[0.25, 0.2], [0.5, 0.2], [0.7, 0.2], [0.6, 0.5], [0.5, 0.85]]);
  tell();
  document.getElementById('clear').click();
  const empty = document.getElementById('answer').textContent;
  dispatchEvent(new KeyboardEvent('keydown', { key: '1' }));
  tell();
  document.title = JSON.stringify({ said, empty, wide: document.documentElement.scrollWidth > innerWidth + 1 });
}, 300);
</script>
H
    sed '/^<\/html>/e cat draw.html' page/digits.html >drawn.html
    timeout 120 "$browser" --headless=new --no-sandbox --disable-gpu --hide-scrollbars --virtual-time-budget=3000 --user-data-dir="$dir/profile" \
        --enable-logging=stderr --window-size=390,800 --dump-dom "file://$dir/drawn.html" >dom 2>log || fail "Chromium fails"
    grep -i CONSOLE log && fail "messages on the console"
    python3 - >plan <<'P' || fail "what the page says: $(head -c 600 plan)"
import html, json, re, sys
title = re.search(r"<title>(.*?)</title>", open("dom", encoding="utf-8").read(), re.S).group(1)
x = json.loads(html.unescape(title))
if x["wide"]: sys.exit("wider than the window")
if x["empty"] != "Nothing is drawn yet.": sys.exit("not empty after Clear: " + x["empty"])
for i, s in enumerate(x["said"]):
    if max(s["picture"]) != 1 or min(s["picture"]) < 0: sys.exit("the picture is %s" % s["picture"])
    best = max(range(10), key=lambda k: float(s["numbers"][k]))
    if not s["answer"].startswith("This is %d," % best): sys.exit("it says %s of %s" % (s["answer"], s["numbers"]))
    if any(abs(float(c.split()[0]) - 100 * float(n)) > 0.06 for c, n in zip(s["chances"], s["numbers"])): sys.exit("the table says %s" % s["chances"])
    open("picture%d" % i, "w").write(",".join(repr(v) for v in s["picture"]))
    open("said%d" % i, "w").write("".join(n + "\n" for n in s["numbers"]))
P
    for i in 0 1; do
        [ -s picture$i ] || { fail "no picture $i"; continue; }
        numbers "$(cat picture$i)" >want
        paste want said$i | awk '{ d = $1 - $2; if (d > 2e-4 || d < -2e-4) bad = 1 } END { exit bad || NR != 10 }' || fail "drawing $i: $(paste want said$i | tr '\n' ' ')"
        runs=$((runs + 1))
    done
fi
echo "count: $runs pictures read by WebAssembly"
exit $((failures > 0))
