/* phalanx generate: continues prompts with a trained model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/infer/inference.h"
#include "memory/bits.h"
#include "memory/log.h"
#include "parallel/comm/agree.h"
#include "memory/scope.h"
#include "tools/options.h"
#include "tools/tools.h"

typedef struct settings {
    const char *checkpoint, *prompt, *prompts, *stop, *tokenizer;
    int64_t tokens, top_k, seed, batch, tensor, pipeline;
    double temperature, top_p;
    int precision, device, begin;
    bool ignore_end, only_new;
} settings;

/* A text being generated: prompt ids, then drawn ids. */
typedef struct text {
    char *prompt;
    buffer_ids ids;
    int64_t prompt_ids;
    bool done, stopped; /* stopped: reached --stop's text */
    tokenizer_stream stream;
    buffer out;       /* generated text */
    int64_t streamed; /* bytes of it already on the terminal */
} text;

typedef struct job {
    const settings *set;
    weights *from;
    tokenizer *tokenizer;
    tokenizer_scratch *scratch;
    text *texts;
    int count;
    bool speaks; /* true on the one rank that prints */
} job;

/* ---- prompts --------------------------------------------------------------------------------------------------- */

static void add_prompt(job *j, const char *prompt, size_t length)
{
    text *t = &APPEND(j->texts, j->count);
    *t = (text){.prompt = must_alloc(length + 1)};
    memcpy(t->prompt, prompt, length);
    t->prompt[length] = 0;
}

static status read_prompts(job *j)
{
    if (j->set->prompt) {
        add_prompt(j, j->set->prompt, strlen(j->set->prompt));
        return STATUS_OK;
    }
    AUTO(FILE) *f = fopen(j->set->prompts, "r");
    if (!f)
        return status_fail(STATUS_FAILED, "%s cannot be read: it holds the prompts, one a line", j->set->prompts);
    AUTO_FREE char *line = NULL;
    size_t room = 0;
    ssize_t length;
    while ((length = getline(&line, &room, f)) >= 0) {
        while (length > 0 && (line[length - 1] == '\n' || line[length - 1] == '\r'))
            length--;
        add_prompt(j, line, (size_t)length);
    }
    if (j->count == 0)
        return status_fail(STATUS_FAILED, "%s holds no prompt", j->set->prompts);
    return STATUS_OK;
}

static status encode_prompts(job *j)
{
    int64_t vocabulary = weights_shape(j->from)->vocab_size;
    for (int i = 0; i < j->count; i++) {
        text *t = &j->texts[i];
        TRY(tokenizer_encode(j->tokenizer, j->scratch, &t->ids, t->prompt, (int64_t)strlen(t->prompt),
                             TOKENIZER_FRAME));
        if (t->ids.count == 0) {
            int32_t start = tokenizer_ids_of(j->tokenizer)->bos >= 0 ? tokenizer_ids_of(j->tokenizer)->bos
                                                                     : tokenizer_ids_of(j->tokenizer)->end_of_document;
            if (start < 0)
                return status_fail(STATUS_USAGE, "prompt %d is empty, and the tokenizer has no token to begin with",
                                   i + 1);
            buffer_ids_append(&t->ids, &start, 1);
        }
        for (int64_t k = 0; k < t->ids.count; k++)
            if (t->ids.ids[k] >= vocabulary)
                return status_fail(STATUS_FAILED,
                                   "%s: the tokenizer makes id %d of prompt %d, outside the model's vocabulary of "
                                   "%lld: is it another model's?",
                                   weights_folder(j->from), (int)t->ids.ids[k], i + 1, (long long)vocabulary);
        t->prompt_ids = t->ids.count;
        t->stream.started = *t->prompt != 0; /* keeps the space before a word that follows other text */
        long long limit = weights_shape(j->from)->max_sequence;
        if (t->prompt_ids >= limit)
            return status_fail(
                STATUS_USAGE,
                "prompt %d has %lld tokens, which leaves none of the model's max_sequence %lld: shorten it", i + 1,
                (long long)t->prompt_ids, limit);
    }
    return STATUS_OK;
}

/* ---- generating ------------------------------------------------------------------------------------------------- */

/* Returns the number of bytes at the end of `out` that may begin `stop`. */
static int64_t count_held_back(const buffer *out, const char *stop)
{
    int64_t most = stop && *stop ? (int64_t)strlen(stop) - 1 : 0;
    most = most < out->length ? most : out->length;
    while (most > 0 && memcmp(out->bytes + out->length - most, stop, (size_t)most) != 0)
        most--;
    return most;
}

/* Prints the bytes that are certain to stay. */
static void stream_out(const job *j, text *t, int64_t length)
{
    if (length <= t->streamed || !j->speaks)
        return;
    fwrite(t->out.bytes + t->streamed, 1, (size_t)(length - t->streamed), stdout);
    fflush(stdout);
    t->streamed = length;
}

