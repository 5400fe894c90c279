/* cmd_devices.c - `tenon devices`: what programs can be compiled for. */
#include "cli.h"

static void print_json(json *j, const tn_device_info *d, const char *missing) {
    json_line(j, NULL);
    json_text(j, "name", d->name);
    if (missing) {
        json_text(j, "missing", missing);
        json_end(j);
        return;
    }
    json_text(j, "detail", d->detail);
    json_text(j, "isa", d->isa);
    json_int(j, "threads", d->threads);
    json_int(j, "vector_bytes", d->vector_bytes);
    json_int(j, "l1_bytes", d->l1_bytes);
    json_int(j, "l2_bytes", d->l2_bytes);
    json_int(j, "l3_bytes", d->l3_bytes);
    json_end(j);
}

static int run(cli *c) {
    json j = { 0 };
    if (c->json) {
        j = json_begin(stdout, "devices");
        json_array(&j, "devices");
    }
    for (int i = 0; i < tn_device_count(); i++) {
        tn_device_info d;
        tn_status st = tn_device_get_info(cli_ctx(c), i, &d);
        const char *missing = st ? tn_ctx_error(cli_ctx(c)) : NULL;
        if (st && st != TN_ERR_DEVICE) cli_need(c, st);
        if (c->json)
            print_json(&j, &d, missing);
        else if (missing)
            printf("%s%-6s%s not here: %s\n", cli_bold(c), d.name, cli_plain(c), missing);
        else {
            printf("%s%-6s%s %s", cli_bold(c), d.name, cli_plain(c), d.detail);
            if (d.l1_bytes)
                printf("; caches %lld KiB, %lld KiB, %lld KiB", (long long)d.l1_bytes >> 10, (long long)d.l2_bytes >> 10,
                       (long long)d.l3_bytes >> 10);
            putchar('\n');
        }
    }
    if (c->json) {
        json_end(&j);
        json_finish(&j);
    }
    return CLI_OK;
}

static const cli_option options[] = { { NULL, 0, NULL, NULL } };

const cli_command command_devices = {
    "devices",
    "",
    "list the devices that programs can be compiled for",
    "The name is what --device takes. `null` compiles and counts, but computes nothing.\n\n"
    "examples:\n"
    "  tenon devices\n"
    "  tenon devices --json",
    0,
    0,
    options,
    run,
};
