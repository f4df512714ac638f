#include "tests/jobs/mutants.h"

static const mutants_row rows[] = {
    /* clang-format off */
    {"none",                     {"gpt2",    2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, "", 0}},
    {"dropped-all-reduce",       {"gpt2",    2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, "parallel.sequence=false", 0}},
    {"dropped-gradient-reduce",  {"gpt2",    1, 1, 2, 2, 2, ONE_F_ONE_B, 0, 0, "", 0}},
    {"dropped-norm-reduce",      {"gpt2",    2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, "", 0}},
    {"dropped-kv-reduce",        {"llama",   4, 1, 1, 1, 2, 0,           0, 1, "", 0}},
    {"dropped-tie-reduce",       {"gpt2",    1, 1, 4, 1, 2, ONE_F_ONE_B, 0, 1, "", 0}},
    {"swapped-shard",            {"gpt2",    2, 1, 1, 2, 2, 0,           0, 1, "", 0}},
    {"action-twice",             {"llama",   1, 1, 4, 1, 2, ZERO_BUBBLE, 0, 1, "", 0}},
    {"action-never",             {"llama",   1, 1, 4, 1, 2, ONE_F_ONE_B, 0, 1, "", 0}},
    {"divided-twice",            {"tied",    1, 1, 2, 2, 2, ONE_F_ONE_B, 0, 1, "", 0}},
    {"overwriting",              {"gpt2",    2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, "", 0}},
    {"stale-weights",            {"llama",   2, 1, 1, 2, 2, 0,           0, 1, "", 0}},
    {"norm-counts-twice",        {"qwen2",   2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, "", 0}},
    {"draws-of-another-sample",  {"dropout", 1, 1, 2, 2, 2, ONE_F_ONE_B, 0, 1, "", 0}},
    {"draws-of-another-token",   {"dropout", 2, 1, 1, 2, 2, 0,           0, 1, "", 0}},
    {"keys-as-gathered",         {"llama",   1, 2, 1, 2, 2, 0,           0, 1, "", 0}},
    {"keys-of-one-rank",         {"llama",   1, 2, 1, 2, 2, 0,           0, 1, "", 0}},
    {"places-off-by-one",        {"llama",   1, 2, 1, 2, 2, 0,           0, 1, "", 0}},
    /* clang-format on */
};

int mutants_count(void)
{
    return (int)(sizeof rows / sizeof *rows);
}

const mutants_row *mutants_at(int index)
{
    return &rows[index];
}
