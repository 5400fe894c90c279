#!/bin/bash
# tenon tokenizer: what is learnt from a text is written as two files, ids of any bytes decode to those bytes, mistakes are named.
set -u
tenon=$BUILD_DIR/tenon
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
fail() { echo "test_tokenizer: $*"; exit 1; }
cd "$work" || exit 1

cat "$SOURCE_DIR"/README.md "$SOURCE_DIR"/docs/*.md >text
"$tenon" tokenizer train text --tokens 1000 --special '<|end|>' -o learnt >out 2>err || fail "train: $(cat err)"
grep -q '^1000 tokens learnt from ' out || fail "train says: $(cat out)"
python3 -c '
import json
v = json.load(open("learnt/vocab.json"))
m = open("learnt/merges.txt").read().split("\n")
assert len(v) == 1000 and v["<|end|>"] == 999 and m[0] == "#version: 0.2" and len(m) == 1 + 743 + 1, (len(v), len(m))' || fail "the files are others"
head -c 20000 "$tenon" | cat text - >any
"$tenon" tokenizer encode any --vocab learnt >ids 2>err || fail "encode: $(cat err)"
"$tenon" tokenizer decode ids --vocab learnt | cmp - any || fail "the bytes do not come back"
[ "$(wc -l <ids)" -lt "$(($(wc -c <any) / 2))" ] || fail "a token has less than two bytes"
printf 'a<|end|>' | "$tenon" tokenizer encode - --vocab learnt -q | tail -1 | grep -qx 999 || fail "the special token is not found"
printf '<|end|>' | "$tenon" tokenizer encode - --vocab learnt --plain -q | grep -qx 999 && fail "--plain finds it"
"$tenon" tokenizer encode any --vocab learnt --json -q >json && python3 -c '
import json
assert json.load(open("json"))["ids"] == [int(x) for x in open("ids")]' || fail "the ids of --json are others"
echo 1000 | "$tenon" tokenizer decode - --vocab learnt 2>err && fail "an id beyond the vocabulary"
grep -q 'id 1000 at place 0: the vocabulary has 1000 tokens' err || fail "says: $(cat err)"
echo 1 x | "$tenon" tokenizer decode - --vocab learnt 2>err && fail "a word as an id"
"$tenon" tokenizer encode text --vocab nowhere 2>err && fail "no files"
grep -q 'nowhere/vocab.json' err || fail "says: $(cat err)"
"$tenon" tokenizer encode text --vocab learnt --split x 2>err; [ $? = 2 ] || fail "--split x is not wrong usage"
"$tenon" tokenizer mend text 2>err; [ $? = 2 ] || fail "mend is not wrong usage"
echo "count: $(wc -c <any) bytes in $(wc -l <ids) tokens and back"
