"""The likeliest tokens by `tenon generate` and by transformers: transformers_compare.py TENON SOURCES FOLDER [MODEL...]."""
import json, os, struct, subprocess, sys, unicodedata, warnings

warnings.filterwarnings("ignore")
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import torch
import transformers as T
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

torch.set_num_threads(1)
tenon, sources, out = sys.argv[1:4]
corpus = [open(f"{sources}/docs/{f}").read() for f in ("ir.md", "lm.md", "loops.md", "design.md") if os.path.exists(f"{sources}/docs/{f}")]
PROMPT = "The joint holds 12345 tenons; it's don't caf\u00e9 e\u0301 \u4f60\u597d\n\n  x = 3.14\tend "

# ---- tokenizers
W, R = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|", r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

def level(own):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=own)

def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated", False), level(False)])

def of_bytes(pre, special, norm=None, begin=False, ignore=False):
    t = Tokenizer(models.BPE(ignore_merges=ignore))
    if norm:
        t.normalizer = norm
    t.pre_tokenizer, t.decoder = pre, decoders.ByteLevel()
    t.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=600, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    if begin:
        t.post_processor = processors.TemplateProcessing(single=special[0] + " $A", special_tokens=[(special[0], t.token_to_id(special[0]))])
    return t

def of_characters(metaspace):
    """As SentencePiece makes them: scores, and merges of all pairs that are tokens, in their order."""
    base = {"<unk>": 0, "<s>": 1, "</s>": 2}
    base.update({"<0x%02X>" % i: 3 + i for i in range(256)})
    t = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    t.normalizer = normalizers.Replace(" ", "\u2581")
    t.pre_tokenizer = pre_tokenizers.Split(Regex("(?<=[^\u2581])(?=\u2581)|\n"), "isolated", False)
    t.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=700, special_tokens=list(base), limit_alphabet=90, show_progress=False))
    j = json.loads(t.to_str())
    vocab = j["model"]["vocab"]
    score = {k: -float(v) for k, v in vocab.items()}
    pairs = [(score[k], n, k) for k in vocab if k not in base for n in range(1, len(k)) if k[:n] in vocab and k[n:] in vocab]
    pairs.sort(key=lambda p: (-p[0], -len(p[2][: p[1]].encode())))
    j["model"]["merges"] = [[k[:n], k[n:]] for _, n, k in pairs]
    j["added_tokens"] = [a for a in j["added_tokens"] if a["id"] < 3]
    j["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False} if metaspace else None
    j["normalizer"] = None if metaspace else {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
    j["decoder"] = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    t = Tokenizer.from_str(json.dumps(j))
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return t

TOKENIZERS = {
    "gpt2": lambda: of_bytes(level(True), ["<|endoftext|>"]),
    "llama3": lambda: of_bytes(split(W + r"\p{N}{1,3}" + R), ["<|begin_of_text|>", "<|end_of_text|>"], begin=True, ignore=True),
    "smollm": lambda: of_bytes(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level(True)]), ["<|endoftext|>"]),
    "qwen2": lambda: of_bytes(split(W + r"\p{N}" + R), ["<|endoftext|>", "<|im_start|>"], norm=normalizers.NFC()),
    "llama2": lambda: of_characters(False),
    "mistral": lambda: of_characters(True),
}
PRE = {"gpt2": "gpt-2", "llama3": "llama-bpe", "smollm": "smollm", "qwen2": "qwen2"}

# ---- models
small = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
             bos_token_id=None, eos_token_id=None, pad_token_id=None)
