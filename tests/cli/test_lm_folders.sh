#!/bin/bash
# Folders as models are downloaded: tokenizer.json, weights in several files, keys of config.json that change the model or are refused by name,
# what quantize keeps of it, tokens after which a text ends.
# Labels: long
set -u
tenon=$BUILD_DIR/tenon
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
fail() { echo "test_lm_folders: $*"; exit 1; }
cd "$work" || exit 1
head -c 20000 "$SOURCE_DIR/docs/ir.md" >text
"$tenon" train-lm text -o llama --model llama --kv-heads 1 --layers 1 --heads 2 --width 16 --block 16 --batch 4 --steps 20 --threads 1 \
    --lr 0.01 --warmup 5 --vocab-size 300 -q >/dev/null 2>err || fail "train: $(cat err)"
# The same weights in several files, which an index names; what it may not name.
mkdir shards odd && cp llama/*.json llama/merges.txt shards
cp llama/*.json llama/merges.txt llama/model.safetensors odd
python3 - <<'EOF'
import json, struct
raw = open("llama/model.safetensors", "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
head, data, where = json.loads(raw[8 : 8 + n]), raw[8 + n :], {}
head.pop("__metadata__", None)
for part in range(3):
    out, at, parts, name = {}, 0, [], "model-0000%d-of-00003.safetensors" % (part + 1)
    for k in sorted(head)[part::3]:
        a, b = head[k]["data_offsets"]
        parts.append(data[a:b])
        out[k] = dict(head[k], data_offsets=[at, at + b - a])
        at, where[k] = at + b - a, name
    text = json.dumps(out).encode()
    open("shards/" + name, "wb").write(struct.pack("<Q", len(text)) + text + b"".join(parts))
json.dump({"metadata": {"total_size": len(data)}, "weight_map": where}, open("shards/model.safetensors.index.json", "w"))
EOF
for m in llama shards; do "$tenon" generate $m -p "The value " --temperature 0 -n 9 -q >$m.out 2>err || fail "$m: $(cat err)"; done
cmp -s llama.out shards.out || fail "several files write another text"
"$tenon" quantize shards -o shards16 --bits 16 -q >/dev/null 2>err || fail "several files quantised: $(cat err)"
# The same tokenizer as tokenizer.json, with a token that texts begin with.
mkdir json && cp llama/config.json llama/model.safetensors json
python3 - <<'EOF'
import json
vocab, merges = json.load(open("llama/vocab.json")), open("llama/merges.txt").read().split("\n")
level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
single = [{"SpecialToken": {"id": "T", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
j = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": level, "post_processor": level, "decoder": level,
     "model": {"type": "BPE", "vocab": vocab, "merges": [m for m in merges if m and not m.startswith("#version")]}}
json.dump(j, open("json/tokenizer.json", "w"))
j["post_processor"] = {"type": "TemplateProcessing", "single": single, "special_tokens": {"T": {"id": "T", "ids": [vocab["T"]]}}}
json.dump(j, open("begin.json", "w"))
EOF
"$tenon" generate json -p "The value " --temperature 0 -n 9 -q >json.out 2>err || fail "tokenizer.json: $(cat err)"
cmp -s llama.out json.out || fail "tokenizer.json writes another text"
"$tenon" tokenizer encode text --vocab=llama -q >a && "$tenon" tokenizer encode text --vocab=json -q >b 2>err || fail "encode: $(cat err)"
cmp -s a b || fail "tokenizer.json has other ids"
"$tenon" quantize json -o json16 --bits 16 -q >/dev/null 2>err || fail "quantize with tokenizer.json: $(cat err)"
cmp -s json/tokenizer.json json16/tokenizer.json && "$tenon" generate json16 -n 2 -q >/dev/null || fail "quantize loses tokenizer.json"
cp begin.json json/tokenizer.json
"$tenon" generate json -p "he value " --temperature 0 -n 9 --json -q >a 2>err || fail "a token that texts begin with: $(cat err)"
python3 -c '
import json
r, t = json.load(open("a")), json.load(open("llama/vocab.json"))["T"]
assert r["ids"][0] == t and r["ids"][1] != t, r' || fail "the text does not begin with its token: $(cat a)"
# Trained further, and again after that; the first loss is that of the model, what else the folder says stays.
python3 -c '
import json
k = {a: b for a, b in json.load(open("llama/config.json")).items() if not a.startswith("tenon_")}
json.dump(dict(k, rope_scaling={"type": "linear", "factor": 1.0}), open("json/config.json", "w"))'
"$tenon" train-lm text -o further --from json --block 16 --batch 4 --steps 12 --eval-every 6 --lr 0.003 --warmup 2 --threads 1 --json -q >a 2>err || fail "from: $(cat err)"
"$tenon" train-lm text -o further --resume --steps 20 --threads 1 --json -q >b 2>err || fail "from, resumed: $(cat err)"
python3 - <<'EOF' || fail "trained further: $(cat a b)"
import json
last = float(open("llama/loss.csv").read().split("\n")[-2].split(",")[2])
a, b = json.load(open("a")), json.load(open("b"))
assert a["held_out_loss"] < last + 0.01 and b["held_out_loss"] < a["held_out_loss"] and b["step"] == 20, (last, a, b)
k = json.load(open("further/config.json"))
assert k["rope_scaling"] == {"type": "linear", "factor": 1.0} and k["tenon_batch"] == 4, k
EOF
cmp -s json/tokenizer.json further/tokenizer.json && "$tenon" generate further -n 2 -q >/dev/null || fail "what was trained further writes nothing"
"$tenon" train-lm text -o odder --from json --layers 2 -q >out 2>err && fail "--from with --layers"
grep -q 'layers is not for --from' err || fail "--from with --layers: $(cat err)"
"$tenon" train-lm text -o json --resume -q >out 2>err && fail "a model that train-lm did not make is resumed"
grep -q -- '--from=json with another --output' err || fail "a model that train-lm did not make: $(cat err)"
"$tenon" train-lm text -o odder --from json --block 32 -q >out 2>err && fail "--block beyond the positions"
grep -q 'the model has 16 positions' err || fail "--block beyond the positions: $(cat err)"
mkdir model && cp llama/config.json llama/model.safetensors model && touch model/tokenizer.model
"$tenon" generate model -n 1 -q >out 2>err && fail "tokenizer.model is read"
grep -q 'convert it to tokenizer.json' err || fail "tokenizer.model: $(cat err)"
refused=0
named() { # FILE WORDS: an index that names FILE is refused with WORDS
    sed "s|model-00002-of-00003.safetensors|$1|g" index.json >shards/model.safetensors.index.json
    "$tenon" generate shards -n 1 -q >out 2>err && fail "an index that names $1 is read"
    grep -q -- "$2" err || fail "an index that names $1: $(cat err)"
    refused=$((refused + 1))
}
cp shards/model.safetensors.index.json index.json
for f in ../llama/model.safetensors /etc/passwd .safetensors model.bin; do
    named $f "expected the name of a file of safetensors in the same folder"
done
named model-00001-of-00003.safetensors "model-00001-of-00003.safetensors: there is no"
named none.safetensors "none.safetensors"
echo '{"weight_map": []}' >shards/model.safetensors.index.json
"$tenon" generate shards -n 1 -q >out 2>err && fail "an index without a map is read"
grep -q 'there is no "weight_map"' err || fail "an index without a map: $(cat err)"
rm shards/model.safetensors.index.json && touch shards/pytorch_model.bin
"$tenon" generate shards -n 1 -q >out 2>err && fail "pytorch_model.bin is read"
grep -q 'convert it to model.safetensors' err || fail "pytorch_model.bin: $(cat err)"
# What config.json has that changes a model and is not computed is refused by name.
changed() { # KEYS-AND-VALUES WORDS
    python3 -c 'import json, sys
json.dump(dict(json.load(open("llama/config.json")), **json.loads(sys.argv[1])), open("odd/config.json", "w"))' "$1"
    "$tenon" generate odd -n 1 -q >out 2>err && fail "config.json with $1 is read"
    grep -q -- "$2" err || fail "config.json with $1: $(cat err), not $2"
    refused=$((refused + 1))
}
changed '{"rope_scaling": {"rope_type": "longrope"}}' 'is of the type longrope; linear, llama3 and yarn are computed'
changed '{"rope_scaling": {"rope_type": "llama3"}}' '"factor" is missing'
changed '{"rope_scaling": {"rope_type": "linear", "factor": 0.5}}' '"factor" is 0.5'
changed '{"rope_scaling": {"type": "llama3", "factor": 2, "low_freq_factor": 4, "high_freq_factor": 1,
    "original_max_position_embeddings": 16}}' 'do not fit together'
changed '{"rope_scaling": [1]}' '"rope_scaling" is no object'
changed '{"mlp_bias": true}' '"mlp_bias" is set'
changed '{"quantization_config": {"bits": 4}}' '"quantization_config" is set'
changed '{"partial_rotary_factor": 0.5}' '"partial_rotary_factor" is set'
changed '{"hidden_act": "gelu"}' '"hidden_act" is gelu; silu is computed'
changed '{"model_type": "gemma"}' 'is gemma; gpt2, llama, mistral, qwen2 and qwen3 are read'
changed '{"model_type": "qwen2"}' 'there is no model.layers.0.self_attn.q_proj.bias'
changed '{"model_type": "qwen3", "use_sliding_window": true, "sliding_window": 4, "num_hidden_layers": 30}' 'layers from 28 on see 4 positions'
changed '{"head_dim": 12}' 'self_attn.q_proj.weight is f32\[16,16\], config.json says f32\[24,16\]'
changed '{"eos_token_id": -1}' 'neither a token nor a list'
changed '{"hidden_size": 1.5}' 'not a whole number'
changed '{"hidden_size": "16"}' '"hidden_size" is 16, not a number'
changed '{"hidden_size": null}' '"hidden_size" is missing'
# What else it says stays when it is quantised.
python3 -c '
import json
k = dict(json.load(open("llama/config.json")), rope_scaling={"type": "linear", "factor": 2.0}, eos_token_id=[7, 9],
         architectures=["LlamaForCausalLM"], rms_norm_eps=1e-05, attention_dropout=0.0)
json.dump(k, open("odd/config.json", "w"))'
"$tenon" quantize odd -o odd8 --group 8 -q >/dev/null 2>err || fail "quantize with more keys: $(cat err)"
python3 -c '
import json
a, b = json.load(open("odd/config.json")), json.load(open("odd8/config.json"))
assert b.pop("tenon_group") == 8 and all(b[k] == a[k] for k in a if not k.startswith("tenon_")), b' || fail "what quantize keeps"
"$tenon" generate odd8 -n 3 -q >/dev/null 2>err || fail "quantised, with scaled positions: $(cat err)"
# A text ends at any of the tokens after which texts end.
cp llama/config.json odd
echo '{"eos_token_id": ['"$(seq -s, 0 29)"', 299]}' >odd/generation_config.json
"$tenon" generate odd -p "The value " -n 200 --temperature 9 --json -q >a 2>err || fail "ends: $(cat err)"
python3 -c '
import json
r = json.load(open("a"))
assert r["tokens"] < 200 and all(29 < i < 299 for i in r["ids"][r["prompt_tokens"] :]), r' || fail "a text does not end: $(cat a)"
echo "count: $refused folders of models refused by name"
