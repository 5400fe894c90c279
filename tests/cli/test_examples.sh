#!/bin/bash
# The examples do what they say: each learns what it is given better than its own baselines, and takes its mistakes by name.
# (digits is `make demo`'s, gpt cli/test_lm's.)
set -u
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
examples=$BUILD_DIR/examples
fail() { echo "test_examples: $*"; exit 1; }
cd "$work" || exit 1
[ -x "$examples/lstm" ] || { echo "no examples at $examples"; exit 77; }
export TENON_CACHE_DIR=$work/cache

# lstm: a text of every Debian machine, or one of ours.
text=/usr/share/common-licenses/GPL-3
[ -f "$text" ] || text=$SOURCE_DIR/docs/ir.md
"$examples/lstm" --help | grep -q '^usage: lstm' || fail "lstm --help"
"$examples/lstm" --steps 100 --json "$text" >out 2>err || fail "lstm: $(cat err)"
python3 -c 'import json; r = json.load(open("out")); assert r["bits_per_byte"] < r["bits_of_bytes"] - 0.5, r' || fail "lstm: $(cat out)"
"$examples/lstm" --steps 10 "$text" >out 2>err && [ "$(tail -n +4 out | head -c 20)" = "$(head -c 20 "$text")" ] ||
    fail "lstm writes: $(cat out err)"
"$examples/lstm" nowhere >out 2>err && fail "lstm nowhere"
grep -q "nowhere" err || fail "lstm nowhere: $(cat err)"
head -c 1000 "$text" >short
"$examples/lstm" short >out 2>err && fail "lstm short"
grep -q "too short" err || fail "lstm short: $(cat err)"
"$examples/lstm" --what >out 2>err
[ $? = 2 ] && grep -q '^usage: lstm' err || fail "lstm --what: $(cat err)"
exit 0
