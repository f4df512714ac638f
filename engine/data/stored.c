#include "engine/data/stored.h"

#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"

struct stored_set {
    blocks_object *bin;
    blocks_file idx;
    bool failed;
    stored_set *next;
};

struct stored {
    char *folder; /* NULL: none is known */
    int64_t bytes;
    int sharers;
    blocks_use use;
    blocks *blocks; /* NULL: no data set is open */
    stored_set *sets;
};

status stored_look(bool *there, const char *prefix)
{
    AUTO_FREE char *url = must_format("%s.idx", prefix), *key = NULL;
    AUTO(object_store) *store = NULL;
    object_facts o = {0};
    *there = false;
    TRY(object_open_url(&store, &key, url, NULL));
    TRY(object_look(&o, store, key));
    *there = o.there;
    return STATUS_OK;
}

/* Returns the folder that the XDG base directories give, used if data.cache is not set. */
static char *default_folder(void)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && *cache == '/')
        return must_format("%s/phalanx/blocks", cache);
    return home && *home == '/' ? must_format("%s/.cache/phalanx/blocks", home) : NULL;
}

stored *stored_open(const config *c, int sharers)
{
    stored *r = must_calloc(1, sizeof *r);
    r->folder = c->data.cache ? must_strdup(c->data.cache) : default_folder();
    r->bytes = c->data.cache_size;
    r->sharers = sharers;
    return r;
}

stored *stored_open_once(void)
{
    stored *r = must_calloc(1, sizeof *r);
    r->use = BLOCKS_ONCE;
    return r;
}

void stored_close(stored *r)
{
    if (!r)
        return;
    blocks_close(r->blocks);
    for (stored_set *set = r->sets, *next; set; set = next) {
        next = set->next;
        blocks_file_close(&set->idx);
        free(set);
    }
    free(r->folder);
    free(r);
}

static status read_bin(void *context, void *to, int64_t offset, int64_t bytes)
{
    stored_set *set = context;
    status s = blocks_read(set->bin, to, offset, bytes);
    set->failed = s != STATUS_OK;
    return s;
}

status stored_indexed(indexed **out, stored_set **set, stored *r, const char *prefix, bool scattered)
{
    if (!r->blocks)
        TRY(blocks_open(&r->blocks, &(blocks_settings){
                                        .folder = r->folder, .bytes = r->bytes, .sharers = r->sharers, .use = r->use}));
    stored_set *made = *set = must_calloc(1, sizeof *made);
    made->next = r->sets;
    r->sets = made;
    AUTO_FREE char *idx = must_format("%s.idx", prefix), *bin = must_format("%s.bin", prefix);
    TRY(blocks_whole(&made->idx, r->blocks, idx));
    TRY(blocks_find(&made->bin, r->blocks, bin, BLOCKS_BYTES));
    /* Small blocks for random samples of a data set larger than the cache: most of a large block would go unread. */
    if (scattered && blocks_bytes(made->bin) > r->bytes)
        TRY(blocks_find(&made->bin, r->blocks, bin, BLOCKS_SMALL));
    const indexed_source source = {
        .read = read_bin, .context = made, .bytes = blocks_bytes(made->bin), .version = blocks_version(made->bin)};
    return indexed_parse_source(out, made->idx.data, made->idx.bytes, &source, prefix);
}

bool stored_expect(stored_set *set, const indexed *data, int64_t first, int64_t count)
{
    int64_t offset, bytes;
    indexed_byte_range(data, &offset, &bytes, first, count);
    return blocks_expect(set->bin, offset, bytes);
}

void stored_expect_nothing(stored *r)
{
    if (r->blocks)
        blocks_expect_nothing(r->blocks);
}

bool stored_failed(const stored_set *set)
{
    return set->failed;
}

blocks_counts stored_counted(const stored *r)
{
    return r->blocks ? blocks_counted(r->blocks) : (blocks_counts){0};
}

const char *stored_folder(const stored *r)
{
    return r->folder;
}

status stored_reader_open(stored_reader *out, const char *prefix)
{
    stored_set *set;
    *out = (stored_reader){0};
    if (!object_is_url(prefix))
        return indexed_open(&out->data, prefix);
    out->from = stored_open_once();
    out->from->use = BLOCKS_IN_ORDER;
    status s = stored_indexed(&out->data, &set, out->from, prefix, false);
    if (s != STATUS_OK)
        stored_reader_close(out);
    return s;
}

void stored_reader_close(stored_reader *r)
{
    indexed_close(r->data);
    stored_close(r->from);
    *r = (stored_reader){0};
}