/* Ends the text at `stop` if the text added since its first `before` bytes completes it. */
static void cut_at_stop(text *t, const char *stop, int64_t before)
{
    int64_t length = stop ? (int64_t)strlen(stop) : 0, from = before - length < 0 ? 0 : before - length;
    if (length == 0 || t->out.length - from < length)
        return;
    const char *found = memmem(t->out.bytes + from, (size_t)(t->out.length - from), stop, (size_t)length);
    if (!found)
        return;
    t->out.length = found - t->out.bytes;
    t->done = t->stopped = true;
}

/* Takes the drawn token and prints its text if it streams to the terminal. */
static void take_token(const job *j, text *t, int32_t token, bool streaming)
{
    bool end = token == tokenizer_ids_of(j->tokenizer)->eos || token == tokenizer_ids_of(j->tokenizer)->end_of_document;
    int64_t before = t->out.length;
    if (end && !j->set->ignore_end) {
        t->done = true;
        return;
    }
    buffer_ids_append(&t->ids, &token, 1);
    tokenizer_stream_next(j->tokenizer, &t->stream, &t->out, token, true);
    cut_at_stop(t, j->set->stop, before);
    if (streaming)
        stream_out(j, t, t->stopped ? t->out.length : t->out.length - count_held_back(&t->out, j->set->stop));
    t->done = t->done || t->ids.count - t->prompt_ids >= j->set->tokens;
}

/* Returns the final length of the longest text, in tokens. */
static int64_t longest_length(const job *j)
{
    int64_t longest = 0, limit = weights_shape(j->from)->max_sequence;
    for (int i = 0; i < j->count; i++)
        longest = j->texts[i].prompt_ids > longest ? j->texts[i].prompt_ids : longest;
    longest += j->set->tokens;
    return longest < limit ? longest : limit;
}

/* Generates the texts [first, first + count) together, in the first samples of the generator. Their prompts may differ
 * in length: each continues from its own end. */
static void generate_batch(const job *j, generator *g, int first, int count, bool streaming)
{
    text *texts = j->texts + first;
    int64_t positions = longest_length(j);
    const generator_choice choice = {.temperature = j->set->temperature,
                                     .top_k = j->set->top_k,
                                     .top_p = j->set->top_p,
                                     .seed = (uint64_t)j->set->seed};
    AUTO_FREE int32_t *tokens = must_calloc((unsigned long)j->set->batch, sizeof *tokens);
    bool going = j->set->tokens > 0;
    for (int64_t p = 0; p < positions - 1 && going; p++) {
        for (int i = 0; i < count; i++)
            tokens[i] = p < texts[i].ids.count ? texts[i].ids.ids[p] : 0;
        generator_step(g, tokens, p);
        going = false;
        for (int i = 0; i < count; i++) {
            if (!texts[i].done && p + 1 == texts[i].ids.count)
                take_token(j, &texts[i], generator_choose(g, &choice, i, first + i, p), streaming);
            going |= !texts[i].done;
        }
    }
    for (int i = 0; i < count; i++) { /* flush the bytes held back and an incomplete last character */
        if (!texts[i].stopped)
            tokenizer_stream_end(&texts[i].stream, &texts[i].out);
        if (streaming)
            stream_out(j, &texts[i], texts[i].out.length);
    }
}

static void print_text(const job *j, const text *t)
{
    if (!j->speaks)
        return;
    if (!j->set->only_new)
        fputs(t->prompt, stdout);
    if (t->out.length > 0)
        fwrite(t->out.bytes, 1, (size_t)t->out.length, stdout);
    putchar('\n');
    fflush(stdout);
}

/* Streams a single text; prints several when their batch is done. */
static void generate_all(const job *j, generator *g, int batch)
{
    bool streaming = j->count == 1;
    if (streaming && j->speaks && !j->set->only_new) {
        fputs(j->texts[0].prompt, stdout);
        fflush(stdout);
    }
    for (int i = 0; i < j->count; i += batch) {
        int count = j->count - i < batch ? j->count - i : batch;
        generate_batch(j, g, i, count, streaming);
        for (int k = i; k < i + count && !streaming; k++)
            print_text(j, &j->texts[k]);
    }
    if (streaming && j->speaks)
        putchar('\n');
}

static status open_inputs(job *j)
{
    TRY(weights_open(&j->from, j->set->checkpoint));
    TRY(inference_tokenizer(&j->tokenizer, j->from, j->set->tokenizer, (tokenizer_begin)j->set->begin));
    j->scratch = tokenizer_scratch_open(j->tokenizer);
    TRY(read_prompts(j));
    return encode_prompts(j);
}

/* Writes the facts of its inputs, which ranks must share: `latest` may move between their looks. */
static void write_inputs(FILE *out, const job *j)
{
    AUTO_FREE char *model = weights_identity(j->from);
    bits sum = {0};
    for (int i = 0; i < j->count; i++)
        bits_add(&sum, j->texts[i].ids.ids, j->texts[i].ids.count * (int64_t)sizeof *j->texts[i].ids.ids);
    agree_fact(out, "--checkpoint", "%s", model);
    agree_fact(out, "the prompts", "%d, the longest of them to be %lld tokens (sum %016llx)", j->count,
               (long long)longest_length(j), (unsigned long long)bits_end(&sum));
}

