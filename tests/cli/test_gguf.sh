#!/bin/bash
# tenon generate MODEL.gguf: files of every type of array, made here of models that train-lm made, write what the same numbers as
# safetensors write; a prompt in chunks is the prompt token by token; mistakes in files are named.
# Labels: long
set -u
tenon=$BUILD_DIR/tenon
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
fail() { echo "test_gguf: $*"; exit 1; }
cd "$work" || exit 1
head -c 30000 "$SOURCE_DIR/docs/ir.md" >text
small=(--layers 1 --heads 4 --width 256 --block 96 --batch 1 --steps 4 --threads 1 --lr 0.01 --warmup 1 --vocab-size 300 -q)
"$tenon" train-lm text -o gpt2 "${small[@]}" >/dev/null 2>err || fail "train: $(cat err)"
"$tenon" train-lm text -o llama --model llama --kv-heads 2 "${small[@]}" >/dev/null 2>err || fail "train: $(cat err)"
cat >make.py <<'EOP'
# make.py MODEL TYPE [RELATIVE]: MODEL's weights as TYPE.gguf, and as a folder TYPE with the numbers that the file has. RELATIVE:
# qwen3: with biases, norms of heads and its order of rows; llama3, linear, yarn: with scaled rotary positions.
import json, math, os, random, re, shutil, struct, sys

model, kind = sys.argv[1:3]
relative = sys.argv[3] if len(sys.argv) > 3 else ""
raw = open(model + "/model.safetensors", "rb").read()
size = struct.unpack("<Q", raw[:8])[0]
head, data = json.loads(raw[8 : 8 + size]), raw[8 + size :]
head.pop("__metadata__", None)
config = json.load(open(model + "/config.json"))
llama, heads = model == "llama", 4
random.seed(kind + relative)
more = {}
if relative == "qwen3":
    config.update(model_type="qwen3", attention_bias=True)
    d = config["hidden_size"] // heads
    for part, n in (("q_norm.weight", d), ("k_norm.weight", d), ("q_proj.bias", heads * d), ("k_proj.bias", 2 * d),
                    ("v_proj.bias", 2 * d), ("o_proj.bias", heads * d)):
        more["model.layers.0.self_attn." + part] = [random.uniform(0.5, 1.5) for _ in range(n)]
scaling = {"llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                      "original_max_position_embeddings": 16},
           "linear": {"type": "linear", "factor": 4.0},
           "yarn": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}}.get(relative)
if scaling:
    config["rope_scaling"] = scaling
for name, x in more.items():
    head[name] = {"dtype": "F32", "shape": [len(x)], "data_offsets": [len(data), len(data) + 4 * len(x)]}
    data += struct.pack("<%df" % len(x), *x)
NAMES = ({"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
          "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
          "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "token_embd": "model.embed_tokens", "output_norm": "model.norm",
          "output": "lm_head"} if llama else
         {"attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_norm": "ln_2", "ffn_up": "mlp.c_fc",
          "ffn_down": "mlp.c_proj", "token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f"})
OURS = {v: k for k, v in NAMES.items()}

def half(v):
    return struct.unpack("<e", struct.pack("<e", v))[0]

def f32(v):
    return struct.unpack("<f", struct.pack("<f", v))[0]

# A row as bytes of a type, and the numbers that these are.
def q8_0(x):
    out, got = b"", []
    for b in range(0, len(x), 32):
        d = half(max(abs(v) for v in x[b : b + 32]) / 127) or 1.0
        q = [max(-127, min(127, round(v / d))) for v in x[b : b + 32]]
        out += struct.pack("<e32b", d, *q)
        got += [f32(d * v) for v in q]
    return out, got

def q4_0(x):
    out, got = b"", []
    for b in range(0, len(x), 32):
        d = half(max(x[b : b + 32], key=abs) / -8) or 1.0
        q = [max(0, min(15, round(v / d) + 8)) for v in x[b : b + 32]]
        out += struct.pack("<e16B", d, *(q[i] | q[i + 16] << 4 for i in range(16)))
        got += [f32(d * (v - 8)) for v in q]
    return out, got