llama3 = dict(rope_type="llama3", rope_theta=1000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
MODELS = { # name: configuration, tokenizer, type of the weights
    "gpt2": (lambda v: T.GPT2Config(vocab_size=v, n_embd=64, n_layer=2, n_head=4, n_positions=512, bos_token_id=None, eos_token_id=None), "gpt2", "f32"),
    "llama-2": (lambda v: T.LlamaConfig(**small, vocab_size=v), "llama2", "f16"),
    "llama-3.2": (lambda v: T.LlamaConfig(**small, vocab_size=v, rope_parameters=llama3, tie_word_embeddings=True), "llama3", "bf16"),
    "llama-linear": (lambda v: T.LlamaConfig(**small, vocab_size=v, rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=100.0)), "llama3", "f32"),
    "llama-yarn": (lambda v: T.LlamaConfig(**small, vocab_size=v, rope_parameters=dict(rope_type="yarn", factor=4.0, rope_theta=1000.0, original_max_position_embeddings=64)), "llama3", "f32"),
    "llama-biases": (lambda v: T.LlamaConfig(**small, vocab_size=v, head_dim=24, attention_bias=True), "llama3", "f32"),
    "smollm2": (lambda v: T.LlamaConfig(**small, vocab_size=v, tie_word_embeddings=True), "smollm", "bf16"),
    "mistral-0.1": (lambda v: T.MistralConfig(**small, vocab_size=v, sliding_window=10), "llama2", "f32"),
    "mistral-0.3": (lambda v: T.MistralConfig(**small, vocab_size=v, sliding_window=None), "mistral", "bf16"),
    "qwen2.5": (lambda v: T.Qwen2Config(**small, vocab_size=v, tie_word_embeddings=True), "qwen2", "bf16"),
    "qwen2-window": (lambda v: T.Qwen2Config(**small, vocab_size=v, use_sliding_window=True, sliding_window=9, max_window_layers=0), "qwen2", "f32"),
    "qwen3": (lambda v: T.Qwen3Config(**small, vocab_size=v, head_dim=24), "qwen2", "f32"),
}
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}

# ---- GGUF
NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output", "ln_1": "attn_norm", "attn.c_attn": "attn_qkv",
         "attn.c_proj": "attn_output", "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down", "wte": "token_embd",
         "wpe": "position_embd", "ln_f": "output_norm"}