static status generate_on_ranks(job *j, comm *world)
{
    generator *g = NULL;
    const inference_ranks ranks = {.world = world,
                                   .where = (inference_where)j->set->device,
                                   .tensor = j->set->tensor,
                                   .pipeline = j->set->pipeline};
    j->speaks = comm_rank(world) == 0;
    status s = open_inputs(j);
    AUTO_FREE char *facts = s == STATUS_OK ? MUST_PRINT(out, write_inputs(out, j)) : must_strdup("");
    TRY(agree_all(comm_world(world), s, facts, NULL));
    int batch = j->count < j->set->batch ? j->count : (int)j->set->batch;
    s = generator_open(&g, j->from, &ranks, (precision_kind)j->set->precision, batch, longest_length(j));
    if (s == STATUS_OK)
        generate_all(j, g, batch);
    generator_close(g);
    return s;
}

static void close_job(job *j)
{
    for (int i = 0; i < j->count; i++) {
        free(j->texts[i].prompt);
        buffer_ids_free(&j->texts[i].ids);
        buffer_free(&j->texts[i].out);
    }
    free(j->texts);
    if (j->scratch)
        tokenizer_scratch_close(j->scratch);
    tokenizer_close(j->tokenizer);
    weights_close(j->from);
}

int generate_main(int argc, char **argv)
{
    settings set = {.tokens = 100, .temperature = 0.8, .top_p = 1, .seed = 1, .batch = 16};
    const options_row rows[] = {
        OPTION_TEXT("--checkpoint", "FOLDER", "a checkpoint, a run's folder (its latest) or a Hugging Face folder",
                    &set.checkpoint),
        OPTION_TEXT("--prompt", "TEXT", "what to continue; one prompt streams as it is generated", &set.prompt),
        OPTION_TEXT("--prompts", "FILE", "many prompts, one a line", &set.prompts),
        OPTION_TEXT("--tokenizer", "bytes|FILE", "where the checkpoint has none", &set.tokenizer),
        OPTION_CHOICE("--begin", INFERENCE_BEGIN_HELP, &set.begin, tokenizer_begin_words),
        OPTION_INTEGER("--tokens", "N", "generate at most N tokens (100)", &set.tokens, 0, 1e9),
        OPTION_NUMBER("--temperature", "T", "0 takes the likeliest token each time (0.8)", &set.temperature, 0, 100),
        OPTION_INTEGER("--top-k", "K", "choose among the K likeliest; 0: all (0)", &set.top_k, 0, 1e9),
        OPTION_NUMBER("--top-p", "P", "choose among the fewest that reach probability P (1)", &set.top_p, 0, 1),
        OPTION_INTEGER("--seed", "S", "another seed draws other tokens (1)", &set.seed, 0, 9e15),
        OPTION_TEXT("--stop", "TEXT", "end a text where TEXT appears in it", &set.stop),
        OPTION_FLAG("--ignore-end", "go on after an end-of-text token", &set.ignore_end),
        OPTION_FLAG("--only-new", "print the continuation without the prompt", &set.only_new),
        OPTION_INTEGER("--batch", "N", "prompts generated together (16)", &set.batch, 1, 4096),
        OPTION_CHOICE("--precision", "of weights and cache (fp32)", &set.precision, precision_words),
        OPTION_INTEGER("--tensor", "N", "under mpirun: ranks that share each layer (all of them)", &set.tensor, 1,
                       65536),
        OPTION_INTEGER("--pipeline", "N", "under mpirun: ranks that share the depth (1)", &set.pipeline, 1, 65536),
        OPTION_CHOICE("--device", "where to run; auto: cuda where there is one (auto)", &set.device, inference_devices),
    };
    const options_command command = {
        .name = "generate",
        .operands = "",
        .summary =
            "Continues prompts with a trained model, whatever layout it was trained in. For a model that one device\n"
            "does not hold: mpirun -np N phalanx generate ..., the ranks share it.",
        OPTION_ROWS(rows)};
    int operands, code = options_parse(&command, &operands, argc, argv);
    if (code != OPTIONS_GO_ON)
        return code;
    if (!set.checkpoint || !set.prompt == !set.prompts) {
        log_error("generate needs --checkpoint FOLDER and either --prompt TEXT or --prompts FILE");
        return STATUS_USAGE;
    }
    job j = {.set = &set};
    comm *world = NULL;
    status s = comm_open(&world);
    if (s == STATUS_OK)
        s = options_agree(world, STATUS_OK, &(options_facts){.command = &command});
    if (s == STATUS_OK)
        s = generate_on_ranks(&j, world);
    if (s != STATUS_OK && (!world || comm_rank(world) == 0)) /* all ranks share the status */
        log_error("%s", status_message());
    close_job(&j);
    comm_close(world);
    return (int)s;
}
