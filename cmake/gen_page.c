/* gen_page.c - host tool of the build: gen_page OUT.c NAME PAGE SCRIPT writes `const char NAME[]`, which is PAGE with SCRIPT in
 * the place of its line "@script@". */
#include <stdio.h>
#include <string.h>

static int column;
static void put(FILE *out, int ch) {
    column += fprintf(out, "%d,", ch);
    if (column > 120) column = 0, fputc('\n', out);
}

static int copy(FILE *out, const char *path, const char *script) {
    char line[4096];
    FILE *f = fopen(path, "r");
    if (!f) return 1;
    while (fgets(line, sizeof line, f)) {
        if (script && !strcmp(line, "@script@\n")) {
            if (copy(out, script, NULL)) return 1;
            continue;
        }
        for (const char *s = line; *s; s++) put(out, *s & 0xff);
    }
    return fclose(f);
}

int main(int argc, char **argv) {
    FILE *out = argc == 5 ? fopen(argv[1], "w") : NULL;
    if (!out) return 2;
    fprintf(out, "/* Written by the build from %s and %s. */\n#include \"report.h\"\nconst unsigned char %s[] = {\n", argv[3],
            argv[4], argv[2]);
    if (copy(out, argv[3], argv[4])) return 2;
    fprintf(out, "0 };\n");
    return fclose(out) ? 2 : 0;
}
