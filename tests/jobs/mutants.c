#include "tests/jobs/mutants.h"

#define GATHERED "parallel.context_gather=latent"
#define SLOTS    "parallel.expert_dispatch=slots"
#define DIVIDED  "parallel.vocabulary=stages"

static const mutants_row rows[] = {
    /* clang-format off */
    {"none",                     {"gpt2",    2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, "", 0}, NULL},
    {"dropped-all-reduce",       {"gpt2",    2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, "parallel.sequence=false", 0}, NULL},
    {"dropped-gradient-reduce",  {"gpt2",    1, 1, 2, 2, 2, ONE_F_ONE_B, 0, 0, "", 0}, NULL},
    {"dropped-norm-reduce",      {"gpt2",    2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, "", 0}, NULL},
    {"dropped-kv-reduce",        {"llama",   4, 1, 1, 1, 2, 0,           0, 1, "", 0}, NULL},
    {"dropped-tie-reduce",       {"gpt2",    1, 1, 4, 1, 2, ONE_F_ONE_B, 0, 1, "", 0}, NULL},
    {"swapped-shard",            {"gpt2",    2, 1, 1, 2, 2, 0,           0, 1, "", 0}, NULL},
    {"action-twice",             {"llama",   1, 1, 4, 1, 2, ZERO_BUBBLE, 0, 1, "", 0}, NULL},
    {"action-never",             {"llama",   1, 1, 4, 1, 2, ONE_F_ONE_B, 0, 1, "", 0}, NULL},
    {"divided-twice",            {"tied",    1, 1, 2, 2, 2, ONE_F_ONE_B, 0, 1, "", 0}, NULL},
    {"overwriting",              {"gpt2",    2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, "", 0}, NULL},
    {"stale-weights",            {"llama",   2, 1, 1, 2, 2, 0,           0, 1, "", 0}, NULL},
    {"norm-counts-twice",        {"qwen2",   2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, "", 0}, NULL},
    {"draws-of-another-sample",  {"dropout", 1, 1, 2, 2, 2, ONE_F_ONE_B, 0, 1, "", 0}, NULL},
    {"draws-of-another-token",   {"dropout", 2, 1, 1, 2, 2, 0,           0, 1, "", 0}, NULL},
    {"keys-as-gathered",         {"llama",   1, 2, 1, 2, 2, 0,           0, 1, "", 0}, NULL},
    {"keys-of-one-rank",         {"llama",   1, 2, 1, 2, 2, 0,           0, 1, "", 0}, NULL},
    {"positions-off-by-one",        {"llama",   1, 2, 1, 2, 2, 0,           0, 1, "", 0}, NULL},
    {"runs-swapped",             {"llama",   1, 2, 1, 2, 2, 0,           0, 1, "", 0}, NULL},
    {"run-dealt-twice",          {"llama",   1, 2, 1, 2, 2, 0,           0, 1, "", 0}, NULL},
    {"another-deal-on-one-rank", {"llama",   1, 2, 1, 2, 2, 0,           0, 1, "", 0}, "has read or dealt other tokens"},
    {"latents-as-gathered",      {"latent",  1, 2, 1, 2, 2, 0,           0, 1, GATHERED, 0}, NULL},
    {"latents-of-one-rank",      {"latent",  1, 2, 1, 2, 2, 0,           0, 1, GATHERED, 0}, NULL},
    {"dropped-latent-reduce",    {"unrouted", 2, 1, 1, 2, 2, 0,           0, 1, "parallel.sequence=false", 0}, NULL},
    {"first-elements-rotate",    {"latent",  2, 1, 1, 2, 2, 0,           0, 1, "", 0}, NULL},
    {"scores-without-factor",    {"direct",  2, 1, 1, 2, 2, 0,           0, 1, "", 0}, NULL},
    {"counts-of-one-micro-batch", {"biased", 1, 1, 2, 2, 2, ONE_F_ONE_B, 0, 1, "", 0}, NULL},
    {"counted-when-made-again",  {"biased",  2, 1, 1, 2, 2, 0,           0, 1, "", 0}, NULL},
    {"counts-of-one-rank",       {"biased",  1, 2, 1, 2, 2, 0,           0, 1, "parallel.expert=2", 0}, NULL},
    {"counts-of-all-steps",      {"biased",  2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, "", 0}, NULL},
    {"second-labels-of-next",    {"mtp",     2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, "", 0}, NULL},
    {"second-labels-anywhere",   {"mtp",     2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, "", 0}, NULL},
    {"mtp-loss-twice",           {"mtp",     2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, "", 0}, NULL},
    {"mtp-table-apart",          {"mtp",     2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, "", 0}, NULL},
    {"next-tokens-shifted",      {"mtp",     2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, DIVIDED, 0}, NULL},
    {"next-tokens-without-gradient", {"mtp", 2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, DIVIDED, 0}, NULL},
    {"second-head-without-gradient", {"mtp-tied", 1, 1, 2, 2, 2, ONE_F_ONE_B, 0, 1, DIVIDED, 0}, NULL},
    {"experts-not-in-norm",      {"mixtral", 1, 1, 1, 4, 1, 0,           0, 0, "parallel.expert=2", 0}, NULL},
    {"summed-with-other-experts", {"mixtral", 1, 1, 1, 4, 1, 0,          0, 0, "parallel.expert=2", 0}, NULL},
    {"tokens-combined-twice",    {"mixtral", 1, 1, 2, 2, 2, ONE_F_ONE_B, 0, 1, "parallel.expert=2 model.expert_capacity=0.5", 0}, NULL},
    {"heads-stay",               {"mixtral", 1, 1, 1, 4, 1, 0,           0, 1, SLOTS " parallel.expert=4", 0}, NULL},
    {"ids-shifted",              {"mixtral", 1, 1, 2, 2, 2, ONE_F_ONE_B, 0, 1, SLOTS " parallel.expert=2", 0}, NULL},
    {"wave-lost",                {"mixtral", 2, 2, 1, 1, 2, 0,           0, 1, SLOTS " parallel.expert=4 model.expert_capacity=0.5", 0}, NULL},
    {"wave-lost-when-remade",    {"mixtral", 1, 1, 1, 4, 1, 0,           0, 1, SLOTS " parallel.expert=4 model.expert_capacity=0.5", 0}, NULL},
    {"other-samples-again",      {"mixtral", 1, 1, 1, 4, 1, 0,           0, 1, "parallel.expert=2 model.expert_capacity=0.3 model.expert_spill=0", 0}, NULL},
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
