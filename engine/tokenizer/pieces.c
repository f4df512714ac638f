#include "engine/tokenizer/pieces.h"

#include <float.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/unicode.h"
#include "engine/tokenizer/sentencepiece_model.h"
#include "engine/tokenizer/vocabulary.h"
#include "engine/tokenizer/merges.h"
#include "memory/log.h"
#include "memory/scope.h"

/* A set of byte strings with a number each, to find all that occur at a text position: a double array (Aoe 1989).
 *
 * The child of node n by byte b is base[n] ^ b, if that node has n as its parent. Immutable once made.
 */

typedef struct trie_node {
    uint32_t base, parent; /* parent + 1; 0: free */
    int32_t value;         /* value of the string that ends here; -1: none does */
} trie_node;

typedef struct trie {
    trie_node *nodes; /* [size], the root is 0 */
    uint32_t size;
} trie;

typedef struct trie_string {
    const uint8_t *bytes;
    int64_t length; /* length, at least 1 */
    int32_t value;  /* value, at least 0 */
} trie_string;

/* Returns the child of a node, or 0. */
static inline uint32_t trie_child(const trie *t, uint32_t node, uint8_t byte)
{
    uint32_t child = t->nodes[node].base ^ byte;
    return t->nodes[child].parent == node + 1 ? child : 0;
}

typedef struct builder {
    trie *trie;
    const trie_string *strings;
    uint32_t first_free; /* all nodes below are taken or were tried in vain too often */
} builder;

static int compare_strings(const void *left, const void *right)
{
    const trie_string *a = left, *b = right;
    int64_t shared = a->length < b->length ? a->length : b->length;
    int order = memcmp(a->bytes, b->bytes, (size_t)shared);
    return order ? order : (a->length > b->length) - (a->length < b->length);
}

/* Nodes come in blocks of 256, so that any base of an existing node has all its children within. */
static void grow_trie(trie *t, uint32_t size)
{
    if (size <= t->size)
        return;
    uint32_t larger = t->size + t->size / 2 > size ? t->size + t->size / 2 : size;
    larger = (larger + 255) & ~255U;
    t->nodes = must_realloc(t->nodes, (unsigned long)larger * sizeof *t->nodes);
    for (uint32_t i = t->size; i < larger; i++)
        t->nodes[i] = (trie_node){0, 0, -1};
    t->size = larger;
}

/* Finds a base under which the nodes of all the bytes are free. Node 0 is the root's and is never given away. */
static uint32_t find_base(builder *b, const uint8_t *bytes, int count)
{
    trie *t = b->trie;
    uint32_t tries = 0;
    for (uint32_t place = b->first_free;; place++) {
        grow_trie(t, place + 1);
        if (t->nodes[place].parent || place == 0)
            continue;
        uint32_t base = place ^ bytes[0];
        int i = 0;
        while (i < count && (base ^ bytes[i]) != 0 && !t->nodes[base ^ bytes[i]].parent)
            i++;
        if (i == count)
            return base;
        if (++tries == 256) { /* crowded up to here: later searches begin further on */
            b->first_free = place;
            tries = 0;
        }
    }
}

/* Makes the children of a node for strings[low..high), which agree in their first `depth` bytes. */
static void build_children(builder *b, uint32_t node, int64_t low, int64_t high, int64_t depth)
{
    if (b->strings[low].length == depth)
        b->trie->nodes[node].value = b->strings[low++].value;
    if (low == high)
        return;
    uint8_t bytes[256];
    int64_t starts[257];
    int count = 0;
    for (int64_t i = low; i < high; i++)
        if (count == 0 || b->strings[i].bytes[depth] != bytes[count - 1]) {
            bytes[count] = b->strings[i].bytes[depth];
            starts[count++] = i;
        }
    starts[count] = high;
    uint32_t base = find_base(b, bytes, count);
    b->trie->nodes[node].base = base;
    for (int i = 0; i < count; i++)
        b->trie->nodes[base ^ bytes[i]].parent = node + 1;
    for (int i = 0; i < count; i++)
        build_children(b, base ^ bytes[i], starts[i], starts[i + 1], depth + 1);
}

static void trie_close(trie *t)
{
    if (!t)
        return;
    free(t->nodes);
    free(t);
}

