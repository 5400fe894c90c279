/* bpe_train.c - learns the merges of a byte-level BPE from text.
 *
 * In: text. Out: a vocabulary. Equal words are kept once, with their number. Pairs wait in a heap by how often they occur;
 * counts change as words are merged, and an entry that is out of date when it comes up goes back with its count of now, so that
 * a merge costs the words that have the pair and nothing else. */
#include "text.h"

typedef struct word {
    uint32_t at, n; /* ids in trainer.ids */
    int64_t count;
} word;

typedef struct entry { /* of the hash of words */
    uint64_t hash;
    uint32_t at, n; /* bytes of the text */
    int64_t count;  /* 0: an empty place */
} entry;

typedef struct pair_info { /* text_pair.rank: its number */
    int64_t count;
    int32_t left, right;
    uint32_t *words; /* that have had it; one may stand several times */
    size_t n_words, room;
} pair_info;

typedef struct queued {
    int64_t count;
    int32_t left, right, pair;
} queued;

typedef struct trainer {
    tn_ctx *ctx;
    const char *text;
    size_t n_text;
    tn_bpe *b;
    int64_t least;
    entry *entries;
    size_t n_entries, entry_room;
    word *words;
    size_t n_words, word_room;
    int32_t *ids;
    size_t n_ids, id_room;
    text_pairs index;
    pair_info *pairs;
    size_t n_pairs, pair_room;
    queued *heap;
    size_t n_heap, heap_room;
} trainer;

/* ---- words ---- */

static entry *entry_of(const trainer *t, uint64_t hash, uint32_t at, uint32_t n) {
    size_t i = hash & (t->entry_room - 1);
    for (const entry *x; (x = &t->entries[i])->count; i = (i + 1) & (t->entry_room - 1))
        if (x->hash == hash && x->n == n && !memcmp(t->text + x->at, t->text + at, n)) break;
    return &t->entries[i];
}

static bool entries_double(trainer *t) {
    trainer new = *t;
    new.entries = NULL, new.entry_room = 0;
    if (!text_grow(t->ctx, &new.entries, &new.entry_room, t->entry_room ? t->entry_room * 2 : 4096, sizeof *new.entries))
        return false;
    memset(new.entries, 0, new.entry_room * sizeof *new.entries);
    for (size_t i = 0; i < t->entry_room; i++)
        if (t->entries[i].count) *entry_of(&new, t->entries[i].hash, t->entries[i].at, t->entries[i].n) = t->entries[i];
    text_free(t->ctx, t->entries, t->entry_room, sizeof *t->entries);
    *t = new;
    return true;
}

static bool count_words(trainer *t) {
    for (size_t at = 0, end; at < t->n_text; at = end) {
        end = text_word_end(t->b->split, t->text, t->n_text, at);
        if (t->n_entries * 2 >= t->entry_room && !entries_double(t)) return false;
        uint32_t from = (uint32_t)at, n = (uint32_t)(end - at);
        uint64_t hash = text_mix(text_hash(0, t->text + at, 0, n));
        entry *x = entry_of(t, hash, from, n);
        if (!x->count) *x = (entry){ hash, from, n, 0 }, t->n_entries++;
        x->count++;
    }
    return true;
}

/* ---- pairs ---- */

static bool is_before(const queued *x, const queued *y) {
    if (x->count != y->count) return x->count > y->count;
    return x->left != y->left ? x->left < y->left : x->right < y->right;
}

static bool heap_push(trainer *t, queued x) {
    if (!text_grow(t->ctx, &t->heap, &t->heap_room, t->n_heap + 1, sizeof *t->heap)) return false;
    size_t i = t->n_heap++;
    for (size_t up; i && is_before(&x, &t->heap[up = (i - 1) / 2]); i = up) t->heap[i] = t->heap[up];
    t->heap[i] = x;
    return true;
}

static queued heap_pop(trainer *t) {
    queued first = t->heap[0], last = t->heap[--t->n_heap];
    size_t i = 0;
    for (size_t down; (down = 2 * i + 1) < t->n_heap; i = down) {
        if (down + 1 < t->n_heap && is_before(&t->heap[down + 1], &t->heap[down])) down++;
        if (!is_before(&t->heap[down], &last)) break;
        t->heap[i] = t->heap[down];
    }
    t->heap[i] = last;
    return first;
}

