#!/bin/bash
# What the system does to the program: devices and files without an end, a full disk, no /proc, names with any bytes.
set -u
tenon=$BUILD_DIR/tenon
[ -x "$tenon" ] || { echo "no program at $tenon"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export TENON_CACHE_DIR=$dir/cache
bad=0
fail() { echo "FAILED: $*"; bad=1; }

# What does not reach stdout is an error, whatever was asked for.
for words in --help -h --version help "help models" "help run" "run --help" "opt --list" ops "ops exp" devices "cache stats" \
    "run @softmax:2x5 -q" "explain @softmax:2x5" "emit @softmax:2x5" "opt @softmax:2x5"; do
    # shellcheck disable=SC2086
    "$tenon" $words >/dev/full 2>"$dir/err" && fail "tenon $words >/dev/full: exit code 0"
    # shellcheck disable=SC2086
    "$tenon" $words >/dev/null 2>"$dir/err" || fail "tenon $words: exit code $?"
done

# A text without an end is refused; so is one that is no file where a file is wanted.
for words in "run /dev/zero" "opt /dev/zero" "run @softmax:2x5 --input x=@/dev/zero" "run @softmax:2x5 --state /dev/zero"; do
    # shellcheck disable=SC2086
    timeout 60 "$tenon" $words >/dev/null 2>"$dir/err"
    [ $? = 1 ] || fail "tenon $words: $(head -2 "$dir/err")"
done
"$tenon" run /dev/zero 2>&1 | grep -q "/dev/zero has more than 268435456 bytes" || fail "the limit of a text is not named"

# An input and an output of one name: refused, with both places.
printf 'graph @g(a f32[1000000]) {\n  %%1 = sum a axes=[0] f32[1]\n  return %%1 as "a"\n}\n' >"$dir/same.tn"
"$tenon" run "$dir/same.tn" >/dev/null 2>"$dir/err"
[ $? = 1 ] && grep -q "same.tn:3:16: output a has the name of the input in line 1" "$dir/err" || fail "one name: $(cat "$dir/err")"

# All mistakes of a file at once.
printf 'graph @g(a f32[2]) {\n  %%1 = neg b\n  %%2 = sum a\n  return %%1 as "y", %%2\n}\n' >"$dir/two.tn"
"$tenon" run "$dir/two.tn" >/dev/null 2>"$dir/err"
[ "$(grep -c 'two.tn:[23]:' "$dir/err")" = 2 ] || fail "two mistakes: $(cat "$dir/err")"

# Names of any bytes: JSON stays JSON, and no control character reaches a terminal.
printf 'graph @"g\\x1b[31m\\xff"("a\\xff\\xc3\\x28" f32[2]) {\n  %%1 = neg "a\\xff\\xc3\\x28" label="l\\xc2\\x9b"\n' >"$dir/odd.tn"
printf '  return %%1 as "y\\x1b[2J\\xff\\xc3\\xa9"\n}\n' >>"$dir/odd.tn"
odd=$dir/$'odd\xff\x1b[1m.tn'
cp "$dir/odd.tn" "$odd"
for words in run opt "emit --target=plan" "emit --target=c" explain verify; do
    # shellcheck disable=SC2086
    "$tenon" ${words%% *} "$odd" $([ "$words" = "${words#* }" ] || echo "${words#* }") >"$dir/out" 2>"$dir/err" ||
        fail "$words: $(cat "$dir/err")"
    LC_ALL=C grep -qP '[\x00-\x08\x0b-\x1f\x7f]' "$dir/out" "$dir/err" && fail "$words writes control characters"
    command -v iconv >/dev/null && { iconv -f utf-8 -t utf-8 "$dir/out" "$dir/err" >/dev/null || fail "$words is no UTF-8"; }
    if command -v python3 >/dev/null; then
        # shellcheck disable=SC2086
        "$tenon" ${words%% *} --json -q "$odd" $([ "$words" = "${words#* }" ] || echo "${words#* }") |
            python3 -c 'import json, sys; json.loads(sys.stdin.buffer.read().decode("utf-8"))' || fail "$words --json is no JSON"
    fi
done
"$tenon" run "$dir/"$'none\x1b[2J' 2>&1 | LC_ALL=C grep -q $'\x1b' && fail "a name in a message reaches the terminal"

# Programs that go through the C compiler, in a name space of their own: without /proc, and with a cache on a full disk.
softmax() { TENON_CPU=c "$tenon" run @softmax:2x5 --input x=2x5xf32:1; }
export -f softmax
export tenon dir
want=$(softmax 2>/dev/null) || fail "through the C compiler: $want"
if [ -n "$SANITIZE" ] || ! unshare -rm true 2>/dev/null; then
    echo "skipped: no name spaces here (or a sanitizer that needs /proc)"
else
    got=$(unshare -rm bash -c 'mount -t tmpfs none /proc && rm -rf "$dir/cache" && softmax' 2>"$dir/err")
    [ "$got" = "$want" ] || fail "without /proc: $got $(cat "$dir/err")"
    mkdir -p "$dir/full"
    got=$(unshare -rm bash -c 'mount -t tmpfs -o size=64k,mode=700 none "$dir/full" && { head -c 1M /dev/zero >"$dir/full/fill"; true; } 2>/dev/null &&
        TENON_CACHE_DIR=$dir/full softmax' 2>"$dir/err")
    [ "$got" = "$want" ] || fail "with a full cache: $got $(cat "$dir/err")"
    grep -q "warning: kernel cache $dir/full: .*No space left" "$dir/err" || fail "a full cache is not told: $(cat "$dir/err")"
fi
exit $bad
