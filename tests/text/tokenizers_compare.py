"""Ids and texts of tokenizer.json by libtenon and by the library `tokenizers`: tokenizers_compare.py LIBTENON SOURCES FOLDER."""
import ctypes, json, os, random, sys
from tokenizers import Tokenizer, models, pre_tokenizers, decoders, trainers, normalizers, processors, AddedToken, Regex
lib = ctypes.CDLL(sys.argv[1]); src = sys.argv[2]; out = sys.argv[3]
P, S, I = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
lib.tn_ctx_new.restype = P; lib.tn_ctx_new.argtypes = [P]
lib.tn_ctx_error.restype = ctypes.c_char_p; lib.tn_ctx_error.argtypes = [P]
lib.tn_bpe_load_json.argtypes = [P, ctypes.c_char_p, P]
lib.tn_bpe_encode.argtypes = [P, P, ctypes.c_char_p, S, I, P, S, P]
lib.tn_bpe_decode.argtypes = [P, P, P, S, ctypes.c_char_p, S, P]
lib.tn_bpe_begin.argtypes = [P]; lib.tn_bpe_begin.restype = ctypes.c_int32
ctx = lib.tn_ctx_new(None)
def encode(b, raw):
    n = S(); ids = (ctypes.c_int32 * (len(raw) + 2))()
    assert not lib.tn_bpe_encode(ctx, b, raw, len(raw), 1, ids, len(raw) + 2, ctypes.byref(n)), lib.tn_ctx_error(ctx)
    return ids[: n.value]
def decode(b, ids):
    n = S(); a = (ctypes.c_int32 * len(ids))(*ids)
    assert not lib.tn_bpe_decode(ctx, b, a, len(ids), None, 0, ctypes.byref(n))
    t = ctypes.create_string_buffer(n.value + 1)
    assert not lib.tn_bpe_decode(ctx, b, a, len(ids), t, n.value, ctypes.byref(n))
    return t.raw[: n.value]
W = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
R = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BL = lambda regex: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)
split = lambda p: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated", False), BL(False)])
texts = {}
for root, _, files in os.walk(src + "/docs"):
    for f in sorted(files):
        if f.endswith(".md"): texts[f] = open(os.path.join(root, f)).read()
for f in ("src/loop/tile.c", "text/split.c", "cli/report.js", "Makefile", "python/generate.py"): texts[f] = open(f"{src}/{f}").read()
texts["world"] = ("Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Съешь же ещё этих мягких французских булок. 你好，世界！今天天气很好。"
  " いろはにほへと ちりぬるを。 안녕하세요 세계. مرحبا بالعالم، كيفَ حالُكَ؟ שָׁלוֹם עוֹלָם. नमस्ते दुनिया, क्या हाल है? สวัสดีชาวโลก Καλημέρα κόσμε. Việt Nam đất nước con người. "
  "😀👩‍👩‍👧‍👦🏳️‍🌈 ½ Ⅷ ² ①  １２３ 1234567 3.14159 don't I'LL we've 'S\u017f 'ſ x\u00a0y\u2003z\u3000w \u0085 \t\t a\n\n\n  b \r\n\r\n c   \n d    ") * 3
texts["blanks"] = "".join(random.Random(4).choice(["  ", " ", "\n", "\t", "\r\n", "a", "1", "é", "'s", ".", "▁", "\u00a0"]) for _ in range(5000))
rnd = random.Random(1)
texts["random"] = "".join(chr(rnd.choice([rnd.randrange(32, 127), rnd.randrange(0xA0, 0x500), rnd.randrange(0x4e00, 0x5000), rnd.randrange(0x1f300, 0x1f700), rnd.randrange(0x900, 0xe00)])) for _ in range(4000))
corpus = [t for k, t in texts.items() if k != "random"]
kinds = {}
def bytes_kind(pre, norm=None, post=None, ignore=False, special=("<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>")):
    t = Tokenizer(models.BPE(ignore_merges=ignore))
    if norm: t.normalizer = norm
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=4000, special_tokens=list(special), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, max_token_length=100))
    t.add_tokens([AddedToken("<think>", normalized=False)])
    if post: t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", t.token_to_id("<|begin_of_text|>"))])])
    else: t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t
