/* Every reader with every one of its allocations failing, one at a time (of thousands, some): it says that it has no
 * memory, in a status or as it dies, or does without. It never crashes, never gives another result than with memory,
 * and never takes a file that is there for none.
 *
 * The program starts itself under build/tests/allocation_faults.so. A child of it reads, with the n-th allocation
 * failing; n rises until none has failed. */
#include <fcntl.h>
#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/host/causes.h"
#include "engine/run/choices.h"
#include "engine/config/config.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint_find.h"
#include "engine/system/crc32c.h"
#include "engine/files/indexed.h"
#include "engine/system/mapping.h"
#include "engine/files/sharded.h"
#include "engine/text/documents.h"
#include "engine/tokenizer/pieces.h"
#include "engine/tokenizer/sentencepiece_model.h"
#include "engine/data/tokenizer_files.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "models/huggingface.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/skip.h"
#include "tools/supervise/hosts.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

static const char once[] = "PHALANX_ALLOCATION_ONCE";
static const char text[] = "It's a t\xC3\xA9st: 123  <s>\n\n  aaaaaaaa";

/* What has been read, as a number: a sum over all that is told. */
typedef struct digest {
    uint32_t sum;
} digest;

static void tell(digest *d, const void *bytes, size_t count)
{
    d->sum = crc32c(d->sum, bytes, (int64_t)count);
}

static void tell_text(digest *d, const char *words)
{
    tell(d, words, strlen(words) + 1);
}

/* ---- readers
 * ------------------------------------------------------------------------------------------------------ */

static status read_config(digest *d, const char *top)
{
    config c;
    char key[] = "train.steps=7", *keys[] = {key};
    (void)top;
    TRY(config_load(&c, "models/configs/demo.yaml", 1, keys));
    AUTO_FREE char *written = config_text(&c);
    tell_text(d, written);
    config_free(&c);
    return STATUS_OK;
}

static status read_huggingface(digest *d, const char *top)
{
    model_shape shape;
    json_t *tokens = NULL;
    mapping m;
    (void)top;
    TRY(mapping_open(&m, "tests/golden/models/qwen3/config.json"));
    status s = huggingface_parse(&shape, &tokens, (const char *)m.data, (size_t)m.bytes, "config.json");
    mapping_close(&m);
    if (s == STATUS_OK)
        tell(d, &(int64_t[]){shape.layers, shape.hidden_size, shape.vocab_size}, 3 * sizeof(int64_t));
    json_decref(tokens);
    return s;
}

static status read_sharded(digest *d, const char *top)
{
    sharded *s;
    AUTO_FREE char *folder = workfolder_path(top, "sharded");
    status result = sharded_open(&s, folder);
    TRY(result);
    for (int i = 0; i < sharded_count(s); i++)
        tell_text(d, sharded_at(s, i)->tensor->name);
    sharded_close(s);
    return STATUS_OK;
}

static status read_checkpoint(digest *d, const char *top)
{
    checkpoint *c;
    (void)top;
    TRY(checkpoint_open(&c, "tests/golden/checkpoint"));
    status s = checkpoint_verify(c);
    for (int i = 0; s == STATUS_OK && i < checkpoint_tensors(c); i++)
        tell_text(d, checkpoint_at(c, i)->name);
    tell(d, &(int64_t){json_integer_value(json_object_get(checkpoint_meta(c), "step"))}, sizeof(int64_t));
    checkpoint_close(c);
    return s;
}

static status read_offers(digest *d, const char *top)
{
    checkpoint_offers o;
    char *folder = workfolder_path(top, "run/checkpoints"), *latest = NULL;
    status s = checkpoint_offers_find(&o, folder);
    if (s == STATUS_OK) {
        for (int i = 0; i < o.count; i++)
            tell_text(d, o.folder[i]);
        tell_text(d, o.trouble ? o.trouble : "");
        checkpoint_offers_free(&o);
        s = checkpoint_resolve(&latest, folder);
    }
    if (s == STATUS_OK)
        tell_text(d, latest);
    free(latest);
    free(folder);
    return s;
}

static status read_data(digest *d, const char *top)
{
    indexed *x;
    indexed_identity identity;
    int32_t tokens[64];
    char *prefix = workfolder_path(top, "data");
    status s = indexed_open(&x, prefix);
    free(prefix);
    TRY(s);
    indexed_identify(&identity, x);
    s = indexed_read(x, tokens, 100, 64, 131);
    tell(d, tokens, sizeof tokens);
    tell(d, &(int64_t[]){identity.tokens, identity.bin_crc32c, identity.idx_crc32c}, 3 * sizeof(int64_t));
    indexed_close(x);
    return s;
}

static status read_tokenizer(digest *d, const char *top)
{
    tokenizer *t;
    buffer_ids ids = {0};
    char *path = workfolder_path(top, "tokenizer.json");
    status s = tokenizer_files_open(&t, path);
    free(path);
    TRY(s);
    tokenizer_scratch *scratch = tokenizer_scratch_open(t);
    s = tokenizer_encode(t, scratch, &ids, text, sizeof text - 1, 0);
    if (s == STATUS_OK)
        tell(d, ids.ids, (size_t)ids.count * sizeof *ids.ids);
    buffer_ids_free(&ids);
    tokenizer_scratch_close(scratch);
    tokenizer_close(t);
    return s;
}

