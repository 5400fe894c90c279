#!/bin/bash
# tokenizer.json beside Hugging Face's library `tokenizers`, where Python has it (or the programs of bench/rivals/setup): vocabularies
# trained here in the forms of GPT-2, Llama 3, Qwen2, SmolLM2, Llama 2 and Mistral give the same ids, and the same text back, for
# the project's documents and sources and for texts in many scripts.
set -u
case $SANITIZE in ?*) echo "skipped: Python does not load sanitized libraries"; exit 77 ;; esac
for python in python3 "${XDG_CACHE_HOME:-$HOME/.cache}/tenon/rivals/venv/bin/python" none; do
    "$python" -c 'import tokenizers' 2>/dev/null && break
done
[ "$python" != none ] || { echo "skipped: no Python with tokenizers"; exit 77; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
"$python" "$SOURCE_DIR/tests/text/tokenizers_compare.py" "$BUILD_DIR/libtenon.so" "$SOURCE_DIR" "$work"
