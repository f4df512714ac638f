#include "engine/text/pieces.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/charmap.h"
#include "engine/text/merges.h"
#include "engine/text/trie.h"
#include "engine/text/unicode.h"
#include "engine/text/words.h"
#include "memory/log.h"

/* All texts here have a space where SentencePiece has its mark U+2581: pieces come so from sentencepiece_model, and a
 * mark in the text itself is the same to it. */

struct pieces {
    const sentencepiece_model *model;
    trie *trie;            /* of the pieces that can stand in a path: normal ones */
    float unknown_score;   /* unigram: of one character that is no piece */
    merges *merges;        /* BPE; NULL: unigram */
    bool words_apart;      /* BPE: no piece has a space behind another character: words never merge */
    int32_t byte_ids[256]; /* byte pieces; used when there are all of them (byte_fallback) */
    bool falls_back;
    int32_t unknown;
};

typedef struct path { /* the best way to get to a place */
    float score;
    int32_t start; /* where its last piece begins; -1: no way is known */
    int32_t id;
} path;

struct pieces_scratch {
    buffer normal;
    path *paths; /* [room] */
    int64_t room;
    buffer_ids symbols;
    merges_scratch *merging;
    words *words;
};

#define UNKNOWN_PENALTY 10.0F
#define LOWEST_SCORE    -100000.0F /* of a path, before the library begins to count anew */
#define LONGEST         512        /* bytes of a piece; real ones have a tenth of that */

/* --- making ------------------------------------------------------------------------------------------------------- */

static bool needs_library(const sentencepiece_model *m)
{
    bool known = m->type == SENTENCEPIECE_MODEL_UNIGRAM || m->type == SENTENCEPIECE_MODEL_BPE;
    if (!known || m->space_suffix)
        return true;
    for (int32_t id = 0; id < vocabulary_size(m->pieces); id++) {
        int64_t length;
        (void)vocabulary_bytes(m->pieces, &length, id);
        if (m->types[id] == SENTENCEPIECE_MODEL_USER || length > LONGEST ||
            (m->types[id] == SENTENCEPIECE_MODEL_UNUSED && m->type == SENTENCEPIECE_MODEL_BPE))
            return true;
    }
    return false;
}

static void make_trie(pieces *p)
{
    const sentencepiece_model *m = p->model;
    int32_t size = vocabulary_size(m->pieces);
    trie_string *strings = must_alloc((unsigned long)size * sizeof *strings);
    int64_t count = 0;
    float lowest = FLT_MAX;
    p->words_apart = true;
    for (int32_t id = 0; id < size; id++) {
        int64_t length;
        const char *bytes = vocabulary_bytes(m->pieces, &length, id);
        if (m->types[id] == SENTENCEPIECE_MODEL_UNKNOWN)
            p->unknown = id;
        if (m->types[id] == SENTENCEPIECE_MODEL_BYTE)
            p->byte_ids[(uint8_t)*bytes] = id;
        if (m->types[id] != SENTENCEPIECE_MODEL_NORMAL)
            continue;
        strings[count++] = (trie_string){(const uint8_t *)bytes, length, id};
        lowest = m->scores[id] < lowest ? m->scores[id] : lowest;
        for (int64_t i = 1; i < length; i++)
            p->words_apart &= bytes[i] != ' ' || bytes[i - 1] == ' ';
    }
    p->unknown_score = lowest - UNKNOWN_PENALTY;
    p->trie = trie_open(strings, count);
    free(strings);
}

static int32_t find(const pieces *p, const char *bytes, int64_t length)
{
    uint32_t node = 0;
    for (int64_t i = 0; i < length; i++)
        if (!(node = trie_child(p->trie, node, (uint8_t)bytes[i])))
            return -1;
    return p->trie->nodes[node].value;
}

typedef struct ranked {
    float score;
    int32_t id;
} ranked;

static int by_score(const void *left, const void *right)
{
    const ranked *a = left, *b = right;
    if (a->score != b->score)
        return a->score > b->score ? -1 : 1;
    return (a->id > b->id) - (a->id < b->id);
}

/* SentencePiece merges two neighbours if their texts together are a piece, the piece of the highest score first. As
 * merges of pairs: every way to cut a piece in two pieces is one, its rank the place of the score among all. False if
 * some character of a piece is no piece itself: then texts merge that have no id. */