/* Our own reader and encoder: what the library does is its own affair. */
static status read_pieces(digest *d, const char *top)
{
    sentencepiece_model *m;
    mapping file;
    buffer_ids ids = {0};
    char *path = workfolder_path(top, "tokenizer.model");
    status s = mapping_open(&file, path);
    free(path);
    TRY(s);
    s = sentencepiece_model_open(&m, file.data, file.bytes, "tokenizer.model");
    mapping_close(&file);
    TRY(s);
    pieces *p = pieces_open(m);
    pieces_scratch *scratch = pieces_scratch_open();
    pieces_encode(p, scratch, &ids, text, sizeof text - 1);
    tell(d, ids.ids, (size_t)ids.count * sizeof *ids.ids);
    buffer_ids_free(&ids);
    pieces_scratch_close(scratch);
    pieces_close(p);
    sentencepiece_model_close(m);
    return STATUS_OK;
}

static status read_documents(digest *d, const char *top)
{
    documents *all;
    buffer bytes = {0}, scratch = {0};
    bool more = true;
    char *input = workfolder_path(top, "text.jsonl");
    status s = documents_open(&all, &(documents_settings){0}, &input, 1);
    for (documents_raw raw; s == STATUS_OK && (s = documents_next(all, &bytes, &raw, &more)) == STATUS_OK && more;) {
        const char *found;
        int64_t length;
        s = documents_text(all, &found, &length, &scratch, bytes.bytes + raw.offset, &raw);
        if (s == STATUS_OK)
            tell(d, found, (size_t)length);
    }
    documents_close(all);
    buffer_free(&scratch);
    buffer_free(&bytes);
    free(input);
    return s;
}

static status read_choices(digest *d, const char *top)
{
    choices c = {0};
    AUTO_FREE char *path = workfolder_path(top, "tuning.json");
    status s = choices_read(&c, path);
    if (s == STATUS_OK) {
        AUTO_FREE char *written = choices_text(&c);
        tell_text(d, written);
    }
    choices_free(&c);
    return s;
}

static status read_hosts(digest *d, const char *top)
{
    hosts h;
    AUTO_FREE char *path = workfolder_path(top, "hosts");
    status s = hosts_read(&h, path);
    TRY(s);
    tell(d, &(int){hosts_slots(&h)}, sizeof(int));
    hosts_free(&h);
    return STATUS_OK;
}

static status read_causes(digest *d, const char *top)
{
    AUTO_FREE char *run = workfolder_path(top, "run");
    cause c = causes_read(run, 0, "");
    tell_text(d, c.words);
    tell(d, &(int64_t){causes_progress(run)}, sizeof(int64_t));
    return STATUS_OK;
}

/* ---- one allocation after another
 * --------------------------------------------------------------------------------- */

typedef status reader(digest *d, const char *top);

/* How a child ends. */
enum { ALL_SERVED = 10, DOES_WITHOUT, REFUSES, DIES_OF_IT, OTHER_RESULT, SAYS_NOTHING };

static void die_of_memory(void *context, const char *words)
{
    (void)context;
    _exit(strstr(words, "memory") ? DIES_OF_IT : SAYS_NOTHING);
}

static _Noreturn void be_child(reader *read, const char *top, int n, uint32_t expected)
{
    char words[16];
    digest d = {0};
    int file = open(getenv(once), O_WRONLY | O_CREAT | O_TRUNC, 0600), nothing = open("/dev/null", O_WRONLY);
    int length = snprintf(words, sizeof words, "%d", n);
    static const int caught[] = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL}; /* by cmocka */
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++)
        signal(caught[i], SIG_DFL);
    dup2(nothing, 2);
    log_set_last_words(die_of_memory, NULL);
    bool ready = write(file, words, (size_t)length) == length;
    status s = read(&d, top);
    bool served = unlink(getenv(once)) == 0;
    if (s == STATUS_OK && d.sum != expected)
        _exit(OTHER_RESULT);
    if (s != STATUS_OK)
        dprintf(1, "# %s\n", status_message());
    _exit(!ready || (s != STATUS_OK && !*status_message()) ? SAYS_NOTHING
          : served                                         ? ALL_SERVED
          : s == STATUS_OK                                 ? DOES_WITHOUT
                                                           : REFUSES);
}