def gguf(path, m, tok, kind):
    c, pairs, arrays = m.config, [], []
    arch = c.model_type if c.model_type in ("gpt2", "qwen2", "qwen3") else "llama"
    text = lambda s: struct.pack("<Q", len(s.encode())) + s.encode()
    def put(key, t, v):
        pairs.append(text(key) + struct.pack("<I", t) + v)
    put("general.architecture", 8, text(arch))
    head = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    sizes = {"context_length": c.max_position_embeddings, "embedding_length": c.hidden_size, "block_count": c.num_hidden_layers,
             "attention.head_count": c.num_attention_heads, "feed_forward_length": getattr(c, "intermediate_size", 4 * c.hidden_size)}
    if arch == "gpt2":
        put("gpt2.attention.layer_norm_epsilon", 6, struct.pack("<f", c.layer_norm_epsilon))
    else:
        rope = c.rope_parameters
        sizes.update({"attention.head_count_kv": c.num_key_value_heads, "attention.key_length": head, "attention.value_length": head})
        if getattr(c, "sliding_window", None):
            sizes["attention.sliding_window"] = c.sliding_window
        put(arch + ".attention.layer_norm_rms_epsilon", 6, struct.pack("<f", c.rms_norm_eps))
        put(arch + ".rope.freq_base", 6, struct.pack("<f", rope["rope_theta"]))
        if rope["rope_type"] in ("linear", "yarn"):
            put(arch + ".rope.scaling.type", 8, text(rope["rope_type"]))
            put(arch + ".rope.scaling.factor", 6, struct.pack("<f", rope["factor"]))
            put(arch + ".rope.scaling.original_context_length", 4, struct.pack("<I", rope.get("original_max_position_embeddings", 512)))
        if rope["rope_type"] == "llama3":
            plain = rope["rope_theta"] ** (-torch.arange(0, head, 2, dtype=torch.float64) / head)
            arrays.append(("rope_freqs.weight", (plain / m.model.rotary_emb.inv_freq.double()).float()))
    for k, v in sizes.items():
        put(arch + "." + k, 4, struct.pack("<I", v))
    j = json.loads(tok.to_str())
    vocab, merges, added = j["model"]["vocab"], j["model"]["merges"], {a["id"]: a for a in j["added_tokens"]}
    tokens = {v: k for k, v in vocab.items()}
    tokens.update({i: a["content"] for i, a in added.items()})
    n = max(tokens) + 1
    pieces = j["model"]["byte_fallback"]
    kinds = [3 if i in added else 6 if pieces and tokens[i].startswith("<0x") else 1 for i in range(n)]
    if pieces:
        kinds[0] = 2
    put("tokenizer.ggml.model", 8, text("llama" if pieces else "gpt2"))
    put("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, n) + b"".join(text(tokens[i]) for i in range(n)))
    put("tokenizer.ggml.token_type", 9, struct.pack("<IQ", 5, n) + struct.pack("<%di" % n, *kinds))
    if pieces:
        put("tokenizer.ggml.scores", 9, struct.pack("<IQ", 6, n) + struct.pack("<%df" % n, *[-float(i) for i in range(n)]))
    else:
        put("tokenizer.ggml.pre", 8, text(PRE[kind]))
        put("tokenizer.ggml.merges", 9, struct.pack("<IQ", 8, len(merges)) + b"".join(text(" ".join(x)) for x in merges))
    if tok.encode("").ids:
        put("tokenizer.ggml.bos_token_id", 4, struct.pack("<I", tok.encode("").ids[0]))
    for name, w in m.state_dict().items():
        part, end = name.replace("transformer.", "").replace("model.", "").rsplit(".", 1)
        if name == "lm_head.weight" and (arch == "gpt2" or c.tie_word_embeddings):
            continue
        layer = part.split(".")[1] if part.split(".")[0] in ("h", "layers") else None
        part = ".".join(part.split(".")[2:]) if layer is not None else part
        w = w.float()
        if arch == "gpt2" and w.dim() == 2 and part not in ("wte", "wpe"):
            w = w.t().contiguous()
        if arch == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"): # rows that turn together lie side by side
            w = w.reshape(-1, 2, head // 2, *w.shape[1:]).transpose(1, 2).reshape(w.shape).contiguous()
        arrays.append(((f"blk.{layer}." if layer is not None else "") + NAMES[part] + "." + end, w))
    head_bytes, body = b"GGUF" + struct.pack("<IQQ", 3, len(arrays), len(pairs)) + b"".join(pairs), b""
    for name, w in arrays:
        body += b"\0" * (-len(body) % 32)
        dims = list(reversed(w.shape))
        head_bytes += text(name) + struct.pack("<I%dQIQ" % len(dims), len(dims), *dims, 0, len(body))
        body += w.numpy().astype("<f4").tobytes()
    open(path, "wb").write(head_bytes + b"\0" * (-len(head_bytes) % 32) + body)

# ---- comparison
N, bad, compared = 40, 0, 0
made = {}
for name, (config, kind, dtype) in MODELS.items():
    if len(sys.argv) > 4 and name not in sys.argv[4:]:
        continue
    tok = made.setdefault(kind, TOKENIZERS[kind]())
    vocab = (tok.get_vocab_size() + 63) // 64 * 64
    torch.manual_seed(3)
    m = T.AutoModelForCausalLM.from_config(config(vocab), attn_implementation="eager").float()
    for n, p in m.named_parameters():
        with torch.no_grad():
            p.copy_(torch.randn_like(p) * (0.15 if p.dim() > 1 else 0.3) + (1 if "norm" in n and n.endswith("weight") else 0))
    folder = f"{out}/{name}"
    m.to(DTYPES[dtype]).save_pretrained(folder, max_shard_size="100KB" if name in ("llama-3.2", "qwen3") else "1GB")
    tok.save(folder + "/tokenizer.json")
    m = T.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    gguf(folder + ".gguf", m, tok, kind)
    prompt = tok.encode(PROMPT).ids
    x, gaps = torch.tensor([prompt]), []
    with torch.no_grad():
        for _ in range(N):
            top = m(x).logits[0, -1].topk(2)
            gaps.append(float(top.values[0] - top.values[1]))
            x = torch.cat([x, top.indices[:1].view(1, 1)], 1)
    want, special = x[0].tolist(), {i for i, t in tok.get_added_tokens_decoder().items() if t.special}
    want = want[:next((i for i in range(len(prompt), len(want)) if want[i] in special), len(want))]  # a text may end there
    text = unicodedata.normalize("NFC", PROMPT) if kind == "qwen2" else PROMPT
    for path, chunk in (folder, "64"), (folder, "7"), (folder, "1"), (folder + ".gguf", "16"):
        p = subprocess.run([tenon, "generate", path, "-p", PROMPT, "-n", str(N), "--temperature", "0", "--json", "-q", "--threads", "1", "--chunk", chunk], capture_output=True, text=True, errors="replace")
        got = json.loads(p.stdout) if p.returncode == 0 else {"ids": []}
        same = next((i for i in range(len(want)) if i >= len(got["ids"]) or want[i] != got["ids"][i]), len(want))
        compared += 1
        if same < len(want) or not got["text"].startswith(text):
            print(f"{name}: {path} --chunk {chunk}: {same} of {len(want)} tokens are the same (prompt {len(prompt)}, least gap {min(gaps):.5f}) {p.stderr}")
            bad += 1
    print(f"{name}: {len(prompt)} tokens of the prompt and {len(want) - len(prompt)} more, {len(set(want[len(prompt):]))} different ones, least gap of two logits {min(gaps):.4f}")

# ---- conversations: the tokens of messages, by the templates of such models
CHATS = {
    "ChatML": (split(W + r"\p{N}" + R), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], False, "<|im_end|>",
               "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
               "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"),
    "Llama 3": (split(W + r"\p{N}{1,3}" + R), ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
                True, "<|eot_id|>",
                "{% for m in messages %}{{ (bos_token if loop.first else '') + '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n'"
                " + m['content'] | trim + '<|eot_id|>' }}{% endfor %}"
                "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"),
}
for name, (pre, specials, begin, last, template) in CHATS.items():
    if len(sys.argv) > 4 and "chat" not in sys.argv[4:]:
        continue
    tok = of_bytes(pre, specials, begin=begin, ignore=begin)
    folder = f"{out}/chat"
    m = T.AutoModelForCausalLM.from_config(T.LlamaConfig(**small, vocab_size=(tok.get_vocab_size() + 63) // 64 * 64))
    m.save_pretrained(folder)
    tok.save(folder + "/tokenizer.json")
    fast = T.PreTrainedTokenizerFast(tokenizer_object=tok, bos_token=specials[0], chat_template=template)
    run = lambda *more, **k: subprocess.run([tenon, "generate", folder, "--chat", "-n", "5", "--temperature", "0", "-q", "--threads", "1", *more], capture_output=True, text=True, errors="replace", **k)
    for system in None, "Be brief. ":
        for text in "What is a mortise?", " two\nlines, 1234 of them \n", "na\u00efve \u2192 \u00fcber", "x", "  ":
            messages = ([{"role": "system", "content": system}] if system else []) + [{"role": "user", "content": text}]
            want = fast.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
            p = run("-p", text, "--json", *(["--system", system] if system else []))
            got = json.loads(p.stdout) if p.returncode == 0 else {"ids": [], "prompt_tokens": 0}
            compared += 1
            if got["ids"][: got["prompt_tokens"]] != list(want):
                print(f"chat, {name}: {text!r}, {got['ids']} and not {list(want)} {p.stderr}")
                bad += 1
    p = run("-p", f"say {last} now", "--json")  # what a message spells is text
    if p.returncode or json.loads(p.stdout)["ids"].count(tok.token_to_id(last)) != 1:
        print(f"chat, {name}: a message ends itself: {p.stdout} {p.stderr}")
        bad += 1
    p = run(input="What?\nAnd then?\n")
    if p.returncode or p.stdout.count("\n") < 2:
        print(f"chat, {name}: two messages: {p.stdout} {p.stderr}")
        bad += 1
print(f"count: {compared} runs of models beside transformers {T.__version__}")
sys.exit(bad > 0)
