#!/bin/bash
# The library needs no compiler, no file and nothing installed: a folder with the C library, libm, the dynamic loader,
# libtenon.so and the program is the whole world of a process that runs the benchmark of all modes. The library needs nothing
# but libc and libm, and is smaller than 2.8 MB: 2.2 MB for the compiler, 0.4 for what reads and writes files (onnx/, data/, text/), and
# 0.2 for what is composed of ops (nn/: layers, indexing, matrices, Fourier transforms, images).
# Skipped where no process may change its root.
set -u
tenon=$BUILD_DIR/tenon lib=$BUILD_DIR/libtenon.so.0
[ -x "$tenon" ] && [ -e "$lib" ] || { echo "no program at $tenon"; exit 77; }
[ -z "${SANITIZE:-}" ] || { echo "skipped: the sanitizers' libraries are more than libc and libm"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
bad=0
PATH=$PATH:/usr/sbin:/sbin
fail() { echo "FAILED: $*"; bad=1; }

needed=$(readelf -d "$lib" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | LC_ALL=C sort | tr '\n' ' ')
for name in $needed; do
    case $name in libc.so* | libm.so* | ld-linux*) ;; *) fail "libtenon.so needs $name" ;; esac
done
size=$(stat -Lc %s "$lib")
if grep -q '^CMAKE_BUILD_TYPE:STRING=Release' "$BUILD_DIR/CMakeCache.txt"; then
    [ "$size" -lt 2800000 ] || fail "libtenon.so has $size bytes"
fi

case $("$tenon" devices 2>/dev/null) in *avx512* | *avx2* | *sse2*) ;; *) echo "skipped: no machine code on this processor"; exit 77 ;; esac
cp "$tenon" "$dir/tenon"
ldd "$tenon" | grep -oE '/[^ ]+' | while read -r file; do
    case $file in */libtenon.so*) mkdir -p "$dir/lib" && cp -L "$file" "$dir/lib/" ;; *) cp -L --parents "$file" "$dir/" ;; esac
done
files=$(find "$dir" -type f | wc -l)
[ "$files" -le 5 ] || fail "$files files: $(find "$dir" -type f | tr '\n' ' ')"

# alone COMMAND...: with $dir as its root, by whatever the system allows
if env -i PATH="$PATH" LD_LIBRARY_PATH=/lib chroot "$dir" /tenon help >/dev/null 2>&1; then # for root
    alone() { env -i PATH="$PATH" LD_LIBRARY_PATH=/lib chroot "$dir" "$@"; }
elif env -i PATH="$PATH" LD_LIBRARY_PATH=/lib unshare -r chroot "$dir" /tenon help >/dev/null 2>&1; then
    alone() { env -i PATH="$PATH" LD_LIBRARY_PATH=/lib unshare -r chroot "$dir" "$@"; }
elif bwrap --unshare-all --bind "$dir" / --setenv LD_LIBRARY_PATH /lib /tenon help >/dev/null 2>&1; then
    alone() { bwrap --unshare-all --clearenv --bind "$dir" / --setenv LD_LIBRARY_PATH /lib "$@"; }
else
    echo "skipped: neither chroot nor unshare nor bwrap may run here"
    [ $bad = 0 ] && exit 77
    exit 1
fi
modes=naive,immediate,graph,compiled,loop
alone /tenon bench modes --sizes 16 --depths 4 --modes "$modes" --seconds 0.005 --json -q >"$dir/out" 2>"$dir/err" ||
    { fail "bench modes"; cat "$dir/err"; }
rows=0
for mode in ${modes//,/ }; do
    n=$(grep -oE "\"mode\": *\"$mode\"" "$dir/out" | wc -l)
    [ "$n" -ge 1 ] || fail "no row of mode $mode"
    rows=$((rows + n))
done
[ $bad = 0 ] && echo "alone: $files files, libtenon.so $size bytes, needs ${needed}- $rows rows of bench modes"
exit $bad