static void fails_well(void **state, reader *read, const char *name)
{
    int ended[SAYS_NOTHING + 1] = {0};
    digest d = {0};
    unlink(getenv(once));
    if (SANITIZED)
        skip_because("a sanitizer: its allocator and the spy exclude each other");
    if (read(&d, *state) != STATUS_OK)
        fail_msg("%s", status_message());
    for (int n = 0; !ended[ALL_SERVED]; n += 1 + n / 12) { /* tables of characters take many thousands */
        int how;
        fflush(stdout);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            be_child(read, *state, n, d.sum);
        assert_int_equal(waitpid(child, &how, 0), child);
        unlink(getenv(once));
        int code = WIFEXITED(how) ? WEXITSTATUS(how) : 0;
        if (code < ALL_SERVED || code > DIES_OF_IT)
            fail_msg("%s, allocation %d fails: %s (%d)", name, n,
                     WIFSIGNALED(how)       ? "a signal ends the process"
                     : code == OTHER_RESULT ? "another result"
                                            : "it does not say that it has no memory",
                     WIFSIGNALED(how) ? WTERMSIG(how) : code);
        ended[code]++;
    }
    printf("%s: %d allocations that failed: %d refused, %d died of, %d done without\n", name,
           ended[REFUSES] + ended[DIES_OF_IT] + ended[DOES_WITHOUT], ended[REFUSES], ended[DIES_OF_IT],
           ended[DOES_WITHOUT]);
    assert_true(ended[REFUSES] + ended[DIES_OF_IT] > 0);
}

#define READER(name)                                                                                                   \
    static void name##_without_memory_say_so_or_are_the_same(void **state)                                             \
    {                                                                                                                  \
        fails_well(state, read_##name, #name);                                                                         \
    }
READER(config)
READER(huggingface)
READER(sharded)
READER(checkpoint)
READER(offers)
READER(data)
READER(tokenizer)
READER(pieces)
READER(documents)
READER(choices)
READER(hosts)
READER(causes)

/* ---- what is read
 * ------------------------------------------------------------------------------------------------- */

static void copy(const char *top, const char *from, int64_t skip, const char *to)
{
    int64_t bytes;
    AUTO_FREE uint8_t *data = workfolder_read(from, &bytes);
    AUTO_FREE char *path = workfolder_path(top, to);
    workfolder_write(path, data + skip, bytes - skip);
}

static int write_files(void **state)
{
    if (workfolder_setup(state))
        return -1;
    const char *top = *state;
    char *files =
        must_format("cd %s && mkdir -p sharded run/checkpoints/step-00000004 run/checkpoints/step-00000008", top);
    if (system(files) != 0)
        return -1;
    free(files);
    copy(top, "tests/golden/reference.safetensors", 0, "sharded/model.safetensors");
    copy(top, "tests/golden/checkpoint/manifest.json", 0, "run/checkpoints/step-00000004/manifest.json");
    copy(top, "tests/golden/checkpoint/manifest.json", 0, "run/checkpoints/step-00000008/manifest.json");
    copy(top, "tests/golden/fuzz/fuzz_tokenizer/none.json", 1, "tokenizer.json");
    copy(top, "tests/golden/fuzz/fuzz_tokenizer/mapped.model", 1, "tokenizer.model");
    copy(top, "tests/golden/fuzz/fuzz_documents/gzip", 1, "text.jsonl");
    copy(top, "tests/golden/fuzz/fuzz_run/choices", 1, "tuning.json");
    copy(top, "tests/golden/fuzz/fuzz_run/hosts", 1, "hosts");
    copy(top, "tests/golden/fuzz/fuzz_run/page", 1, "run/metrics.jsonl");
    copy(top, "tests/golden/fuzz/fuzz_run/page", 1, "run/incidents.jsonl");
    AUTO_FREE char *latest = workfolder_path(top, "run/checkpoints/latest"), *prefix = workfolder_path(top, "data");
    runs_write_text(latest, "step-00000008\n");
    runs_write_data(prefix, 131, 4000, 1);
    AUTO_FREE char *trap = workfolder_path(top, "trap");
    setenv(once, trap, 1);
    return 0;
}

int main(int argc, char **argv)
{
    (void)argc;
    if (!SANITIZED && !getenv("LD_PRELOAD")) {
        char *spy = launch_beside("allocation_faults.so");
        setenv("LD_PRELOAD", spy, 1);
        execv("/proc/self/exe", argv);
        MUST(false, "cannot start %s again", argv[0]);
    }
    json_set_alloc_funcs(must_alloc, free); /* as the program does */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config_without_memory_say_so_or_are_the_same),
        cmocka_unit_test(huggingface_without_memory_say_so_or_are_the_same),
        cmocka_unit_test(sharded_without_memory_say_so_or_are_the_same),
        cmocka_unit_test(checkpoint_without_memory_say_so_or_are_the_same),
        cmocka_unit_test(offers_without_memory_say_so_or_are_the_same),
        cmocka_unit_test(data_without_memory_say_so_or_are_the_same),
        cmocka_unit_test(tokenizer_without_memory_say_so_or_are_the_same),
        cmocka_unit_test(pieces_without_memory_say_so_or_are_the_same),
        cmocka_unit_test(documents_without_memory_say_so_or_are_the_same),
        cmocka_unit_test(choices_without_memory_say_so_or_are_the_same),
        cmocka_unit_test(hosts_without_memory_say_so_or_are_the_same),
        cmocka_unit_test(causes_without_memory_say_so_or_are_the_same),
    };
    return cmocka_run_group_tests(tests, write_files, workfolder_teardown);
}