/* Word w has the pair so many times more, or fewer. */
static bool change(trainer *t, int32_t left, int32_t right, uint32_t w, int64_t by) {
    text_pair *p = text_pair_put(t->ctx, &t->index, left, right);
    if (!p) return false;
    if (p->rank < 0) {
        if (!text_grow(t->ctx, &t->pairs, &t->pair_room, t->n_pairs + 1, sizeof *t->pairs)) return false;
        p->rank = (int32_t)t->n_pairs;
        t->pairs[t->n_pairs++] = (pair_info){ .left = left, .right = right };
    }
    pair_info *x = &t->pairs[p->rank];
    x->count += by;
    if (by < 0 || (x->n_words && x->words[x->n_words - 1] == w)) return true;
    if (!text_grow(t->ctx, &x->words, &x->room, x->n_words + 1, sizeof *x->words)) return false;
    x->words[x->n_words++] = w;
    return true;
}

static bool queue_pairs(trainer *t, size_t from) {
    for (size_t i = from; i < t->n_pairs; i++) {
        const pair_info *x = &t->pairs[i];
        if (x->count >= t->least && !heap_push(t, (queued){ x->count, x->left, x->right, (int32_t)i })) return false;
    }
    return true;
}

static bool make_words(trainer *t) {
    for (size_t i = 0; i < t->entry_room; i++) {
        const entry *x = &t->entries[i];
        if (!x->count) continue;
        if (!text_grow(t->ctx, &t->words, &t->word_room, t->n_words + 1, sizeof *t->words) ||
            !text_grow(t->ctx, &t->ids, &t->id_room, t->n_ids + x->n, sizeof *t->ids))
            return false;
        uint32_t w = (uint32_t)t->n_words++;
        t->words[w] = (word){ (uint32_t)t->n_ids, x->n, x->count };
        for (uint32_t j = 0; j < x->n; j++) {
            t->ids[t->n_ids++] = t->b->of_byte[(uint8_t)t->text[x->at + j]];
            if (j && !change(t, t->ids[t->n_ids - 2], t->ids[t->n_ids - 1], w, x->count)) return false;
        }
    }
    return queue_pairs(t, 0);
}

/* All pairs of these two in the word become `id`. */
static bool merge_word(trainer *t, uint32_t w, int32_t left, int32_t right, int32_t id) {
    word *x = &t->words[w];
    int32_t *at = t->ids + x->at;
    uint32_t n = 0;
    for (uint32_t i = 0; i < x->n; i++) {
        if (i + 1 >= x->n || at[i] != left || at[i + 1] != right) {
            at[n++] = at[i];
            continue;
        }
        if (n && (!change(t, at[n - 1], left, w, -x->count) || !change(t, at[n - 1], id, w, x->count))) return false;
        if (i + 2 < x->n && (!change(t, right, at[i + 2], w, -x->count) || !change(t, id, at[i + 2], w, x->count)))
            return false;
        at[n++] = id;
        i++;
    }
    x->n = n;
    return true;
}

/* The pair becomes a token, in all words. Its bytes are new: left and right met nowhere before this, or they would be merged.
 */
static tn_status merge(trainer *t, const queued *q) {
    const struct text_token l = t->b->tokens[q->left], r = t->b->tokens[q->right];
    char bytes[TN_TEXT_MAX_TOKEN];
    size_t n = (size_t)l.n + r.n;
    memcpy(bytes, t->b->bytes + l.at, l.n);
    memcpy(bytes + l.n, t->b->bytes + r.at, r.n);
    int32_t id = t->b->n_tokens;
    tn_status st = text_bpe_add(t->ctx, t->b, id, bytes, n, false);
    text_pair *p = st ? NULL : text_pair_put(t->ctx, &t->b->merges, q->left, q->right);
    if (!p) return st ? st : TN_ERR_NOMEM;
    p->rank = (int32_t)t->b->merges.n - 1, p->id = id;
    pair_info had = t->pairs[q->pair]; /* adding pairs moves the array */
    size_t known = t->n_pairs; /* the others have a token that there was not before, and never become more frequent later */
    for (size_t i = 0; i < had.n_words; i++)
        if (!merge_word(t, had.words[i], q->left, q->right, id)) return TN_ERR_NOMEM;
    t->pairs[q->pair].count = 0; /* also where it overlapped itself */
    return queue_pairs(t, known) ? TN_OK : TN_ERR_NOMEM;
}

