#!/bin/bash
# Every builtin model as C of its own, compiled by gcc and clang without a warning, run, and compared with `tenon run`: as it is,
# and in one more form in turns: without vectors and with a file of weights, without the C library, for threads. Those that train make three steps.
# A short campaign: a fifth of all models' forms, in turns.
set -u
. "$SOURCE_DIR/tests/support/campaign.sh"
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export TENON_CACHE_DIR=$dir/cache
cd "$dir" || exit 1
cat >check.py <<'P'
import json, os, random, re, struct, subprocess, sys
from shutil import which
tenon = os.environ["BUILD_DIR"] + "/tenon"
strict = "-std=c99 -O1 -Wall -Wextra -Wconversion -pedantic -Werror".split()
# Each once: CC is the path of one of them. Sanitized, it is the exporter that is under test: what it writes is that of the release run.
compilers = dict((os.path.basename(c), c) for c in ("gcc", "clang", os.environ.get("CC", "cc")) if which(c)).values()
if os.environ.get("SANITIZE"):
    compilers = []
# The sizes shown are those that a model is best measured with; these take a C compiler less.
smaller = {"mlp": "3x33x5", "conv1d": "1x257x1x3x5", "attention": "2x17x32", "cnn": "3", "digits": "2", "digits-train": "4", "classifier-train": "3",
           "gpt-train": "2x16x32x1", "gpt2-train": "1x16x32x1x64", "matmul": "17x33x9", "softmax": "5x65", "layernorm": "3x50", "relu": "7x9"}
forms = (["--cpu=scalar", "--weights", "net.bin"], ["--freestanding"], ["--threads=3"])
types = {"float": "f", "int32_t": "i", "int64_t": "q"}
npy = {"float": "<f4", "int32_t": "<i4", "int64_t": "<i8"}
chosen = {int(k) for k in sys.argv[1:]}
wrong, runs, seen = [], 0, set()


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)[:120]}: {(done.stderr or done.stdout)[:600]}")
    return done.stdout


def arrays():
    """Of the exported text: parameter, C type, elements, dims, dtype, name."""
    text, head = open("net.c").read(), open("net.h").read()
    types_of = dict((p, t) for t, p in re.findall(r"(?:const )?(\w+) \*(\w+)", re.search(r"void net_run\(struct net_ctx \*ctx(.*?)\);", head, re.S)[1]))
    found = []
    for p, dtype, dims, name in re.findall(r'^ \*     (\w+) +(\w+)\[([\d,]*)\] "(.*)"$', text, re.M):
        dims, n = [int(d) for d in dims.split(",") if d], 1
        for d in dims:
            n *= d
        found.append((p, types_of[p], n, dims, dtype, name))
    return found


def main_of(io, steps, threads):
    ins = "".join(f"    if (fread({p}, sizeof *{p}, {n}, in) != {n}) return 2;\n" for p, t, n, *_ in io if p.startswith("in_"))
    outs = "".join(f"    if (fwrite({p}, sizeof *{p}, {n}, out) != {n}) return 3;\n" for p, t, n, *_ in io if not p.startswith("in_"))
    return f"""#include "net.h"
#include <stdio.h>
{"".join(f"static {t} {p}[{n}];" for p, t, n, *_ in io)}
static unsigned char arena[NET_ARENA_BYTES + 1], state[NET_STATE_BYTES + 1];
static uint64_t weights[NET_WEIGHTS_BYTES / 8 + 1];
static void backwards(void *ud, int n, void (*piece)(void *arg, int i), void *arg) {{
    (void)ud;
    while (n > 0) piece(arg, --n);
}}
void (*each)(void *ud, int n, void (*piece)(void *arg, int i), void *arg) = backwards;
int main(void) {{
    struct net_ctx ctx;
    FILE *in = fopen("in", "rb"), *out = fopen("out", "wb"), *w = NET_WEIGHTS_BYTES ? fopen("net.bin", "rb") : NULL;
    if (!in || !out || (w && fread(weights, NET_WEIGHTS_BYTES, 1, w) != 1)) return 1;
{ins}    if (net_init(&ctx, arena, NET_ARENA_BYTES, state, NET_STATE_BYTES, weights, NET_WEIGHTS_BYTES)) return 4;
    {"ctx.parallel_for = each;" if threads else ""}
    for (int i = 0; i < {steps}; i++) net_run(&ctx{"".join(", " + a[0] for a in io)});
{outs}    return fclose(out) != 0;
}}
"""


def check(model, name, form):
    global runs
    trains = name.endswith("-train")
    steps = 3 if trains else 1
    run(tenon, "export", model, "-o", "net.c", "--name", "net", "-q", *(["--train"] if trains else []), *form)
    io, given, r = arrays(), [], random.Random(1)
    with open("in", "wb") as f:
        for i, (p, t, n, dims, dtype, what) in enumerate(io):
            if p.startswith("in_"):
                data = struct.pack(f"<{n}{types[t]}", *(r.uniform(-1, 1) if t == "float" else r.randrange(10) for _ in range(n)))
                f.write(data)
                head = "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }" % (npy[t], "".join(f"{d}," for d in dims))
                head += " " * (64 - (len(head) + 11) % 64) + "\n"
                open(f"{i}.npy", "wb").write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + data)
                given += ["--input", f"{what}=@{i}.npy"]
    said = json.loads(run(tenon, "run", model, "--json", "-q", "--steps", str(steps), *given))["outputs"]
    open("main.c", "w").write(main_of(io, steps, "--threads=3" in form))
    for cc in compilers:
        run(cc, *strict, "-Wno-psabi", *([] if "--cpu=scalar" in form else ["-march=native"]), "main.c", "net.c", "-lm", "-o", "net")
        run("./net")
        data, at = open("out", "rb").read(), 0
        for p, t, n, dims, dtype, what in io:
            if p.startswith("in_"):
                continue
            got, want = struct.unpack_from(f"<{n}{types[t]}", data, at), [float(v) for v in said[what]["data"]]
            at += struct.calcsize(f"<{n}{types[t]}")
            most = 1e-2 if "gpt2" in name else 2e-4 # bf16
            far = [(k, a, b) for k, (a, b) in enumerate(zip(got, want)) if not abs(a - b) <= most * max(1, abs(b))]
            if far or len(got) != len(want) or not len(got):
                wrong.append(f"{model} {' '.join(form)}, {cc}: {what}: {len(far)} of {len(want)} differ: {far[:2]}")
        runs += 1
    seen.add(name)


names = re.findall(r"^  @([\w-]+)", run(tenon, "help", "models"), re.M)
wanted = {name for i, name in enumerate(names) if chosen & {2 * i, 2 * i + 1}}
for i, name in enumerate(names):
    for k, form in enumerate(([], forms[i % 3]), 2 * i):
        if k not in chosen:
            continue
        try:
            check(f"@{name}:{smaller[name]}" if name in smaller else "@" + name, name, form)
        except OSError as e:
            wrong.append(f"{name} {' '.join(form)}: {e}")
for w in wrong:
    print("test_export_models:", w)
if len(names) < 20 or len(wanted) < len(names) // 5 or seen != wanted:
    sys.exit(f"{len(seen)} of {len(wanted)} builtin models")
print(f"count: {len(seen)} builtin models exported as C, {runs} programs of {' and '.join(compilers) or 'no compiler'} run and compared")
sys.exit(bool(wrong))
P
# shellcheck disable=SC2046
python3 check.py $(for k in {0..99}; do campaign_has "$k" 5 && echo "$k"; done)
