/* lm_chat.c - how models for conversations were trained to read messages: between special tokens, by which a form is known.
 * What a message says is text, whatever tokens it spells. */
#include "lm.h"

#include <stdlib.h>
#include <string.h>

/* A message: open role middle before text close after. Up to its text, that of the assistant is what a model goes on from. */
struct lm_chat {
    const char *name, *open, *middle /* or NULL */, *before, *close, *after;
    bool trims; /* texts have no blanks around them */
};
static const lm_chat forms[] = {
    { "ChatML", "<|im_start|>", NULL, "\n", "<|im_end|>", "\n", false }, /* Qwen, SmolLM2 */
    { "Llama 3", "<|start_header_id|>", "<|end_header_id|>", "\n\n", "<|eot_id|>", "", true },
};

static int32_t special(const tn_bpe *b, const char *text) { return tn_bpe_special_id(b, text); }

const lm_chat *lm_chat_find(cli *c, const tn_bpe *b) {
    for (size_t i = 0; i < COUNT_OF(forms); i++) {
        const lm_chat *f = &forms[i];
        if (special(b, f->open) >= 0 && special(b, f->close) >= 0 && (!f->middle || special(b, f->middle) >= 0)) return f;
    }
    cli_fail(c, "--chat: the vocabulary has the special tokens of no form that is known: %s's %s and %s, %s's %s and %s",
             forms[0].name, forms[0].open, forms[0].close, forms[1].name, forms[1].open, forms[1].close);
}

void lm_ids_add(lm_ids *to, int32_t id) {
    if (to->n == to->room) {
        size_t room = to->room ? 2 * to->room : 256;
        int32_t *at = cli_alloc(room * sizeof *at);
        if (to->n) memcpy(at, to->at, to->n * sizeof *at);
        free(to->at);
        to->at = at, to->room = room;
    }
    to->at[to->n++] = id;
}

void lm_ids_text(lm_ids *to, cli *c, const tn_bpe *b, const char *text, size_t n, bool specials) {
    size_t n_ids;
    int32_t *ids = lm_encode(c, b, text, n, specials, 0, &n_ids);
    for (size_t i = 0; i < n_ids; i++) lm_ids_add(to, ids[i]);
    free(ids);
}

/* What is between two special tokens is one text. */
static void add_parts(lm_ids *to, cli *c, const tn_bpe *b, const char *x, const char *y, const char *z, size_t n_z) {
    size_t n_x = strlen(x), n_y = strlen(y), n = n_x + n_y + n_z;
    char *text = cli_alloc(n + 1);
    memcpy(text, x, n_x), memcpy(text + n_x, y, n_y);
    if (n_z) memcpy(text + n_x + n_y, z, n_z);
    if (n) lm_ids_text(to, c, b, text, n, false);
    free(text);
}

static bool is_blank(char x) { return x == ' ' || x == '\n' || x == '\t' || x == '\r'; }

void lm_chat_add(const lm_chat *f, cli *c, const tn_bpe *b, const char *role, const char *text, lm_ids *to) {
    size_t n = text ? strlen(text) : 0;
    while (f->trims && n && is_blank(*text)) text++, n--;
    while (f->trims && n && is_blank(text[n - 1])) n--;
    lm_ids_add(to, special(b, f->open));
    if (f->middle) {
        add_parts(to, c, b, role, "", NULL, 0);
        lm_ids_add(to, special(b, f->middle));
    }
    add_parts(to, c, b, f->middle ? "" : role, f->before, text, n);
    if (text) lm_chat_end(f, c, b, to);
}

void lm_chat_end(const lm_chat *f, cli *c, const tn_bpe *b, lm_ids *to) {
    lm_ids_add(to, special(b, f->close));
    add_parts(to, c, b, f->after, "", NULL, 0);
}
int32_t lm_chat_last(const lm_chat *f, const tn_bpe *b) { return special(b, f->close); }
