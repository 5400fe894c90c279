#!/bin/bash
# tenon train-lm and generate: a model learns, goes on after kill -9 with the same bits, writes the same text for the same seed;
# mistakes are named.
# Labels: long
set -u
tenon=$BUILD_DIR/tenon
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
fail() { echo "test_lm: $*"; exit 1; }
cd "$work" || exit 1
head -c 20000 "$SOURCE_DIR/docs/ir.md" >text
small=(--layers 1 --heads 2 --width 16 --block 16 --batch 4 --steps 70 --eval-every 20 --threads 1 --lr 0.01 --warmup 10)
"$tenon" train-lm text -o whole "${small[@]}" --svg curve.svg --html curve.html --json >out 2>err || fail "train: $(cat err)"
python3 - <<'EOF' || fail "what training says: $(cat out)"
import json, struct
r = json.load(open("out"))
assert r["step"] == r["steps"] == 70 and r["skipped"] == 0 and r["loss"] < 4.5 and r["held_out_loss"] < 4.5, r
assert abs(r["bits_per_byte"] - r["held_out_loss"] / 0.6931472) < 1e-3, r
assert len(open("whole/loss.csv").read().split("\n")) == 5
raw = open("whole/model.safetensors", "rb").read()
names = json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])
names.pop("__metadata__", None)
layer = "ln_1.weight ln_1.bias attn.c_attn.weight attn.c_attn.bias attn.c_proj.weight attn.c_proj.bias ln_2.weight ln_2.bias"
layer += " mlp.c_fc.weight mlp.c_fc.bias mlp.c_proj.weight mlp.c_proj.bias"
assert set(names) == {"wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias"} | {"h.0." + x for x in layer.split()}, sorted(names)
assert names["h.0.attn.c_attn.weight"]["shape"] == [16, 48]
config = json.load(open("whole/config.json"))
assert (config["model_type"], config["n_embd"], config["n_positions"], config["vocab_size"]) == ("gpt2", 16, 16, 256)
EOF
grep -q "held-out text" curve.svg || fail "the plot"
grep -q '<h1>tenon train-lm: whole</h1>' curve.html && grep -q '<svg' curve.html && [ "$(grep -c '<tr><td>' curve.html)" -ge 1 ] || fail "the page"
# A run that is killed at a random place, again and again until it is through, ends with the same bits.
kills=0
for _ in $(seq 60); do
    "$tenon" train-lm text -o killed --resume "${small[@]}" -q >/dev/null 2>err &
    pid=$!
    sleep "0.0$((RANDOM % 10))$((RANDOM % 10))"
    if kill -9 $pid 2>/dev/null; then kills=$((kills + 1)); fi
    wait $pid 2>/dev/null && break
