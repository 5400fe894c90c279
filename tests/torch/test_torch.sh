#!/bin/bash
# PyTorch as a second opinion: values and gradients at kinks, gradients and 50 training steps of the digits network, where torch
# and numpy are installed (Debian: python3-torch; or first in PATH, a virtual environment that has them). Nothing else needs
# them, so that their absence only skips this test.
set -eu
python=
for p in python3 /usr/bin/python3; do
    if "$p" -c "import torch, numpy" 2>/dev/null; then
        python=$p
        break
    fi
done
[ -n "$python" ] || { echo "skipped: neither python3 nor /usr/bin/python3 can import torch and numpy"; exit 77; }
"$python" "$SOURCE_DIR/tests/torch/kinks.py" "$SOURCE_DIR/tests/nn/kinks.def"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TENON_CACHE_DIR=$work/cache
for seed in ${TENON_TORCH_SEEDS:-1}; do
    for type in f32 f64; do
        echo "seed $seed, $type"
        "$BUILD_DIR/tests/torch_digits_dump" "$work/digits.safetensors" "$seed" $type
        "$python" "$SOURCE_DIR/tests/torch/second_opinion.py" "$work/digits.safetensors"
    done
done
