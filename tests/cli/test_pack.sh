#!/bin/bash
# tenon pack: tables, arrays and text come back out of the data set as they went in; mistakes are named.
set -u
tenon=$BUILD_DIR/tenon
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
fail() { echo "test_pack: $*"; exit 1; }
cd "$work" || exit 1
cat >read.py <<'EOF'
import json, struct, sys
def arrays(path):
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8 : 8 + n])
    code = {"F32": "f", "I32": "i"}
    out = {}
    for k, v in head.items():
        if k != "__metadata__":
            a, b = v["data_offsets"]
            out[k] = (v["shape"], list(struct.unpack(f"<{(b - a) // 4}{code[v['dtype']]}", raw[8 + n + a : 8 + n + b])))
    return out
EOF
printf 'a,b,label\n1,2,7\n3.5,4,8\n5,6,-9\n' >t.csv
"$tenon" pack -o t.safetensors --csv t.csv --skip 1 --labels -1 >out 2>err || fail "csv: $(cat err)"
grep -qx 'x: f32, 3 examples' out || fail "it says: $(cat out)"
python3 -c 'from read import *
assert arrays("t.safetensors") == {"x": ([3, 2], [1, 2, 3.5, 4, 5, 6]), "y": ([3], [7, 8, -9])}' || fail "the table is another"
"$tenon" pack -o t.safetensors --csv t.csv --skip 1 --json | python3 -c '
import json, sys
assert json.load(sys.stdin)["arrays"] == [{"name": "x", "dtype": "f32", "examples": 3}]' || fail "json"
python3 - <<'EOF'
import struct
head = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }".ljust(117) + "\n"
open("a.npy", "wb").write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + struct.pack("<6f", *range(6)))
EOF
"$tenon" pack -o n.safetensors one=a.npy two=a.npy -q >out 2>err || fail "npy: $(cat err)"
python3 -c 'from read import *
assert arrays("n.safetensors") == {k: ([2, 3], [0, 1, 2, 3, 4, 5]) for k in ("one", "two")}' || fail "the arrays are others"
head -c 30000 "$SOURCE_DIR/docs/ir.md" >text
"$tenon" tokenizer train text --tokens 600 --special '<end>' -o v -q >/dev/null || fail "train"
"$tenon" pack -o w.safetensors --text text --text t.csv --vocab v --end '<end>' >out 2>err || fail "text: $(cat err)"
{ "$tenon" tokenizer encode text --vocab v -q; echo 599; "$tenon" tokenizer encode t.csv --vocab v -q; echo 599; } >ids
python3 -c 'from read import *
want = [int(x) for x in open("ids")]
assert arrays("w.safetensors") == {"tokens": ([len(want)], want)}' || fail "the tokens are others"
wrong() { # CODE WORDS OPTIONS..
    local code=$1 words=$2
    shift 2
    "$tenon" pack "$@" >out 2>err
    [ $? = "$code" ] && grep -q -- "$words" err || fail "$*: $(cat err)"
}
wrong 2 "needs --output" --csv t.csv
wrong 2 "nothing to pack" -o x.safetensors
wrong 2 "NAME=FILE.npy" -o x.safetensors a.npy
wrong 2 "needs --vocab" -o x.safetensors --text text
wrong 1 "no special token <no>" -o x.safetensors --text text --vocab v --end '<no>'
wrong 1 'two arrays are "x"' -o x.safetensors x=a.npy --csv t.csv --skip 1
wrong 1 "no whole number" -o x.safetensors --csv t.csv --skip 1 --labels 0
[ ! -e x.safetensors ] || fail "a file is left after a mistake"
echo "count: 4 data sets packed and read back"