static bool make_merges(pieces *p)
{
    const sentencepiece_model *m = p->model;
    int32_t size = vocabulary_size(m->pieces), count = 0;
    ranked *order = must_alloc((unsigned long)size * sizeof *order);
    for (int32_t id = 0; id < size; id++)
        if (m->types[id] == SENTENCEPIECE_MODEL_NORMAL)
            order[count++] = (ranked){m->scores[id], id};
    qsort(order, (size_t)count, sizeof *order, by_score);
    p->merges = merges_open(4 * (int64_t)size);
    bool whole = true;
    uint32_t rank = 0;
    for (int32_t i = 0; i < count && whole; i++) {
        rank += i && order[i].score != order[i - 1].score;
        int64_t length;
        const char *bytes = vocabulary_bytes(m->pieces, &length, order[i].id);
        uint32_t code;
        for (int64_t at = 0, step; at < length; at += step) {
            step = unicode_decode((const uint8_t *)bytes + at, &code);
            whole &= find(p, bytes + at, step) >= 0;
            int32_t left = at ? find(p, bytes, at) : -1, right = at ? find(p, bytes + at, length - at) : -1;
            if (left >= 0 && right >= 0)
                merges_add(p->merges, left, right, rank, order[i].id);
        }
    }
    free(order);
    return whole;
}

pieces *pieces_open(const sentencepiece_model *m)
{
    if (needs_library(m))
        return NULL;
    pieces *p = must_calloc(1, sizeof *p);
    p->model = m;
    for (int i = 0; i < 256; i++)
        p->byte_ids[i] = -1;
    make_trie(p);
    p->falls_back = m->byte_fallback;
    for (int i = 0; i < 256; i++)
        p->falls_back &= p->byte_ids[i] >= 0;
    if (!p->trie || (m->type == SENTENCEPIECE_MODEL_BPE && !make_merges(p))) {
        pieces_close(p);
        return NULL;
    }
    return p;
}

void pieces_close(pieces *p)
{
    if (!p)
        return;
    trie_close(p->trie);
    merges_close(p->merges);
    free(p);
}

pieces_scratch *pieces_scratch_open(void)
{
    pieces_scratch *s = must_calloc(1, sizeof *s);
    s->merging = merges_scratch_open();
    s->words = words_open();
    return s;
}

void pieces_scratch_close(pieces_scratch *s)
{
    if (!s)
        return;
    buffer_free(&s->normal);
    buffer_ids_free(&s->symbols);
    merges_scratch_close(s->merging);
    words_close(s->words);
    free(s->paths);
    free(s);
}

/* --- encoding ----------------------------------------------------------------------------------------------------- */

/* What the next characters of a text become: `length` bytes at `bytes`. Returns how many bytes they are. */
static int64_t next_of(const sentencepiece_model *m, const char **bytes, int64_t *length, const char *text,
                       int64_t left)
{
    const char *replacement;
    int64_t taken = m->map.length ? charmap_match((const uint8_t *)m->map.bytes, &replacement, text, left) : 0;
    if (taken) {
        *bytes = replacement;
        *length = (int64_t)strlen(replacement);
        return taken;
    }
    uint32_t code;
    *bytes = text;
    *length = unicode_decode((const uint8_t *)text, &code);
    return *length;
}

static void append_marked(buffer *out, const char *bytes, int64_t length)
{
    buffer_reserve(out, length);
    for (int64_t i = 0; i < length;) {
        bool mark = length - i >= 3 && memcmp(bytes + i, "\xE2\x96\x81", 3) == 0;
        out->bytes[out->length++] = mark ? ' ' : bytes[i];
        i += mark ? 3 : 1;
    }
}

/* The model's own treatment of a text: characters replaced by its map, one space in front, none too many. */
static void normalize(const sentencepiece_model *m, buffer *out, const char *text, int64_t length)
{
    out->length = 0;
    buffer_reserve(out, length + 1);
    const char *bytes;
    int64_t count, at = 0, taken;
    for (; m->remove_extra && at < length; at += taken) {
        taken = next_of(m, &bytes, &count, text + at, length - at);
        if (count != 1 || *bytes != ' ')
            break;
    }
    if (at == length)
        return;
    if (m->dummy_prefix)
        out->bytes[out->length++] = ' ';
    for (bool after_space = m->remove_extra; at < length; at += taken) {
        taken = next_of(m, &bytes, &count, text + at, length - at);
        for (; after_space && count && *bytes == ' '; count--)
            bytes++;
        append_marked(out, bytes, count);
        if (count)
            after_space = m->remove_extra && bytes[count - 1] == ' ';
    }
    while (m->remove_extra && out->length && out->bytes[out->length - 1] == ' ')
        out->length--;
}

/* Characters that are no piece: their bytes, or one unknown piece for a stretch of them. */
static void put_unknown(const pieces *p, buffer_ids *out, const uint8_t *text, int64_t length, bool after_unknown)
{
    if (!p->falls_back) {
        if (!after_unknown)
            buffer_ids_append(out, &p->unknown, 1);
        return;
    }
    for (int64_t i = 0; i < length; i++)
        if (text[i] == ' ') /* it stands for the mark's three bytes */
            for (int k = 0; k < 3; k++)
                buffer_ids_append(out, &p->byte_ids["\xE2\x96\x81"[k] & 0xFF], 1);
        else
            buffer_ids_append(out, &p->byte_ids[text[i]], 1);
}

