#!/bin/bash
# Random texts are split into words as Python's regex splits them with the patterns published for GPT-2, cl100k_base and Qwen2 (skipped
# where python3-regex is not installed). A tokenizer trained on a text with every token that it could have makes each of its words
# one token: that is how the words are seen from outside.
set -u
case $SANITIZE in ?*) echo "skipped: Python does not load sanitized libraries"; exit 77 ;; esac
python3 -c 'import regex' 2>/dev/null || { echo "skipped: python3-regex is not installed"; exit 77; }
python3 - "$BUILD_DIR/libtenon.so" <<'EOF'
import ctypes, random, regex, sys, unicodedata
lib = ctypes.CDLL(sys.argv[1])
P, S, I = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
class Opts(ctypes.Structure):
    _fields_ = [("split", I), ("n_tokens", I), ("least", ctypes.c_int64), ("specials", P), ("n_specials", I), ("progress", P), ("ud", P)]
lib.tn_ctx_new.restype = P
lib.tn_ctx_new.argtypes = [P]
lib.tn_bpe_train.argtypes = [P, ctypes.c_char_p, S, P, P]
lib.tn_bpe_encode.argtypes = [P, P, ctypes.c_char_p, S, I, P, S, P]
lib.tn_bpe_decode.argtypes = [P, P, P, S, ctypes.c_char_p, S, P]
lib.tn_bpe_free.argtypes = [P, P]
ctx = lib.tn_ctx_new(None)
patterns = [
    regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"),
    regex.compile(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"),
    regex.compile(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"),
]
def known(c): # not a letter or a number in one version of Unicode only
    kind = unicodedata.category(c)[0]
    return all((kind == k) == bool(regex.match(p, c)) for k, p in (("L", r"\p{L}"), ("N", r"\p{N}")))
random.seed(1)
pools = ["ab1 '.\n", "aB9 \n\r\t'stmdrevl!?", "é½Ⅷ你好。😀\u00a0\u2003\u0085 ſ'SsT\u0301x", "".join(map(chr, range(32, 127)))]
n = 0
for i in range(1200):
    pool = pools[i % 4] if i % 5 else "".join(chr(c) for c in (random.randrange(1, 0x30000) for _ in range(30)) if not 0xD800 <= c < 0xE000 and known(chr(c))) + " a1"
    text = "".join(random.choice(pool) for _ in range(random.randrange(1, 80)))
    raw = text.encode()
    for split, pattern in enumerate(patterns):
        b, count, size = P(), S(), S()
        opts = Opts(split, 4000, 1, None, 0, None, None)
        assert not lib.tn_bpe_train(ctx, raw, len(raw), ctypes.byref(opts), ctypes.byref(b))
        ids = (ctypes.c_int32 * len(raw))()
        assert not lib.tn_bpe_encode(ctx, b, raw, len(raw), 0, ids, len(raw), ctypes.byref(count))
        got = []
        for k in range(count.value):
            out = ctypes.create_string_buffer(600)
            one = (ctypes.c_int32 * 1)(ids[k])
            assert not lib.tn_bpe_decode(ctx, b, one, 1, out, 600, ctypes.byref(size))
            got.append(out.raw[: size.value])
        lib.tn_bpe_free(ctx, b)
        want = [w.encode() for w in pattern.findall(text)]
        n += len(want)
        if got != want:
            print(f"split {split} of {text!r}:\n  {got}\n  {want}")
            sys.exit(1)
print(f"count: {n} words of random texts are split as regex splits them")
EOF