/* Sorts the strings, which need not outlive the call. NULL if two are equal. Its stack grows with the longest. */
static trie *trie_open(trie_string *strings, int64_t count)
{
    trie *t = must_calloc(1, sizeof *t);
    builder b = {.trie = t, .strings = strings, .first_free = 1};
    grow_trie(t, 256);
    if (count)
        qsort(strings, (size_t)count, sizeof *strings, compare_strings);
    for (int64_t i = 1; i < count; i++)
        if (compare_strings(&strings[i - 1], &strings[i]) == 0) {
            trie_close(t);
            return NULL;
        }
    if (count)
        build_children(&b, 0, 0, count, 0);
    return t;
}

/* All texts here have a space where SentencePiece has its mark U+2581: pieces come so from sentencepiece_model, and
 * SentencePiece takes a mark in a text for a space. */

struct pieces {
    const sentencepiece_model *model;
    trie *trie;            /* the pieces that a path may have: normal ones */
    float unknown_score;   /* unigram: score of one character that is no piece */
    merges *merges;        /* BPE; NULL: unigram */
    bool words_apart;      /* BPE: no piece has a space after another character, so that words never merge */
    int32_t byte_ids[256]; /* byte pieces; used when there are all of them (byte_fallback) */
    bool falls_back;
    int32_t unknown;
};

typedef struct path { /* the best path to a position */
    float score;
    int32_t start; /* offset from `base` at which its last piece begins; -1: no path is known */
    int32_t id;
} path;

struct pieces_scratch {
    buffer normal;
    path *paths;           /* [room], to the positions from `base` on */
    int64_t room;          /* [room] holds LONGEST positions or more beyond the current one */
    int64_t base, reached; /* positions in the text; reached: the last with a path */
    buffer_ids symbols;
    merges_scratch *merging;
    words *words;
};

#define UNKNOWN_PENALTY 10.0F
#define LOWEST_SCORE    -100000.0F /* limit of a path's score; below, the library rebases the scores */
#define LONGEST         512        /* most bytes of a piece; real ones have a tenth of that */
#define BLOCK           (1 << 16)  /* positions that keep their paths, or more where pieces cross all of them */

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
    AUTO_FREE trie_string *strings = must_alloc((unsigned long)size * sizeof *strings);
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
}

static int32_t find_piece(const pieces *p, const char *bytes, int64_t length)
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
 * merges of pairs: every cut of a piece into two pieces is one, ranked by the score among all. False if some character
 * of a piece is no piece itself: then texts without an id would merge. */
static bool make_merges(pieces *p)
{
    const sentencepiece_model *m = p->model;
    int32_t size = vocabulary_size(m->pieces), count = 0;
    AUTO_FREE ranked *order = must_alloc((unsigned long)size * sizeof *order);
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
            whole &= find_piece(p, bytes + at, step) >= 0;
            int32_t left = at ? find_piece(p, bytes, at) : -1, right = at ? find_piece(p, bytes + at, length - at) : -1;
            if (left >= 0 && right >= 0)
                merges_add(p->merges, left, right, rank, order[i].id);
        }
    }
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

/* Normalizes the next characters to `length` bytes at `bytes`; returns how many bytes of the text they are. */
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

/* Normalizes a text as the model does: characters replaced by its map, one space in front, no surplus ones. */
static void normalize_text(const sentencepiece_model *m, buffer *out, const char *text, int64_t length)
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
        mark_append(out, bytes, count);
        if (count)
            after_space = m->remove_extra && bytes[count - 1] == ' ';
    }
    while (m->remove_extra && out->length && out->bytes[out->length - 1] == ' ')
        out->length--;
}

/* Encodes characters that are no piece: their bytes, or one unknown piece for several in a row. */
static void put_unknown(const pieces *p, buffer_ids *out, const uint8_t *text, int64_t length, bool after_unknown)
{
    if (!p->falls_back) {
        if (!after_unknown)
            buffer_ids_append(out, &p->unknown, 1);
        return;
    }
    for (int64_t i = 0; i < length; i++)
        if (text[i] == ' ') /* the mark's three bytes */
            for (int k = 0; k < MARK_BYTES; k++)
                buffer_ids_append(out, &p->byte_ids[MARK[k] & 0xFF], 1);
        else
            buffer_ids_append(out, &p->byte_ids[text[i]], 1);
}

/* Extends the best path to `start` by one piece. Positions are reached in order: a new one has no path yet. */
static inline void offer_path(pieces_scratch *s, int64_t start, int64_t end, float score, int32_t id)
{
    while (s->reached < end)
        s->paths[++s->reached - s->base].start = -1;
    path *to = &s->paths[end - s->base];
    if (to->start < 0 || score > to->score)
        *to = (path){score, (int32_t)(start - s->base), id};
}