static inline void offer(path *to, float score, int64_t start, int32_t id)
{
    if (to->start < 0 || score > to->score)
        *to = (path){score, (int32_t)start, id};
}

/* A long way's score has few bits left for the pieces to come: below LOWEST_SCORE the library (0.2.3) takes the score of
 * the place it stands at from all that are known (measured: any other bound gives other ids). */
static float count_anew(path *at, int64_t length)
{
    float score = at->score;
    for (int64_t i = 0; i <= length && i <= LONGEST; i++)
        at[i].score -= at[i].start >= 0 ? score : 0.0F;
    return at->score;
}

/* Fill the paths: from each character's beginning, which a path always reaches, go on by every piece that stands there,
 * and by the character as an unknown one if it is no piece itself. */
static void find_paths(const pieces *p, path *paths, const uint8_t *text, int64_t length)
{
    const float *scores = p->model->scores;
    for (int64_t i = 0; i <= length; i++)
        paths[i].start = -1;
    paths[0].score = 0.0F;
    uint32_t code;
    for (int64_t start = 0, step; start < length; start += step) {
        float so_far = paths[start].score;
        if (so_far < LOWEST_SCORE)
            so_far = count_anew(paths + start, length - start);
        step = unicode_decode(text + start, &code);
        bool single = false;
        uint32_t node = 0;
        for (int64_t at = start; at < length && (node = trie_child(p->trie, node, text[at])); at++) {
            int32_t id = p->trie->nodes[node].value;
            if (id < 0)
                continue;
            offer(&paths[at + 1], scores[id] + so_far, start, id);
            single |= at + 1 == start + step;
        }
        if (!single)
            offer(&paths[start + step], p->unknown_score + so_far, start, -1);
    }
}

static void encode_unigram(const pieces *p, pieces_scratch *s, buffer_ids *out)
{
    const uint8_t *text = (const uint8_t *)s->normal.bytes;
    int64_t length = s->normal.length, last = -1;
    if (length >= s->room) {
        s->room = length + length / 2 + 1024;
        free(s->paths);
        s->paths = must_alloc((unsigned long)s->room * sizeof *s->paths);
    }
    path *paths = s->paths;
    find_paths(p, paths, text, length);
    for (int64_t at = length; at > 0;) { /* turn the way back into a way there: `last` is the place behind */
        int64_t start = paths[at].start;
        paths[at].start = (int32_t)last;
        last = at;
        at = start;
    }
    bool unknown = false;
    for (int64_t start = 0, at = last; at > 0; start = at, at = paths[at].start) {
        if (paths[at].id >= 0)
            buffer_ids_append(out, &paths[at].id, 1);
        else
            put_unknown(p, out, text + start, at - start, unknown);
        unknown = paths[at].id < 0;
    }
}

/* A stretch of known characters merges; unknown ones part it. */
static void merge_word(const pieces *p, pieces_scratch *s, buffer_ids *out, const uint8_t *word, int64_t length)
{
    buffer_ids *symbols = &s->symbols;
    symbols->count = 0;
    bool unknown = false;
    uint32_t code;
    for (int64_t at = 0, step; at < length; at += step) {
        step = unicode_decode(word + at, &code);
        int32_t id = find(p, (const char *)word + at, step);
        if (id >= 0) {
            buffer_ids_append(symbols, &id, 1);
        } else {
            if (symbols->count)
                merges_apply(p->merges, s->merging, out, symbols->ids, symbols->count);
            symbols->count = 0;
            put_unknown(p, out, word + at, step, unknown);
        }
        unknown = id < 0;
    }
    if (symbols->count)
        merges_apply(p->merges, s->merging, out, symbols->ids, symbols->count);
}

static void encode_words(const pieces *p, pieces_scratch *s, buffer_ids *out)
{
    const uint8_t *text = (const uint8_t *)s->normal.bytes;
    int64_t length = s->normal.length;
    bool apart = p->words_apart && p->falls_back; /* a stretch of unknown characters may cross words */
    for (int64_t at = 0, end; at < length; at = end) {
        end = apart ? at + 1 : length;
        while (end < length && !(text[end] == ' ' && text[end - 1] != ' '))
            end++;
        if (words_recall(s->words, out, text + at, end - at))
            continue;
        int64_t before = out->count;
        merge_word(p, s, out, text + at, end - at);
        words_remember(s->words, out, before);
    }
}

void pieces_encode(const pieces *p, pieces_scratch *s, buffer_ids *out, const char *text, int64_t length)
{
    MUST(length < INT32_MAX - 1, "a text of %lld bytes", (long long)length);
    normalize(p->model, &s->normal, text, length);
    if (s->normal.length == 0)
        return;
    if (p->merges)
        encode_words(p, s, out);
    else
        encode_unigram(p, s, out);
}