static tn_status merge_most_frequent(trainer *t, int n_tokens, const tn_bpe_train_opts *o) {
    tn_status st = TN_OK;
    while (t->b->n_tokens < n_tokens && t->n_heap && !st) {
        queued q = heap_pop(t);
        int64_t now = t->pairs[q.pair].count;
        if (now != q.count) { /* it went down since; it comes up again in its place */
            q.count = now;
            if (now >= t->least && !heap_push(t, q)) return TN_ERR_NOMEM;
            continue;
        }
        if ((size_t)t->b->tokens[q.left].n + t->b->tokens[q.right].n > TN_TEXT_MAX_TOKEN) continue;
        st = merge(t, &q);
        if (!st && o->progress) o->progress(o->progress_ud, t->b->n_tokens, n_tokens + o->n_specials);
    }
    return st;
}

/* ---- the whole ---- */

static tn_status train(trainer *t, const tn_bpe_train_opts *o) {
    tn_status st = TN_OK;
    for (int32_t id = 0; id < 256 && !st; id++)
        st = text_bpe_add(t->ctx, t->b, id, (char[]){ (char)text_byte_of(id) }, 1, false);
    if (!st && (!count_words(t) || !make_words(t))) st = TN_ERR_NOMEM;
    if (!st) st = merge_most_frequent(t, o->n_tokens - o->n_specials, o);
    for (int i = 0; i < o->n_specials && !st; i++) {
        if (tn_bpe_special_id(t->b, o->specials[i]) >= 0)
            st = text_fail(t->ctx, TN_ERR_INVAL, "tn_bpe_train: the special token \"%.64s\" is given twice", o->specials[i]);
        else
            st = text_bpe_add(t->ctx, t->b, t->b->n_tokens, o->specials[i], strlen(o->specials[i]), true);
    }
    return st;
}

static void free_all(trainer *t) {
    for (size_t i = 0; i < t->n_pairs; i++) text_free(t->ctx, t->pairs[i].words, t->pairs[i].room, sizeof *t->pairs[i].words);
    text_free(t->ctx, t->pairs, t->pair_room, sizeof *t->pairs);
    text_free(t->ctx, t->index.at, t->index.room, sizeof *t->index.at);
    text_free(t->ctx, t->entries, t->entry_room, sizeof *t->entries);
    text_free(t->ctx, t->words, t->word_room, sizeof *t->words);
    text_free(t->ctx, t->ids, t->id_room, sizeof *t->ids);
    text_free(t->ctx, t->heap, t->heap_room, sizeof *t->heap);
}

tn_status tn_bpe_train(tn_ctx *ctx, const char *text, size_t n, const tn_bpe_train_opts *opts, tn_bpe **out) {
    if (!ctx) return TN_ERR_INVAL;
    if (out) *out = NULL;
    if (!out || !opts || (!text && n) || (!opts->specials && opts->n_specials))
        return text_fail(ctx, TN_ERR_INVAL, "tn_bpe_train: text, opts, specials or out is NULL");
    if (n > INT32_MAX) return text_fail(ctx, TN_ERR_INVAL, "tn_bpe_train: %zu bytes of text; a call takes %d", n, INT32_MAX);
    int specials = opts->n_specials;
    if (specials < 0 || specials > TN_TEXT_MAX_TOKENS - 256 || opts->n_tokens < 256 + specials ||
        opts->n_tokens > TN_TEXT_MAX_TOKENS)
        return text_fail(ctx, TN_ERR_INVAL, "tn_bpe_train: %d tokens with %d specials; %d to %d are possible", opts->n_tokens,
                         specials, 256 + (specials > 0 ? specials : 0), TN_TEXT_MAX_TOKENS);
    for (int i = 0; i < specials; i++)
        if (!opts->specials[i] || !*opts->specials[i] || strlen(opts->specials[i]) > TN_TEXT_MAX_TOKEN)
            return text_fail(ctx, TN_ERR_INVAL, "tn_bpe_train: special token %d is empty or too long", i);
    trainer t = { .ctx = ctx, .text = text, .n_text = n, .least = opts->least > 0 ? opts->least : 2 };
    tn_status st = text_bpe_new(ctx, opts->split, &t.b);
    if (!st) st = train(&t, opts);
    free_all(&t);
    if (st)
        tn_bpe_free(ctx, t.b);
    else
        *out = t.b;
    return st;
}
