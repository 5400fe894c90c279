#!/bin/bash
# check-cycles finds files that need each other in a circle, and folders that need later ones, though no include line says so.
set -u
[ -n "${SANITIZE:-}" ] && exit 77 # the objects of this test are compiled plainly
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
top=$work/CMakeFiles/tenon_objects.dir/src
failed=0

put() { # put FILE TEXT: its object
    mkdir -p "$top/$(dirname "$1")"
    echo "$2" | ${CC:-cc} -x c -c -o "$top/$1.o" - || exit 1
}
expect() { # expect STATUS TEXT
    out=$("$SOURCE_DIR/scripts/check-cycles" "$work" 2>&1)
    status=$?
    if [ $status != "$1" ] || ! grep -qF "$2" <<<"$out"; then
        echo "test_cycles: expected status $1 and \"$2\", got $status and:"
        echo "$out"
        failed=1
    fi
}

put loop/a.c 'int a(void) { return 1; }'
put loop/b.c 'int a(void); int b(void) { return a(); }'
put recipe/c.c 'int b(void); int c(void) { return b(); }'
expect 0 'cycles: 3 files, 2 needs'
put loop/a.c 'int b(void); int a(void) { return b(); }'
expect 1 '2 files need each other in a circle: src/loop/a.c src/loop/b.c'
put loop/a.c 'int c(void); int a(void) { return c(); }'
expect 1 '3 files need each other in a circle'
expect 1 'src/loop/a.c needs c of src/recipe/c.c: recipe is a later layer'
put loop/a.c 'int a(void) { return 1; }'
put emit/d.c 'int d(void) { return 1; }'
put sched/e.c 'int d(void); int e(void) { return d(); }'
expect 1 'src/sched/e.c needs d of src/emit/d.c: emit is a sibling'
rm "$top/sched/e.c.o"
put other/f.c 'int a(void); int f(void) { return a(); }'
expect 1 'folder other has no place in the order of layers'
[ $failed = 0 ] && echo "count: 5 wrong needs caught of 5 planted"
exit $failed
