#include "parallel/comm/agree.h"

#include <elf.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/device.h"
#include "memory/bits.h"
#include "memory/log.h"
#include "memory/scope.h"

#define MAGIC "phalanx"

enum { KINDS = 2, NAMED_MOST = 4, RANKS_MOST = 8, VALUE_MOST = 96, BEFORE_DIFFERENCE = 32 };

_Static_assert(sizeof(agree_message) == 64, "a rank's first message is of 64 bytes in every version");

void agree_fact(FILE *out, const char *name, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    AUTO_FREE char *value = MUST_PRINT(text, vfprintf(text, format, arguments));
    va_end(arguments);
    log_make_printable(value);
    fprintf(out, "%s: %s\n", name, value);
}

/* ---- facts of the process ---- */

/* Variables that change messages between ranks, or the bits of results. Others that phalanx reads may differ by rank:
 * places (HOME, XDG_CACHE_HOME, TMPDIR, CUDA_VISIBLE_DEVICES, PHALANX_NODE), stores and proxies, credentials. */
static const char *const variables[] = {
    DEVICE_SHARE_ENVIRONMENT,
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_BUFFSIZE",
    "NCCL_NTHREADS",
    "NCCL_LAUNCH_ORDER_IMPLICIT",
    "NCCL_GRAPH_MIXING_SUPPORT",
    "NCCL_MAX_CTAS",
    "NCCL_MIN_CTAS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_P2P_NCHANNELS",
    "NCCL_MIN_P2P_NCHANNELS",
    "NCCL_NVLS_NCHANNELS",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_DEFAULT_FPMATH_MODE",
};

void agree_write_environment(FILE *out)
{
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *value = getenv(variables[i]);
        agree_fact(out, variables[i], "%s", value ? value : "not set");
    }
}

enum { BUILD_ID = 41 };

/* Writes the linker's sum of the program, which every change of source, compiler or flags changes. */
static int find_build_id(struct dl_phdr_info *object, size_t bytes, void *out)
{
    (void)bytes;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        const char *at = (const char *)(object->dlpi_addr + part->p_vaddr); // NOLINT(performance-no-int-to-ptr)
        const char *end = at + part->p_memsz;
        while (part->p_type == PT_NOTE && end - at > (ptrdiff_t)sizeof(ElfW(Nhdr))) {
            const ElfW(Nhdr) *note = (const void *)at;
            const char *name = at + sizeof *note, *sum = name + (note->n_namesz + 3) / 4 * 4;
            for (size_t k = 0; note->n_type == NT_GNU_BUILD_ID && k < note->n_descsz && 2 * k + 2 < BUILD_ID; k++)
                snprintf((char *)out + 2 * k, 3, "%02x", (unsigned char)sum[k]);
            at = sum + (note->n_descsz + 3) / 4 * 4;
        }
    }
    return 1; /* the program is the first object */
}

void agree_write_build(FILE *out)
{
    char id[BUILD_ID] = "unknown";
    dl_iterate_phdr(find_build_id, id);
    agree_fact(out, "the build", "%s (compiler " __VERSION__ ")", id);
}

/* ---- sums ---- */

static uint64_t sum_text(const char *text)
{
    bits b = {0};
    bits_add(&b, text, (int64_t)strlen(text));
    return bits_end(&b);
}

static uint64_t sum_of(const agree_message *m, int kind)
{
    return kind ? m->alike : m->same;
}

/* ---- the second exchange ---- */

/* Prints "rank 3" or "ranks 0, 2, 3" for the ranks with this sum. */
static void print_ranks(FILE *out, const agree_message *each, int ranks, int kind, uint64_t sum)
{
    int count = 0, left = 0;
    for (int i = 0; i < ranks; i++)
        count += sum_of(&each[i], kind) == sum;
    fprintf(out, "rank%s", count == 1 ? "" : "s");
    for (int i = 0, said = 0; i < ranks; i++) {
        if (sum_of(&each[i], kind) != sum)
            continue;
        left = count - said;
        if (said == RANKS_MOST)
            break;
        fprintf(out, "%s %d", said++ ? "," : "", i);
        left--;
    }
    if (left > 0)
        fprintf(out, " and %d more", left);
}

/* Returns the fact of this name, the first `length` characters, or NULL. */
static const char *find_fact(const char *facts, const char *name, size_t length)
{
    for (const char *line = facts; *line; line += strcspn(line, "\n") + 1)
        if (strncmp(line, name, length) == 0 && line[length] == ':')
            return line;
    return NULL;
}

/* Prints a fact's value: a long one from shortly before where it differs from the other. */
static void print_value(FILE *out, const char *line, const char *other, size_t name)
{
    if (!line) {
        fputs("unknown", out);
        return;
    }
    const char *value = line + name + 2, *beside = other ? other + name + 2 : "";
    size_t length = strcspn(value, "\n"), from = 0;
    while (length > VALUE_MOST && value[from] == beside[from] && value[from] != '\n')
        from++;
    from = from > BEFORE_DIFFERENCE ? from - BEFORE_DIFFERENCE : 0;
    bool cut = length - from > VALUE_MOST;
    fprintf(out, "%s%.*s%s", from ? "..." : "", cut ? VALUE_MOST : (int)(length - from), value + from,
            cut ? "..." : "");
}

