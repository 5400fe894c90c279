#!/bin/bash
# Installs into a staging directory, then uses the result as outsiders do: find_package(Tenon), pkg-config, and the static
# library in a host whose own functions have the names of functions inside Tenon, and a C++ program.
set -eu
[ -z "$SANITIZE" ] || { echo "skipped: sanitizer builds are not installed"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAIL: $*" >&2; exit 1; }

# The build directory's own prefix (usually /usr/local) under DESTDIR: nothing outside the staging directory is written.
DESTDIR=$work/stage cmake --install "$BUILD_DIR" >"$work/install.log"
root=$(dirname "$(dirname "$(find "$work/stage" -path '*/include/tenon' -type d)")")
for f in include/tenon/tenon.h include/tenon/tenon_ops.h; do
    [ -f "$root/$f" ] || fail "$f is not installed"
done
for pattern in 'libtenon.so' 'libtenon.so.0' 'libtenon.a' 'tenon.pc' 'TenonConfig.cmake'; do
    [ -n "$(find "$root" -name "$pattern")" ] || fail "$pattern is not installed"
done
libdir=$(dirname "$(find "$root" -name libtenon.a)")
user=$SOURCE_DIR/tests/install/user

cmake -S "$user" -B "$work/user" -DCMAKE_PREFIX_PATH="$root" -DCMAKE_C_COMPILER="$CC" >"$work/cmake.log" || fail "find_package: $(cat "$work/cmake.log")"
cmake --build "$work/user" >"$work/build.log" 2>&1 || fail "external project: $(tail -20 "$work/build.log")"
"$work/user/shared" || fail "program linked with Tenon::tenon: $?"
"$work/user/static" || fail "program linked with Tenon::tenon_static: $?"
readelf -d "$work/user/shared" | grep -q 'NEEDED.*libtenon\.so\.0' || fail "the shared program does not need libtenon.so.0"
readelf -d "$work/user/static" | grep -q 'libtenon' && fail "the static program needs libtenon.so"

# In a plugin: its own function alone is to be seen, with the flag that the tutorial names.
cat >"$work/plugin.c" <<'END'
#include <tenon/tenon.h>
const char *plugin_version(void);
const char *plugin_version(void) { return tn_version(); }
END
plugin() { "$CC" -shared -fPIC -I"$root/include" "$work/plugin.c" "$libdir/libtenon.a" -lm -lpthread -ldl "$@" -o "$work/plugin.so"; }
seen() { nm -D --defined-only "$work/plugin.so" | grep -cE ' T (tn_|plugin_)' || true; }
grep -q -e '-Wl,--exclude-libs,libtenon.a' "$SOURCE_DIR/docs/tutorial.md" || fail "the tutorial does not name the flag for plugins"
plugin || fail "a plugin with libtenon.a"
[ "$(seen)" -gt 1 ] || fail "the flag for plugins is not needed any more: change the tutorial"
plugin -Wl,--exclude-libs,libtenon.a || fail "a plugin with libtenon.a and the flag"
[ "$(seen)" = 1 ] || fail "a plugin shows $(seen) functions, not one: $(nm -D --defined-only "$work/plugin.so" | head)"

if command -v pkg-config >/dev/null; then
    export PKG_CONFIG_PATH=$libdir/pkgconfig
    # shellcheck disable=SC2046
    "$CC" -std=c11 "$user/host.c" $(pkg-config --cflags --libs tenon) -Wl,-rpath,"$libdir" -o "$work/pc" || fail "pkg-config build"
    "$work/pc" || fail "program built with pkg-config: $?"
    # As distributions configure it: folders that are absolute, or deeper than lib.
    for lib in /opt/t/lib64 lib/x86_64-linux-gnu; do
        cmake -S "$SOURCE_DIR" -B "$work/pc-build" -DTENON_TESTS=OFF -DCMAKE_C_COMPILER="$CC" -DCMAKE_INSTALL_PREFIX=/opt/t \
            -DCMAKE_INSTALL_LIBDIR=$lib >"$work/pc.log" 2>&1 || fail "configure with libraries in $lib: $(tail -5 "$work/pc.log")"
        at=$work/moved/opt/t/${lib#/opt/t/}
        mkdir -p "$at/pkgconfig" && cp "$work/pc-build/tenon.pc" "$at/pkgconfig/"
        got=$(PKG_CONFIG_PATH=$at/pkgconfig pkg-config --variable=libdir tenon) && [ "$(realpath -m "$got")" = "$at" ] || fail "libdir of $lib: $got"
        got=$(PKG_CONFIG_PATH=$at/pkgconfig pkg-config --variable=includedir tenon) && [ "$(realpath -m "$got")" = "$work/moved/opt/t/include" ] ||
            fail "includedir of $lib: $got"
    done
    [ "$(pkg-config --modversion tenon)" = "$("$work/pc" | sed 's/libtenon \([^,]*\),.*/\1/')" ] || fail "tenon.pc and the library disagree about the version"
else
    echo "note: no pkg-config here, that part was left out"
fi
for cxx in g++ clang++; do # the macros of the headers are C++ too, not only the declarations
    command -v $cxx >/dev/null || { echo "note: no $cxx here, that part was left out"; continue; }
    for std in c++11 c++20; do
        $cxx -std=$std -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -I"$root/include" "$user/user.cpp" -L"$libdir" -ltenon \
            -Wl,-rpath,"$libdir" -o "$work/cpp" || fail "$cxx -std=$std"
        [ "$("$work/cpp")" = "17.4964 1.0000 5.4366 22.1672" ] || fail "program built with $cxx -std=$std: $("$work/cpp")"
    done
done
if [ -x "$root/bin/tenon" ]; then
    "$root/bin/tenon" --help >/dev/null || fail "installed program does not run"
fi
echo "count: 3 ways to link an installed libtenon, and from C++"
