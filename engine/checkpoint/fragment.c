#include "engine/checkpoint/fragment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/crc32c.h"
#include "memory/log.h"
#include "memory/scope.h"

/* ---- writing ---- */

char *fragment_head(const char *kind, const fragment_owner *owner)
{
    return must_format("%s 1 %s %s %d %d\n", kind, *owner->run ? owner->run : "-", owner->name, owner->rank,
                       owner->ranks);
}

status fragment_put_file(direct *out, const manifest_file *file)
{
    MUST(!strpbrk(file->name, "\n"), "a name of two lines");
    return direct_print(out, "file %lld %08x %s\n", (long long)file->bytes, file->crc32c, file->name);
}

status fragment_put_tensor(direct *out, const char *section, dtype type, const rectangle *of)
{
    MUST(!strpbrk(of->name, "\n"), "a name of two lines");
    TRY(direct_print(out, "tensor %s %d", dtype_name(type), of->dims));
    for (int d = 0; d < of->dims; d++)
        TRY(direct_print(out, " %lld", (long long)of->global[d]));
    TRY(direct_print(out, " %s ", section));
    TRY(direct_write(out, of->name, (int64_t)strlen(of->name), NULL)); /* of any length */
    return direct_print(out, "\n");
}

status fragment_put_piece(direct *out, int dims, const manifest_piece *p)
{
    TRY(direct_print(out, "piece %d %lld %lld %08x", p->file, (long long)p->offset, (long long)p->bytes, p->crc32c));
    for (int i = 0; i < 2 * dims; i++)
        TRY(direct_print(out, " %lld", (long long)(i < dims ? p->part.start[i] : p->part.size[i - dims])));
    return direct_print(out, "\n");
}

int fragment_order(const char *section, const char *name, const char *other_section, const char *other_name)
{
    int order = strcmp(section, other_section);
    return order ? order : strcmp(name, other_name);
}

/* ---- reading ---- */

static status fail_damaged(const fragment *f)
{
    return status_fail(STATUS_FAILED, "%s is no fragment that this phalanx wrote", f->path);
}

status fragment_parse(fragment *out, const char *text, int64_t bytes, const char *path, const fragment_owner *owner)
{
    char tail[FRAGMENT_TAIL_BYTES + 1];
    AUTO_FREE char *head = fragment_head("fragment", owner);
    int64_t body = bytes - FRAGMENT_TAIL_BYTES, length = (int64_t)strlen(head);
    if (body >= 0)
        snprintf(tail, sizeof tail, FRAGMENT_TAIL, crc32c(0, text, body));
    if (body < 0 || memcmp(tail, text + body, FRAGMENT_TAIL_BYTES) != 0)
        return status_fail(STATUS_FAILED, "%s: damaged or truncated: its checksum does not match", path);
    if (body < length || memcmp(head, text, (size_t)length) != 0)
        return status_fail(STATUS_FAILED,
                           "%s is not of this run's save: two runs write into one folder (give each a run.folder of "
                           "its own)",
                           path);
    *out = (fragment){.path = path, .at = text + length, .end = text + body};
    return STATUS_OK;
}

status fragment_open(fragment *out, const char *path, const fragment_owner *owner)
{
    RELEASED_BY(mapping_close) mapping file = {0};
    TRY(mapping_open(&file, path));
    TRY(fragment_parse(out, (const char *)file.data, file.bytes, path, owner));
    out->file = file;
    file = (mapping){0};
    return STATUS_OK;
}

void fragment_close(fragment *f)
{
    mapping_close(&f->file);
    *f = (fragment){0};
}

/* Takes the first word of the current line if it is this one. */
static bool take_word(const char **at, const char *word)
{
    size_t length = strlen(word);
    bool here = !strncmp(*at, word, length) && (*at)[length] == ' ';
    *at += here ? length + 1 : 0;
    return here;
}

static bool take_numbers(const char **at, int64_t *out, int count, int base)
{
    bool good = true;
    for (int i = 0; i < count && good; i++) {
        char *end;
        out[i] = (int64_t)strtoll(*at, &end, base);
        good = end > *at && (*end == ' ' || *end == '\n');
        *at = end + (good && *end == ' ');
    }
    return good;
}

/* Takes the word up to `end` (a space or the line's end), and moves past it. */
static bool take_text(const char **at, const char **word, int *length, char end)
{
    const char *stop = strpbrk(*at, " \n");
    if (end == '\n')
        stop = strchr(*at, '\n');
    if (!stop || *stop != end)
        return false;
    *word = *at;
    *length = (int)(stop - *at);
    *at = stop + 1;
    return true;
}

status fragment_next_file(fragment *f, manifest_file *out, bool *there)
{
    const char *word;
    int length;
    int64_t crc;
    *there = f->at < f->end && take_word(&f->at, "file");
    if (!*there)
        return STATUS_OK;
    if (!take_numbers(&f->at, &out->bytes, 1, 10) || !take_numbers(&f->at, &crc, 1, 16) ||
        !take_text(&f->at, &word, &length, '\n') || length >= FRAGMENT_NAME)
        return fail_damaged(f);
    snprintf(out->name, FRAGMENT_NAME, "%.*s", length, word);
    out->crc32c = (uint32_t)crc;
    out->has_crc32c = true;
    return STATUS_OK;
}

/* Checks that sizes are at least 1 and that their bytes can be counted. */
static bool is_possible(const int64_t *global, int dims, dtype type)
{
    int64_t bytes = dtype_bytes(type);
    for (int d = 0; d < dims; d++)
        if (global[d] < 1 || __builtin_mul_overflow(bytes, global[d], &bytes))
            return false;
    return true;
}