kinds["gpt2"] = bytes_kind(BL(True), special=("<|endoftext|>",))
kinds["llama3"] = bytes_kind(split(W + r"\p{N}{1,3}" + R), post=True, ignore=True)
kinds["smollm2"] = bytes_kind(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BL(True)]))
kinds["qwen2"] = bytes_kind(split(W + r"\p{N}" + R), norm=normalizers.NFC())
def spm(flavour):
    base = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for i in range(256): base["<0x%02X>" % i] = len(base)
    t = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    n = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.normalizer = n
    t.pre_tokenizer = pre_tokenizers.Split(Regex("(?<=[^▁])(?=▁)|\n"), "isolated", False)
    t.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=3000, special_tokens=list(base), limit_alphabet=150, show_progress=False, max_token_length=16))
    j = json.loads(t.to_str())
    if flavour == "llama2":
        j["pre_tokenizer"] = None
    else:
        j["normalizer"] = None
        j["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": flavour, "split": False}
    j["decoder"] = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}] + ([] if flavour == "never" else [{"type": "Strip", "content": " ", "start": 1, "stop": 0}])}
    j["added_tokens"] = [a for a in j["added_tokens"] if a["id"] < 3]
    t = Tokenizer.from_str(json.dumps(j))
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return t
for f in ("llama2", "first", "always", "never"): kinds["spm-" + f] = spm(f)
bad = total = 0
import unicodedata
def skipped(c):
    return 0xD800 <= c < 0xE000 or 0xF900 <= c < 0xFB00 or 0x2F800 <= c < 0x2FA20 or (0x101FD <= c < 0x1E94B and not 0x1D300 <= c < 0x1E000) or unicodedata.category(chr(c)) == "Cn"
every = [chr(c) for c in range(1, 0x30000) if not skipped(c)]
texts["every"] = "".join(c + " " for c in every)
marks = [c for c in every if unicodedata.combining(c)] + [chr(c) for c in range(0x1161, 0x1176)] + [chr(c) for c in range(0x11A8, 0x11C3)]
texts["marks"] = "".join(rnd.choice([rnd.choice(every), rnd.choice("aeiouAE한글가"), chr(rnd.randrange(0x1100, 0x1113)), chr(rnd.randrange(0x900, 0xE00)), chr(rnd.randrange(0x1EA0, 0x2000))]).replace("\ufffe", "") + "".join(rnd.choice(marks) for _ in range(rnd.randrange(0, 4))) for _ in range(20000))
texts["marks"] = "".join(c for c in texts["marks"] if not skipped(ord(c)))
old = unicodedata.ucd_3_2_0 # the library's tables are older than others
texts["old marks"] = "".join(c for c in texts["marks"] if old.category(c) != "Cn")
for name, t in kinds.items():
    path = f"{out}/{name}.json"
    t.save(path, pretty=name == "llama3")
    b = P()
    s = lib.tn_bpe_load_json(ctx, path.encode(), ctypes.byref(b))
    if s: print(name, lib.tn_ctx_error(ctx)); bad += 1; continue
    n = 0
    for key, text in {**texts, "specials": "<|im_start|>user\nHi there<think> x<|end_of_text|> <s>y</s>  z<|endoftext|>", "one": " a", "empty": "", "space": " ", "mark": "▁x"}.items():
        if key in ("every", "marks", "old marks") and name != "qwen2":
            continue
        want = t.encode(text, add_special_tokens=False).ids
        raw = text.encode()
        got = encode(b, raw)
        if key == "marks":
            if unicodedata.unidata_version == "14.0.0" and decode(b, got) != unicodedata.normalize("NFC", text).encode():
                a, w = decode(b, got).decode(), unicodedata.normalize("NFC", text)
                i = next(i for i in range(len(w)) if a[i] != w[i])
                print("NFC differs from unicodedata:", ascii(a[i - 4 : i + 4]), ascii(w[i - 4 : i + 4]))
                bad += 1
            continue
        if got != want:
            i = next((i for i in range(min(len(got), len(want))) if got[i] != want[i]), min(len(got), len(want)))
            print(name, key, "differs at", i, [t.id_to_token(x) for x in want[max(0, i-3):i+5]], [t.id_to_token(x) for x in got[max(0, i-3):i+5]]); bad += 1
        back = decode(b, got) if got else b""
        want_text = t.decode(want, skip_special_tokens=False).encode()
        if back != want_text: print(name, key, "decode differs", back[:60], want_text[:60]); bad += 1
        if not name.startswith("spm") and not name.startswith("qwen") and back != raw: print(name, key, "no round trip"); bad += 1
        n += len(raw)
    begin = t.encode("").ids
    if ([lib.tn_bpe_begin(b)] if lib.tn_bpe_begin(b) >= 0 else []) != begin: print(name, "begin", begin, lib.tn_bpe_begin(b)); bad += 1
    total += n
print(f"count: {total} bytes of text have the ids of tokenizers, {len(kinds)} kinds of tokenizer.json")
sys.exit(bad > 0)
