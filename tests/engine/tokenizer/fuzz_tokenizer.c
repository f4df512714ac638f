/* libFuzzer: whatever a tokenizer file says, it is refused or it encodes and decodes without touching what is not its
 * own. The first byte chooses the reader: even, tokenizer.json; odd, a SentencePiece model. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/pieces.h"
#include "engine/tokenizer/sentencepiece.h"
#include "engine/tokenizer/sentencepiece_model.h"
#include "engine/data/tokenizer_files.h"
#include "memory/log.h"
#include "memory/scope.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char text[] =
    "It's a t\xC3\xA9st: 123 \xE6\x88\x91\xE4\xBB\xAC  <s>\n\n  aaaaaaaaaaaaaaaa e\xCC\x81 <|endoftext|>";

static void try_json(const char *bytes, size_t size)
{
    bpe *b;
    if (bpe_json_open(&b, bytes, size, "fuzz") != STATUS_OK)
        return;
    bpe_scratch *s = bpe_scratch_open();
    buffer_ids ids = {0};
    if (bpe_encode(b, s, &ids, text, sizeof text - 1, false) == STATUS_OK)
        for (int64_t i = 0; i < ids.count; i++)
            MUST(vocabulary_flags(b->vocabulary, ids.ids[i]), "the id %d is no token", ids.ids[i]);
    buffer_ids_free(&ids);
    bpe_scratch_close(s);
    bpe_close(b);
}

static void try_model(const char *bytes, int64_t size)
{
    sentencepiece_model *m;
    sentencepiece_processor *p;
    if (sentencepiece_model_open(&m, bytes, size, "fuzz") != STATUS_OK)
        return;
    if (sentencepiece_open(&p, bytes, size, "fuzz") == STATUS_OK) {
        buffer_ids ids = {0};
        if (sentencepiece_encode(p, &ids, text, sizeof text - 1) == STATUS_OK)
            for (int64_t i = 0; i < ids.count; i++)
                MUST(vocabulary_flags(m->pieces, ids.ids[i]), "the id %d is no piece", ids.ids[i]);
        buffer_ids_free(&ids);
        sentencepiece_close(p);
    }
    tokenizer *t;
    if (tokenizer_open(&t, &(tokenizer_source){.file = bytes, .length = size}, "fuzz") == STATUS_OK) {
        buffer json = {0};
        (void)tokenizer_json_write(&json, t);
        buffer_free(&json);
        tokenizer_close(t);
    }
    pieces *own = pieces_open(m);
    if (own) {
        pieces_scratch *s = pieces_scratch_open();
        buffer_ids ids = {0};
        pieces_encode(own, s, &ids, text, sizeof text - 1);
        for (int64_t i = 0; i < ids.count; i++)
            MUST(vocabulary_flags(m->pieces, ids.ids[i]), "the id %d is no piece", ids.ids[i]);
        buffer_ids_free(&ids);
        pieces_scratch_close(s);
        pieces_close(own);
    }
    sentencepiece_model_close(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    AUTO_FREE char *bytes = must_alloc(size);
    memcpy(bytes, data + 1, size - 1);
    if (data[0] & 1)
        try_model(bytes, (int64_t)size - 1);
    else
        try_json(bytes, size - 1);
    return 0;
}