def q4_k(x):
    out, got = b"", []
    for b in range(0, len(x), 256):
        d, m = half(0.0002 * random.randint(1, 3)), half(0.001 * random.randint(1, 3))
        scale, least = [random.randint(1, 63) for _ in range(8)], [random.randint(0, 63) for _ in range(8)]
        s = [scale[j] | (scale[j + 4] >> 4) << 6 for j in range(4)] + [least[j] | (least[j + 4] >> 4) << 6 for j in range(4)]
        s += [(scale[j + 4] & 15) | (least[j + 4] & 15) << 4 for j in range(4)]
        q = [max(0, min(15, round((x[b + i] + m * least[i // 32]) / (d * scale[i // 32])))) for i in range(256)]
        out += struct.pack("<ee12B", d, m, *s)
        out += bytes(q[64 * p + i] | q[64 * p + 32 + i] << 4 for p in range(4) for i in range(32))
        got += [f32(d * scale[i // 32] * q[i] - m * least[i // 32]) for i in range(256)]
    return out, got

def q6_k(x):
    out, got = b"", []
    for b in range(0, len(x), 256):
        d, scale = half(0.0001), [random.choice([-1, 1]) * random.randint(5, 120) for _ in range(16)]
        q = [max(0, min(63, round(x[b + i] / (d * scale[i // 16])) + 32)) for i in range(256)]
        low, high = [0] * 128, [0] * 64
        for i in range(256):
            n, l = i // 128, i % 128 # as the loops of the definition go: 4 numbers 32 apart share a byte of high bits
            part, k = l // 32, l % 32
            low[64 * n + k + 32 * (part % 2)] |= (q[i] & 15) << 4 * (part // 2)
            high[32 * n + k] |= (q[i] >> 4) << 2 * part
        out += bytes(low) + bytes(high) + struct.pack("<16be", *scale, d)
        got += [f32(d * scale[i // 16] * (q[i] - 32)) for i in range(256)]
    return out, got

def plain(fmt, cut):
    return lambda x: (struct.pack("<%d%s" % (len(x), fmt), *x), [cut(v) for v in x])

def bf16(x):
    b = struct.pack("<%df" % len(x), *x)
    b = b"".join(b[i + 2 : i + 4] for i in range(0, len(b), 4))
    return b, [struct.unpack("<f", b"\0\0" + b[i : i + 2])[0] for i in range(0, len(b), 2)]

TYPES = {"f32": (0, plain("f", f32)), "f16": (1, plain("e", half)), "q4_0": (2, q4_0), "q8_0": (8, q8_0), "q4_k": (12, q4_k),
         "q6_k": (14, q6_k), "bf16": (30, bf16)}
arrays, back = [], {}
for name, v in head.items():
    shape, (a, b) = v["shape"], v["data_offsets"]
    x = list(struct.unpack("<%df" % ((b - a) // 4), data[a:b]))
    if kind == "f32" and len(shape) == 2: # far from what was hardly trained, so that nothing can be left out unseen
        x = [random.uniform(-0.3, 0.3) for _ in x]
    layer = re.match(r"(?:model\.layers|h)\.(\d+)\.(.*)\.(weight|bias)$", name)
    part, end = (layer.group(2), layer.group(3)) if layer else name.rsplit(".", 1)
    to = ("blk.%s." % layer.group(1) if layer else "") + OURS[part] + "." + end
    of = kind
    if kind == "q4_k_m": # such files have several types
        of = "q8_0" if shape[-1] % 256 else "q6_k" if len(arrays) % 3 == 0 else "q4_k"
    number, encode = TYPES[of if len(shape) == 2 and OURS[part] != "position_embd" else "f32"]
    columns = shape[-1]
    rows = [x[i : i + columns] for i in range(0, len(x), columns)]
    order, turned = list(range(len(rows))), not llama and len(shape) == 2 and part not in ("wte", "wpe")
    if turned:
        rows = [list(r) for r in zip(*rows)]
    if part in ("self_attn.q_proj", "self_attn.k_proj") and relative != "qwen3": # pairs that turn together stand side by side
        d = config["hidden_size"] // heads
        order = [r - r % d + (r % d) % 2 * (d // 2) + (r % d) // 2 for r in range(len(rows))]
        rows = [rows[r] for r in order]
    done = [encode(r) for r in rows]
    got = [g for _, g in done]
    if turned:
        got = [list(r) for r in zip(*got)]
    elif len(order) == len(got):
        placed = [None] * len(got)
        for r, g in zip(order, got):
            placed[r] = g
        got = placed
    back[name] = [v for r in got for v in r]
    arrays.append((to, number, [len(rows[0])] + ([len(rows)] if len(shape) == 2 else []), b"".join(r for r, _ in done)))

def text(s):
    s = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(s)) + s

arch = "qwen3" if relative == "qwen3" else "llama" if llama else "gpt2"
if relative == "llama3": # each rate is divided by one of these
    d, f = config["hidden_size"] // heads, []
    for i in range(d // 2):
        turns = 16 * 10000 ** (-2 * i / d) / (2 * math.pi)
        kept = min(max((turns - 1) / 3, 0), 1)
        f.append(1 / (kept + (1 - kept) / 8))
    arrays.append(("rope_freqs.weight", 0, [d // 2], struct.pack("<%df" % len(f), *f)))
vocab = sorted(json.load(open(model + "/vocab.json")).items(), key=lambda kv: kv[1])
merges = [l for l in open(model + "/merges.txt", encoding="utf8").read().split("\n") if l and not l.startswith("#version")]
pairs = [("general.architecture", (8, text(arch))), ("tokenizer.ggml.model", (8, text("gpt2"))), ("tokenizer.ggml.pre", (8, text("gpt-2"))),
         ("tokenizer.ggml.token_type", (9, struct.pack("<IQ", 5, len(vocab)) + struct.pack("<%di" % len(vocab), *[1] * len(vocab)))),
         ("tokenizer.ggml.tokens", (9, struct.pack("<IQ", 8, len(vocab)) + b"".join(text(k) for k, _ in vocab))),
         ("tokenizer.ggml.merges", (9, struct.pack("<IQ", 8, len(merges)) + b"".join(text(m) for m in merges)))]
sizes = {"context_length": 96, "embedding_length": 256, "block_count": 1, "attention.head_count": heads,
         "feed_forward_length": config["intermediate_size" if llama else "n_inner"]}
if llama:
    sizes["attention.head_count_kv"] = 2
pairs += [(arch + "." + k, (4, struct.pack("<I", v))) for k, v in sizes.items()]
eps = "attention.layer_norm_rms_epsilon" if llama else "attention.layer_norm_epsilon"
pairs += [(arch + "." + eps, (6, struct.pack("<f", config["rms_norm_eps" if llama else "layer_norm_epsilon"])))]
if relative in ("linear", "yarn"):
    pairs += [(arch + ".rope.scaling.type", (8, text(relative))), (arch + ".rope.scaling.factor", (6, struct.pack("<f", 4))),
              (arch + ".rope.scaling.original_context_length", (4, struct.pack("<I", 16)))]
out, body = b"GGUF" + struct.pack("<IQQ", 3, len(arrays), len(pairs)), b""
for k, (t, v) in pairs:
    out += text(k) + struct.pack("<I", t) + v
for name, number, dims, b in arrays:
    body += b"\0" * (-len(body) % 32)
    out += text(name) + struct.pack("<I%dQIQ" % len(dims), len(dims), *dims, number, len(body))
    body += b
open(kind + ".gguf", "wb").write(out + b"\0" * (-len(out) % 32) + body)
os.makedirs(kind, exist_ok=True)
json.dump(config, open(kind + "/config.json", "w"))
for f in "vocab.json", "merges.txt":
    shutil.copy(model + "/" + f, kind)
head2, at, parts = {}, 0, []
for name, v in head.items():
    parts.append(struct.pack("<%df" % len(back[name]), *back[name]))
    head2[name] = {"dtype": "F32", "shape": v["shape"], "data_offsets": [at, at + len(parts[-1])]}
    at += len(parts[-1])
h = json.dumps(head2).encode()
open(kind + "/model.safetensors", "wb").write(struct.pack("<Q", len(h)) + h + b"".join(parts))
EOP
prompt="The value of an operand is what the graph says it is."
write() { "$tenon" generate "$@" --threads 1 --temperature 0 -n 12 --json -q; }
compared=0
for pair in llama:f32:qwen3 llama:f32:llama3 llama:f32:linear llama:f32:yarn llama:f32 llama:bf16 llama:q8_0 gpt2:f16 gpt2:q4_0 gpt2:q4_k gpt2:q6_k llama:q4_k_m; do
    IFS=: read -r model type relative <<<"$pair"
    python3 make.py "$model" "$type" $relative || fail "make $pair"
    write "$type.gguf" -p "$prompt" --chunk 8 >a 2>err || fail "$type: $(cat err)"
    write "$type" -p "$prompt" --chunk 1 >b 2>err || fail "folder $type: $(cat err)"
    python3 -c '
import json
a, b = json.load(open("a")), json.load(open("b"))
assert a["ids"] == b["ids"] and a["tokens"] == 12 and a["prompt_tokens"] > 16, (a, b)' || fail "$pair: another text: $(cat a b)"
    case $pair in llama:f32*) cp a "ids$relative" ;; esac
    compared=$((compared + 1))
done
for relative in qwen3 llama3 linear yarn; do # they are other models
    ! cmp -s <(sed 's/"seconds.*//; s/"tokens_per.*//' ids) <(sed 's/"seconds.*//; s/"tokens_per.*//' "ids$relative") || fail "$relative writes what Llama writes"
done
wrong() { # WORDS FILE
    "$tenon" generate "$2" -p x >out 2>err
    [ $? = 1 ] && grep -q -- "$1" err || fail "$2: $(cat err), not $1"
}
change() { # FROM TO: of equally many bytes
    python3 -c '
import sys
b = open("f32.gguf", "rb").read()
a, c = (s.encode().decode("unicode_escape").encode("latin1") for s in sys.argv[1:3])
assert b.count(a) and len(a) == len(c)
open("bad.gguf", "wb").write(b.replace(a, c, 1))' "$1" "$2"
}
head -c 200000 f32.gguf >bad.gguf; wrong "truncated" bad.gguf
printf 'GGML' >bad.gguf; wrong "no GGUF" bad.gguf
change 'architecture\x08\0\0\0\x05\0\0\0\0\0\0\0llama' 'architecture\x08\0\0\0\x05\0\0\0\0\0\0\0mamba'; wrong "class mamba" bad.gguf
change 'model\x08\0\0\0\x04\0\0\0\0\0\0\0gpt2' 'model\x08\0\0\0\x04\0\0\0\0\0\0\0bert'; wrong "kind bert" bad.gguf
change 'pre\x08\0\0\0\x05\0\0\0\0\0\0\0gpt-2' 'pre\x08\0\0\0\x05\0\0\0\0\0\0\0tektn'; wrong "split as tektn does it" bad.gguf
change blk.0.attn_k. blk.0.attn_x.; wrong "no array .blk.0.attn_k.weight" bad.gguf
change 'block_count\x04\0\0\0\x01' 'block_count\x04\0\0\0\0'; wrong "block_count\" is 0" bad.gguf
change 'embedding_length\x04\0\0\0\0\x01' 'embedding_length\x04\0\0\0\x80\0'; wrong "the sizes of the model say 128" bad.gguf
change 'head_count\x04\0\0\0\x04' 'head_count\x04\0\0\0\x03'; wrong "heads divides width" bad.gguf
change 'rms_epsilon\x06\0\0\0' 'rms_epsilon\x04\0\0\0'; wrong "rms_epsilon\" is .* not a number from 0 to 1" bad.gguf
change 'tokenizer.ggml.tokens' 'tokenizer.ggml.tokenz'; wrong "no \"tokenizer.ggml.tokens\"" bad.gguf
echo "count: $compared types and relatives of GGUF beside safetensors"