static bool read_entry(fragment_entry *out, const char **at)
{
    const char *word;
    int length;
    int64_t dims;
    char type[32];
    *out = (fragment_entry){0};
    if (!take_word(at, "tensor") || !take_text(at, &word, &length, ' ') || length >= (int)sizeof type)
        return false;
    snprintf(type, sizeof type, "%.*s", length, word);
    if (!dtype_find(&out->type, type) || !take_numbers(at, &dims, 1, 10) || dims < 0 || dims > BOX_DIMS)
        return false;
    out->dims = (int)dims;
    return take_numbers(at, out->global, out->dims, 10) && is_possible(out->global, out->dims, out->type) &&
           take_text(at, &out->section, &out->section_length, ' ') &&
           take_text(at, &out->name, &out->name_length, '\n');
}

/* Moves to the fragment's next tensor, if there is one. */
static status next_tensor(fragment *f)
{
    f->has_next = f->at < f->end;
    return !f->has_next || read_entry(&f->next, &f->at) ? STATUS_OK : fail_damaged(f);
}

/* Orders as fragment_order does. The name follows the section, whose characters are all above the space between. */
static int compare_entries(const fragment_entry *a, const fragment_entry *b)
{
    int a_length = a->section_length + 1 + a->name_length, b_length = b->section_length + 1 + b->name_length;
    int order = memcmp(a->section, b->section, (size_t)(a_length < b_length ? a_length : b_length));
    return order ? order : (a_length > b_length) - (a_length < b_length);
}

static bool read_piece(manifest_piece *p, const char **at, const fragment_entry *of, int first_file)
{
    int dims = of->dims;
    int64_t file = 0, crc = 0;
    *p = (manifest_piece){0};
    bool good = take_numbers(at, &file, 1, 10) && take_numbers(at, &p->offset, 1, 10) &&
                take_numbers(at, &p->bytes, 1, 10) && take_numbers(at, &crc, 1, 16) &&
                take_numbers(at, p->part.start, dims, 10) && take_numbers(at, p->part.size, dims, 10) && **at == '\n' &&
                file >= 0 && file < INT32_MAX - first_file && p->offset >= 0 && p->bytes >= 0;
    for (int d = 0; d < dims && good; d++)
        good = p->part.start[d] >= 0 && p->part.size[d] >= 1 && p->part.start[d] < of->global[d] &&
               p->part.size[d] <= of->global[d] - p->part.start[d];
    p->file = (int)file + first_file;
    p->crc32c = (uint32_t)crc;
    *at += good;
    return good;
}

/* ---- merging ---- */

/* Adds one fragment's pieces of a tensor, if that is its next one. */
static status take_pieces(manifest_tensor *t, fragment *f, const fragment_entry *wanted, fragment_pieces *pieces)
{
    while (f->has_next && compare_entries(&f->next, wanted) == 0) {
        if (f->next.type != wanted->type || f->next.dims != wanted->dims ||
            memcmp(f->next.global, wanted->global, sizeof wanted->global) != 0)
            return status_fail(STATUS_FAILED, "tensor %s/%s: two pieces disagree about its shape or dtype", t->section,
                               t->name);
        for (; take_word(&f->at, "piece"); t->count++) {
            if (t->count == pieces->capacity) {
                pieces->capacity = t->count ? 2 * t->count : 64;
                pieces->item = must_realloc(pieces->item, (unsigned long)pieces->capacity * sizeof *pieces->item);
            }
            if (!read_piece(&pieces->item[t->count], &f->at, &f->next, f->first_file))
                return fail_damaged(f);
        }
        TRY(next_tensor(f));
    }
    return STATUS_OK;
}

static status merge_tensor(direct *out, fragment *all, int count, const fragment_entry *next, bool first,
                           fragment_pieces *pieces, const char *where)
{
    char section[64], name[1024];
    if (next->section_length >= (int)sizeof section || next->name_length >= (int)sizeof name)
        return status_fail(STATUS_FAILED, "%s: a tensor's name of %d bytes is too long", where, next->name_length);
    snprintf(section, sizeof section, "%.*s", next->section_length, next->section);
    snprintf(name, sizeof name, "%.*s", next->name_length, next->name);
    const fragment_entry wanted = *next; /* `next` advances with its fragment */
    manifest_tensor t = {.section = section, .name = name, .type = wanted.type, .dims = wanted.dims};
    memcpy(t.global, wanted.global, sizeof t.global);
    for (int i = 0; i < count; i++)
        TRY(take_pieces(&t, &all[i], &wanted, pieces));
    t.pieces = pieces->item;
    TRY(manifest_check_tensor(&t, where));
    return manifest_text_tensor(out, &t, first);
}

status fragment_merge(direct *out, fragment *all, int count, fragment_pieces *pieces, const char *where)
{
    int files = 0;
    for (int i = 0; i < count; i++) {
        char name[FRAGMENT_NAME];
        manifest_file file = {.name = name};
        bool there;
        all[i].first_file = files;
        TRY(fragment_next_file(&all[i], &file, &there));
        for (; there; files++) {
            TRY(manifest_text_file(out, &file, files == 0));
            TRY(fragment_next_file(&all[i], &file, &there));
        }
        TRY(next_tensor(&all[i]));
    }
    for (bool first = true;; first = false) {
        const fragment_entry *next = NULL; /* the smallest; NULL if every fragment is at its end */
        for (int i = 0; i < count; i++)
            if (all[i].has_next && (!next || compare_entries(&all[i].next, next) < 0))
                next = &all[i].next;
        if (!next)
            return first ? status_fail(STATUS_FAILED, "%s: no rank has a tensor to save", where) : STATUS_OK;
        TRY(merge_tensor(out, all, count, next, first, pieces, where));
    }
}
