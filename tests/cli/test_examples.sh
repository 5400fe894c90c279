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

# gnn: what a package is for shows only in the words of what it needs, or, of libraries, of what needs them, alternatives and
# unknown packages beside.
python3 - >graph <<'EOP'
import random
random.seed(1)
for kind in ("games", "sound"):
    for i in range(20):
        print(f"Package: lib{kind}{i}\nSection: libs\nDescription: shared parts, {'dice' if kind == 'games' else 'tones'}\n")
    for i in range(150):
        needs = ", ".join(f"lib{kind}{random.randrange(20)} (>= 1.{i}) | nothing" for _ in range(2))
        print(f"Package: {kind}{i}\nSection: main/{kind}\nDepends: {needs}, unknown\nDescription: number {i % 7}\n and more\n")
EOP
"$examples/gnn" --help | grep -q '^usage: gnn' || fail "gnn --help"
"$examples/gnn" --steps 150 --json graph >out 2>err || fail "gnn: $(cat err)"
python3 -c 'import json; r = json.load(open("out"))
assert r["packages"] == 340 and r["dependencies"] == 600, r
assert r["words"] < 0.7 and r["messages"] > 0.9 and r["drawn"] > 0.9, r' || fail "gnn: $(cat out)"
"$examples/gnn" --steps 10 graph >out 2>err && grep -q 'right  the largest section' out || fail "gnn says: $(cat out err)"
"$examples/gnn" "$text" >out 2>err && fail "gnn of no packages"
grep -q "too few packages" err || fail "gnn of no packages: $(cat err)"
exit 0