/* A long path's score has few bits left for the pieces to come: below LOWEST_SCORE the library (since 0.2.1) subtracts
 * the current position's score from all known ones. */
static void count_anew(pieces_scratch *s, int64_t at)
{
    path *first = &s->paths[at - s->base];
    float score = first->score;
    for (int64_t i = 0; i <= s->reached - at; i++)
        first[i].score -= first[i].start >= 0 || i == 0 ? score : 0.0F;
}

/* Extends paths at a character's beginning, which a path always reaches: by every piece that begins there, and by the
 * character as an unknown one if it is no piece itself. Returns its length. */
static int64_t extend_paths(const pieces *p, pieces_scratch *s, int64_t start)
{
    const uint8_t *text = (const uint8_t *)s->normal.bytes;
    if (s->paths[start - s->base].score < LOWEST_SCORE)
        count_anew(s, start);
    float so_far = s->paths[start - s->base].score;
    uint32_t code, node = 0;
    int64_t step = unicode_decode(text + start, &code);
    bool single = false;
    for (int64_t at = start; at < s->normal.length && (node = trie_child(p->trie, node, text[at])); at++) {
        int32_t id = p->trie->nodes[node].value;
        if (id < 0)
            continue;
        offer_path(s, start, at + 1, p->model->scores[id] + so_far, id);
        single |= at + 1 == start + step;
    }
    if (!single)
        offer_path(s, start, start + step, p->unknown_score + so_far, -1);
    return step;
}

/* Appends the ids of the best path from s->base to `end`, and restarts there. */
static void put_path(const pieces *p, pieces_scratch *s, buffer_ids *out, int64_t end, bool *unknown)
{
    const uint8_t *text = (const uint8_t *)s->normal.bytes + s->base;
    path *paths = s->paths;
    float score = paths[end - s->base].score;
    int32_t next = -1;
    for (int32_t at = (int32_t)(end - s->base); at > 0;) { /* reverses the links, to each piece's end */
        int32_t start = paths[at].start;
        paths[at].start = next;
        next = at;
        at = start;
    }
    for (int32_t start = 0, at = next; at > 0; start = at, at = paths[at].start) {
        if (paths[at].id >= 0)
            buffer_ids_append(out, &paths[at].id, 1);
        else
            put_unknown(p, out, text + start, at - start, *unknown);
        *unknown = paths[at].id < 0;
    }
    s->base = end;
    paths[0] = (path){.score = score, .start = -1};
}

/* If no piece crosses a position, every path goes through it: the path up to it is final. So a long text needs the
 * memory of a block. */
static void encode_unigram(const pieces *p, pieces_scratch *s, buffer_ids *out)
{
    bool unknown = false;
    s->base = s->reached = 0;
    for (int64_t at = 0; at < s->normal.length;) {
        if (at == s->reached && at - s->base >= BLOCK)
            put_path(p, s, out, at, &unknown);
        if (at - s->base + LONGEST >= s->room) {
            s->room = 2 * (at - s->base + LONGEST);
            MUST(s->room < INT32_MAX, "%lld bytes that no piece ends in", (long long)(at - s->base));
            s->paths = must_realloc(s->paths, (unsigned long)s->room * sizeof *s->paths);
        }
        if (at == 0)
            s->paths[0] = (path){.score = 0.0F, .start = -1};
        at += extend_paths(p, s, at);
    }
    put_path(p, s, out, s->normal.length, &unknown);
}

/* Merges known characters; unknown ones separate them. */
static void merge_word(const pieces *p, pieces_scratch *s, buffer_ids *out, const uint8_t *word, int64_t length)
{
    buffer_ids *symbols = &s->symbols;
    symbols->count = 0;
    bool unknown = false;
    uint32_t code;
    for (int64_t at = 0, step; at < length; at += step) {
        step = unicode_decode(word + at, &code);
        int32_t id = find_piece(p, (const char *)word + at, step);
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
    bool apart = p->words_apart && p->falls_back; /* unknown characters in a row may cross words */
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
    normalize_text(p->model, &s->normal, text, length);
    if (s->normal.length == 0)
        return;
    if (p->merges)
        encode_words(p, s, out);
    else
        encode_unigram(p, s, out);
}