done
"$tenon" train-lm text -o killed --resume "${small[@]}" -q >/dev/null 2>err || fail "resume: $(cat err)"
cmp -s whole/checkpoint.safetensors killed/checkpoint.safetensors || fail "another result after $kills kills"
# The same from the same seed.
"$tenon" train-lm text -o parts "${small[@]}" -q >/dev/null || fail "parts"
for f in config.json vocab.json merges.txt; do cmp -s whole/$f parts/$f || fail "$f differs"; done
cmp -s whole/loss.csv parts/loss.csv || fail "another curve"
# Text: the same for the same seed, beyond the model's positions; the likeliest token for temperature 0.
write() { "$tenon" generate whole --threads 1 -q "$@"; }
write --prompt "The " -n 50 --seed 3 >a || fail "generate"
write --prompt "The " -n 50 --seed 3 >b
write --prompt "The " -n 50 --seed 4 >c
cmp -s a b || fail "the same seed gives another text"
! cmp -s a c || fail "another seed gives the same text"
[ "$(head -c 4 a)" = "The " ] || fail "the prompt is lost"
write --prompt "The " -n 20 --temperature 0 --seed 1 --json >a
write --prompt "The " -n 20 --top-k 1 --seed 2 --json >b
python3 -c '
import json
a, b = json.load(open("a")), json.load(open("b"))
assert a["ids"] == b["ids"] and a["tokens"] == 20 and a["prompt_tokens"] == 4 and a["text"].startswith("The "), (a, b)' || fail "json"
# A Llama; weights that another program wrote as bf16 with a prefix.
"$tenon" train-lm text -o llama --model llama --kv-heads 1 "${small[@]}" --vocab-size 300 -q >/dev/null 2>err || fail "llama: $(cat err)"
"$tenon" generate llama -n 5 -q >/dev/null || fail "a llama writes nothing"
mkdir half && cp whole/*.json whole/merges.txt half
python3 - <<'EOF'
import json, struct
raw = open("whole/model.safetensors", "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
head, data, out, at, parts = json.loads(raw[8 : 8 + n]), raw[8 + n :], {}, 0, []
for k, v in head.items():
    if k != "__metadata__":
        a, b = v["data_offsets"]
        parts.append(b"".join(data[i + 2 : i + 4] for i in range(a, b, 4)))
        out["transformer." + k] = {"dtype": "BF16", "shape": v["shape"], "data_offsets": [at, at + (b - a) // 2]}
        at += (b - a) // 2
text = json.dumps(out).encode()
open("half/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + b"".join(parts))
EOF
"$tenon" generate half --temperature 0 -n 5 -q >a 2>err || fail "bf16: $(cat err)"
for t in bf16 f16; do
    "$tenon" generate half --temperature 0 --dtype $t -p "And the earth was without form" --chunk 8 -n 5 -q >b 2>err ||
        fail "computed in $t: $(cat err)"
done
# 8-bit weights: a quarter of the bytes, the same text for a while.
for m in whole llama; do
    "$tenon" quantize $m -o ${m}8 --group 8 --json -q >a 2>err || fail "quantize: $(cat err)"
    python3 -c 'import json; e = json.load(open("a"))["relative_error"]; assert 0.0005 < e < 0.01, e' || fail "error of quantisation"
    "$tenon" generate $m -p "The value " --temperature 0 -n 4 --json -q >a || fail "generate $m"
    "$tenon" generate ${m}8 -p "The value " --temperature 0 -n 4 --json -q >b 2>err || fail "8-bit weights: $(cat err)"
    python3 -c 'import json; assert json.load(open("a"))["ids"] == json.load(open("b"))["ids"]' || fail "another text: $(cat a b)"
done
"$tenon" quantize whole -o whole4 --group 8 --bits 4 --json -q >a 2>err || fail "quantize to 4 bits: $(cat err)"
python3 -c 'import json; e = json.load(open("a"))["relative_error"]; assert 0.01 < e < 0.15, e' || fail "error of 4 bits: $(cat a)"
"$tenon" generate whole4 -p "The value " -n 4 -q >a 2>err || fail "4-bit weights: $(cat err)"
# bf16 weights: half of the bytes, the same text for a while.
"$tenon" quantize whole -o whole16 --bits 16 --json -q >a 2>err || fail "quantize to bf16: $(cat err)"
python3 -c 'import json; e = json.load(open("a"))["relative_error"]; assert 0.0005 < e < 0.003, e' || fail "error of bf16"
[ "$(stat -c %s whole16/model.safetensors)" -lt $((3 * $(stat -c %s whole/model.safetensors) / 4)) ] || fail "bf16 is no smaller"
"$tenon" generate whole16 -p "The value " --temperature 0 -n 4 --json -q >b 2>err || fail "bf16 weights: $(cat err)"
"$tenon" generate whole -p "The value " --temperature 0 -n 4 --json -q >a || fail "generate"
python3 -c 'import json; assert json.load(open("a"))["ids"] == json.load(open("b"))["ids"]' || fail "another text: $(cat a b)"
# Narrow types compute as f32 does within their noise, with parameters in f32; steps that f16's scale spoils are counted.
for t in bf16 f16; do
    "$tenon" train-lm text -o $t --dtype $t "${small[@]}" --json -q >a 2>err || fail "$t: $(cat err)"
    python3 - $t <<'EOP' || fail "$t: $(cat a out)"
import json, struct, sys
r = json.load(open("a"))
f32 = [float(l.split(",")[2]) for l in open("whole/loss.csv")][-1]
assert abs(r["held_out_loss"] - f32) < 0.03 * f32 and 0 <= r["skipped"] < 20, (r, f32)
raw = open(sys.argv[1] + "/model.safetensors", "rb").read()
head = json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])
assert all(v["dtype"] == "F32" for k, v in head.items() if k != "__metadata__")
EOP
    "$tenon" train-lm text -o $t --resume --steps 80 -q >/dev/null 2>err || fail "$t resumed: $(cat err)"
    grep -q "\"tenon_dtype\": \"$t\"" $t/config.json || fail "$t is not kept"
    "$tenon" generate $t -n 3 -q >/dev/null || fail "$t writes nothing"
done
# The example learns; called again, it has nothing left to do.
steps() { (mkdir -p "$1" && cd "$1" && "$BUILD_DIR/examples/gpt" --steps "$2" --json ../text); }
steps one 16 >a 2>err || fail "example: $(cat err)"
python3 -c 'import json; r = json.load(open("a")); assert r["steps"] == 16 and r["bits_per_byte"] < 7, r' || fail "example: $(cat a)"
steps one 16 >b || fail "example: it does not go on"
grep -q '"seconds":0.0' b || fail "the example does its steps again: $(cat b)"
wrong() { # CODE WORDS COMMAND OPTIONS..
    local code=$1 words=$2
    shift 2
    "$tenon" "$@" >out 2>err
    [ $? = "$code" ] && grep -q -- "$words" err || fail "$*: $(cat err)"
}
wrong 1 "has a model already" train-lm text -o whole
wrong 2 "needs --output" train-lm text
wrong 1 "too few for" train-lm text -o few --block 4000
wrong 2 "f32, bf16 or f16" train-lm text -o x --dtype f64
wrong 2 "gpt2 or llama" train-lm text -o x --model rnn
head -c 10000 text >other
wrong 1 "was trained on a text of 20000" train-lm other -o whole --resume
wrong 1 "h.1.* is not in the file" train-lm text -o whole --resume --layers 2
wrong 1 "no model's folder" generate nowhere
wrong 2 "f32, bf16 or f16, not f64" generate whole --dtype f64
wrong 1 "no form that is known" generate whole --chat -p x
wrong 2 "system goes with --chat" generate whole --system x
wrong 2 "4, 8 or 16" quantize whole -o x --bits 9
wrong 1 "quantised already" quantize whole8 -o x
wrong 1 "an even number" quantize whole -o x --group 1 --bits 4
wrong 1 "no groups of\|groups of 7" quantize whole -o x --group 7
wrong 1 "step [0-9]*: the loss is .*gradient of .* is not finite" train-lm text -o nan "${small[@]}" --lr 1000 --warmup 0 --decay 900
sed 's/"n_embd": 16/"n_embd": 20/' half/config.json >k && mv k half/config.json
wrong 1 "config.json says" generate half
sed 's/gpt2/bert/' half/config.json >k && mv k half/config.json
wrong 1 "is bert; gpt2, llama" generate half
rm half/model.safetensors
cp whole/config.json half
wrong 1 "model.safetensors" generate half
echo "count: $kills kills survived"
