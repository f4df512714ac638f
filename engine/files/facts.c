#include "engine/files/facts.h"

#include <inttypes.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"

static void write_key(fact_writer *f, const char *key)
{
    const char *name = key + strspn(key, " \n");
    if (f->more)
        fputc(',', f->out);
    fprintf(f->out, "%.*s", (int)(name - key), key);
    if (f->more && name == key)
        fputc(' ', f->out);
    if (*name)
        fprintf(f->out, "\"%s\": ", name);
    f->more = true;
}

void facts_open(fact_writer *f, const char *key, char bracket)
{
    write_key(f, key);
    fputc(bracket, f->out);
    f->more = false;
}

void facts_close(fact_writer *f, char bracket)
{
    fputc(bracket, f->out);
    f->more = true;
}

static void write_json(FILE *out, const json_t *value)
{
    AUTO_FREE char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    fputs(text ? text : "null", out);
}

void facts_write(fact_writer *f, const fact *list, size_t count)
{
    for (const fact *at = list; at < list + count; at++) {
        write_key(f, at->key);
        if (at->type == FACT_INTEGER) {
            fprintf(f->out, "%" PRId64, at->value.integer);
        } else if (at->type == FACT_REAL) {
            fprintf(f->out, "%.*g", f->digits ? f->digits : 17, at->value.real);
        } else if (at->type == FACT_JSON) {
            write_json(f->out, at->value.json);
        } else {
            json_auto_t *text = json_string(at->value.text);
            MUST(text, "%s is no text: bytes that are no UTF-8", at->key);
            write_json(f->out, text);
        }
    }
}