typedef struct comparison {
    const agree_message *each;
    int ranks, kind, other; /* `other`: the first rank that differs from rank 0 */
} comparison;

/* Prints the fact of either line, unless both lines are equal. */
static void print_difference(FILE *out, int *said, const comparison *c, const char *first, const char *mine)
{
    const char *line = first ? first : mine;
    size_t name = strcspn(line, ":"), length = strcspn(line, "\n");
    if (first && mine && strncmp(first, mine, length + 1) == 0)
        return;
    if ((*said)++ >= NAMED_MOST)
        return;
    fprintf(out, "%s%.*s is ", *said > 1 ? "; " : "", (int)name, line);
    print_value(out, first, mine, name);
    fputs(" on ", out);
    print_ranks(out, c->each, c->ranks, c->kind, sum_of(&c->each[0], c->kind));
    fputs(" and ", out);
    print_value(out, mine, first, name);
    fputs(" on ", out);
    print_ranks(out, c->each, c->ranks, c->kind, sum_of(&c->each[c->other], c->kind));
}

static void print_differences(FILE *out, const comparison *c, const char *first, const char *mine)
{
    int said = 0;
    for (const char *line = first; *line; line += strcspn(line, "\n") + 1)
        print_difference(out, &said, c, line, find_fact(mine, line, strcspn(line, ":")));
    for (const char *line = mine; *line; line += strcspn(line, "\n") + 1)
        if (!find_fact(first, line, strcspn(line, ":")))
            print_difference(out, &said, c, NULL, line);
    if (said > NAMED_MOST)
        fprintf(out, "; and %d more", said - NAMED_MOST);
    for (int i = c->other + 1; i < c->ranks; i++) {
        uint64_t sum = sum_of(&c->each[i], c->kind);
        if (sum != sum_of(&c->each[0], c->kind) && sum != sum_of(&c->each[c->other], c->kind)) {
            fprintf(out, "; rank %d differs from both", i);
            return;
        }
    }
}

/* Returns the differences of the facts of a kind in words, the same on all ranks; the caller frees them. NULL: none. */
static char *find_differences(comm_group *all, const agree_message *each, int kind, const char *facts)
{
    comparison c = {.each = each, .ranks = comm_group_ranks(all), .kind = kind, .other = 1};
    int me = comm_group_me(all);
    while (c.other < c.ranks && sum_of(&each[c.other], kind) == sum_of(&each[0], kind))
        c.other++;
    if (c.other == c.ranks)
        return NULL;
    AUTO_FREE char *first = must_calloc((unsigned long)each[0].bytes[kind] + 1, 1), *words = NULL;
    if (me == 0)
        memcpy(first, facts, (size_t)each[0].bytes[kind]);
    comm_broadcast_bytes(all, first, each[0].bytes[kind], 0);
    if (me == c.other)
        words = MUST_PRINT(out, print_differences(out, &c, first, facts));
    int64_t bytes = words ? (int64_t)strlen(words) : 0;
    comm_broadcast_bytes(all, &bytes, sizeof bytes, c.other);
    if (!words)
        words = must_calloc((unsigned long)bytes + 1, 1);
    comm_broadcast_bytes(all, words, bytes, c.other);
    return TAKE(words);
}

/* ---- the first message ---- */

static status check_protocol(const agree_message *each, int ranks)
{
    for (int i = 1; i < ranks; i++)
        if (memcmp(each[i].magic, MAGIC, sizeof MAGIC) != 0 || each[i].protocol != each[0].protocol)
            return status_fail(
                STATUS_USAGE,
                "the ranks run builds of phalanx that cannot be one job: rank 0 speaks version %u of their "
                "protocol and rank %d version %u: start the same build on all ranks",
                each[0].protocol, i, each[i].protocol);
    return STATUS_OK;
}

status agree_all(comm_group *all, status mine, const char *same, const char *alike)
{
    int ranks = comm_group_ranks(all);
    const char *text[KINDS] = {same, alike ? alike : ""};
    agree_message here = {.magic = MAGIC,
                          .protocol = AGREE_PROTOCOL,
                          .failed = (int32_t)mine,
                          .same = sum_text(text[0]),
                          .alike = sum_text(text[1]),
                          .bytes = {(int64_t)strlen(text[0]), (int64_t)strlen(text[1])}};
    AUTO_FREE agree_message *each = must_alloc((unsigned long)ranks * sizeof *each);
    comm_all_gather_bytes(all, each, &here, sizeof here);
    TRY(check_protocol(each, ranks));
    for (int i = 0; i < ranks; i++)
        if (each[i].failed)
            return comm_all_status(all, mine);
    AUTO_FREE char *differ = find_differences(all, each, 0, text[0]), *warned = find_differences(all, each, 1, text[1]);
    if (warned && comm_group_me(all) == 0)
        log_warn("%s: the bits of a run then depend on which rank computes what (train.deterministic)", warned);
    return differ ? status_fail(STATUS_USAGE, "the ranks were started differently: %s", differ) : STATUS_OK;
}

status agree_on(comm_group *all, status mine, const char *name, const char *value)
{
    AUTO_FREE char *fact = MUST_PRINT(out, agree_fact(out, name, "%s", value ? value : ""));
    return agree_all(all, mine, fact, NULL);
}
