#!/bin/bash
# Tiny models with random weights in the folders that transformers writes, and in GGUF made of them, with tokenizers that `tokenizers`
# trains: `tenon generate` writes the tokens that transformers finds the likeliest, in chunks and one by one. Skipped where Python
# has no transformers (nor the programs of bench/rivals/setup).
# Labels: slow
set -u
case $SANITIZE in ?*) echo "skipped: transformers takes long enough"; exit 77 ;; esac
for python in python3 "${XDG_CACHE_HOME:-$HOME/.cache}/tenon/rivals/venv/bin/python" none; do
    "$python" -c 'import transformers, tokenizers, torch' 2>/dev/null && break
done
[ "$python" != none ] || { echo "skipped: no Python with transformers, tokenizers and torch"; exit 77; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1 "$python" "$SOURCE_DIR/tests/cli/transformers_compare.py" "$BUILD_DIR/tenon" "$SOURCE_DIR" "$work" 2>"$work/err" || { tail -20 "$work/err"; exit 1; }
