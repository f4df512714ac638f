#include "tests/jobs/layouts.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "tests/cover.h"

#define NONE                  "memory.recompute=none"
#define SELECTIVE             "memory.recompute=selective"
#define FULL                  "memory.recompute=full"
#define ALONE                 "parallel.sequence=false"
#define EACH                  "parallel.zero_gather=micro_batch parallel.zero_reduce=micro_batch"
#define REDUCE                "parallel.zero_reduce=micro_batch"
#define GATHER                "parallel.zero_gather=micro_batch"
#define BUDGET                "memory.budget=" LAYOUTS_HALF
#define HALVES                "parallel.order=halves"
#define PARTS                 "parallel.order=parts"
#define LOWERED               "parallel.order=none"
#define DIVIDED               "parallel.vocabulary=stages"
#define BALANCED              "parallel.context_balance=documents"
#define EXPERT(x)             "parallel.expert=" x
#define SLOTS(x)              "parallel.expert_dispatch=slots parallel.expert=" x
#define ROOM(capacity, spill) "model.expert_capacity=" capacity " model.expert_spill=" spill
#define LATENTS               "parallel.context_gather=latent"
#define KEYS                  "parallel.context_gather=keys"
#define UNEVEN(x)             "parallel.layers_per_stage=[" x "]"

static const layouts_row rows[] = {
    /* clang-format off */
    /* model       t  c  p  d  mb schedule     v  zero more                             group */
    /* tensor parallelism alone */
    {"gpt2",       2, 1, 1, 1, 2, 0,           0, 1, "", 0},
    {"gpt2",       2, 1, 1, 1, 2, 0,           0, 1, ALONE, 0},
    {"gpt2",       3, 1, 1, 1, 3, 0,           0, 1, "", 0},
    {"gpt2",       4, 1, 1, 1, 2, 0,           0, 1, FULL, 0},
    {"gpt2",       6, 1, 1, 1, 4, 0,           0, 1, ALONE, 0},
    {"llama",      2, 1, 1, 1, 1, 0,           0, 1, "", 0},
    {"llama",      4, 1, 1, 1, 2, 0,           0, 1, PARTS, 0},
    {"llama",      4, 1, 1, 1, 2, 0,           0, 1, ALONE " " SELECTIVE, 0},
    {"llama",      6, 1, 1, 1, 3, 0,           0, 1, HALVES, 0},
    {"tied",       3, 1, 1, 1, 2, 0,           0, 1, "", 0},
    {"tied",       6, 1, 1, 1, 2, 0,           0, 1, "", 0},
    {"qwen2",      4, 1, 1, 1, 2, 0,           0, 1, "", 0},
    {"qwen3",      3, 1, 1, 1, 2, 0,           0, 1, "", 0},
    {"qwen3",      6, 1, 1, 1, 2, 0,           0, 1, ALONE, 0},
    {"mistral",    3, 1, 1, 1, 4, 0,           0, 1, "", 0},
    {"documents",  2, 1, 1, 1, 2, 0,           0, 1, "", 0},
    {"documents",  6, 1, 1, 1, 2, 0,           0, 1, "", 0},
    {"dropout",    3, 1, 1, 1, 2, 0,           0, 1, "", 0},
    {"dropout",    2, 1, 1, 1, 2, 0,           0, 1, ALONE, 0},
    /* pipelines alone: micro-batches as many as 12, and as few and as ill-fitting as 6 on 4 stages */
    {"gpt2",       1, 1, 2, 1, 2, GPIPE,       0, 1, "", 0},
    {"gpt2",       1, 1, 3, 1, 3, ONE_F_ONE_B, 0, 1, "", 0},
    {"gpt2",       1, 1, 2, 1, 1, INTERLEAVED, 3, 1, "", 0},
    {"gpt2",       1, 1, 4, 1, 2, ZERO_BUBBLE, 0, 1, "", 0},
    {"llama",      1, 1, 4, 1, 1, GPIPE,       0, 1, "", 0},
    {"llama",      1, 1, 4, 1, 2, ONE_F_ONE_B, 0, 1, UNEVEN("0,4,4,0"), 0},
    {"llama",      1, 1, 4, 1, 2, INTERLEAVED, 2, 1, "", 0},
    {"llama",      1, 1, 4, 1, 1, INTERLEAVED, 2, 1, SELECTIVE, 0},
    {"llama",      1, 1, 3, 1, 2, ZERO_BUBBLE, 0, 1, UNEVEN("4,4,0"), 0},
    {"tied",       1, 1, 2, 1, 4, ONE_F_ONE_B, 0, 1, FULL, 0},
    {"tied",       1, 1, 3, 1, 2, INTERLEAVED, 2, 1, "", 0},
    {"tied",       1, 1, 4, 1, 4, ONE_F_ONE_B, 0, 1, "", 0},
    {"qwen3",      1, 1, 3, 1, 1, GPIPE,       0, 1, UNEVEN("3,2,1"), 0},
    {"mistral",    1, 1, 2, 1, 2, ZERO_BUBBLE, 0, 1, FULL, 0},
    {"documents",  1, 1, 3, 1, 2, INTERLEAVED, 2, 1, "", 0},
    {"dropout",    1, 1, 3, 1, 2, ZERO_BUBBLE, 0, 1, FULL, 0},
    {"llama",      1, 1, 4, 1, 1, ZB_H2,       0, 1, "", 0},
    {"llama",      1, 1, 4, 1, 1, V_HALF,      2, 1, SELECTIVE, 0},
    {"gpt2",       1, 1, 3, 1, 2, V_MIN,       2, 1, FULL, 0},
    {"qwen3",      1, 1, 3, 1, 1, FOUND,       2, 1, "", 0},
    {"documents",  1, 1, 3, 1, 2, FOUND,       0, 1, "", 0},
    /* data parallelism and ZeRO */
    {"gpt2",       1, 1, 1, 2, 2, 0,           0, 0, "", 0},
    {"gpt2",       1, 1, 1, 3, 2, 0,           0, 3, EACH, 0},
    {"llama",      1, 1, 1, 2, 3, 0,           0, 2, REDUCE, 0},
    {"llama",      1, 1, 1, 3, 1, 0,           0, 3, GATHER, 0},
    {"tied",       1, 1, 1, 3, 2, 0,           0, 1, "", 0},
    {"qwen2",      1, 1, 1, 2, 2, 0,           0, 3, REDUCE " " FULL, 0},
    {"dropout",    1, 1, 1, 3, 2, 0,           0, 2, "", 0},
    {"documents",  1, 1, 1, 2, 1, 0,           0, 3, "", 0},
    /* two and three axes */
    {"gpt2",       2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, PARTS, 0},
    {"gpt2",       3, 1, 2, 1, 2, ZERO_BUBBLE, 0, 1, FULL " " HALVES, 0},
    {"gpt2",       2, 1, 1, 3, 2, 0,           0, 3, "", 0},
    {"gpt2",       1, 1, 3, 2, 1, GPIPE,       0, 2, REDUCE, 0},
    {"gpt2",       2, 1, 2, 2, 2, ONE_F_ONE_B, 0, 3, EACH, 0},
    {"llama",      2, 1, 3, 1, 2, ONE_F_ONE_B, 0, 1, UNEVEN("3,3,2"), 0},
    {"llama",      2, 1, 1, 2, 2, 0,           0, 2, "", 0},
    {"llama",      4, 1, 2, 1, 2, INTERLEAVED, 2, 1, PARTS, 0},
    {"llama",      1, 1, 2, 3, 1, ZERO_BUBBLE, 0, 3, EACH, 0},
    {"llama",      1, 1, 4, 2, 2, ZERO_BUBBLE, 0, 1, "", 0},
    {"llama",      2, 1, 2, 2, 1, INTERLEAVED, 2, 3, "", 0},
    {"tied",       3, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, "", 0},
    {"tied",       1, 1, 2, 3, 2, ONE_F_ONE_B, 0, 1, SELECTIVE, 0},
    {"tied",       3, 1, 1, 2, 2, 0,           0, 3, EACH " " PARTS, 0},
    {"tied",       1, 1, 2, 2, 1, INTERLEAVED, 3, 3, REDUCE, 0},
    {"qwen2",      2, 1, 2, 1, 2, ZERO_BUBBLE, 0, 1, SELECTIVE, 0},
    {"qwen2",      4, 1, 1, 2, 2, 0,           0, 1, HALVES, 0},
    {"qwen3",      2, 1, 2, 2, 2, GPIPE,       0, 2, EACH, 0},
    {"qwen3",      2, 1, 3, 1, 1, ONE_F_ONE_B, 0, 1, FULL, 0},
    {"mistral",    3, 1, 2, 1, 2, INTERLEAVED, 2, 1, "", 0},
    {"mistral",    1, 1, 3, 2, 2, ONE_F_ONE_B, 0, 3, "", 0},
    {"documents",  2, 1, 2, 1, 1, ZERO_BUBBLE, 0, 1, "", 0},
    {"dropout",    2, 1, 3, 1, 2, ONE_F_ONE_B, 0, 1, SELECTIVE, 0},
    {"dropout",    1, 1, 2, 2, 2, INTERLEAVED, 2, 3, EACH, 0},
    {"tied",       1, 1, 2, 3, 1, V_MIN,       2, 3, EACH, 0},
    {"tied",       3, 1, 2, 1, 2, ZB_V,        2, 1, "", 0},
    {"tied",       1, 1, 2, 2, 1, V_HALF,      2, 2, REDUCE, 0},
    {"llama-bf16", 2, 1, 1, 1, 2, 0,           0, 1, "", 0},
    {"llama-bf16", 1, 1, 1, 3, 2, 0,           0, 3, EACH, 0},
    {"gpt2-bf16",  2, 1, 1, 2, 2, 0,           0, 1, ALONE, 0},
    {"gpt2-bf16",  3, 1, 2, 1, 2, ZERO_BUBBLE, 0, 1, HALVES, 0},
    {"llama-fp16", 2, 1, 1, 1, 2, 0,           0, 1, "", 0},
    {"llama-fp16", 1, 1, 1, 3, 2, 0,           0, 3, EACH, 0},
    {"llama-fp16", 4, 1, 2, 1, 2, INTERLEAVED, 2, 1, "", 0},
    {"gpt2-fp16",  1, 1, 3, 2, 1, ZERO_BUBBLE, 0, 2, "", 0},
    {"gpt2-fp16",  2, 1, 1, 2, 2, 0,           0, 1, ALONE, 0},
    /* the vocabulary divided over the stages */
    {"gpt2",       1, 1, 4, 1, 2, ONE_F_ONE_B, 0, 1, DIVIDED, 0},
    {"gpt2",       2, 1, 3, 1, 2, ZERO_BUBBLE, 0, 1, DIVIDED " " FULL, 0},
    {"gpt2",       1, 1, 3, 2, 1, GPIPE,       0, 2, DIVIDED " " REDUCE, 0},
    {"llama",      2, 1, 2, 2, 2, ONE_F_ONE_B, 0, 3, DIVIDED " " EACH, 0},
    {"llama",      2, 1, 2, 1, 2, INTERLEAVED, 2, 1, DIVIDED " " ALONE, 0},
    {"llama",      1, 1, 4, 1, 2, ONE_F_ONE_B, 0, 1, DIVIDED " " UNEVEN("1,3,3,1") " " HALVES, 0},
    {"tied",       3, 1, 2, 1, 2, ZB_V,        2, 1, DIVIDED, 0},
    {"tied",       1, 1, 2, 3, 2, ZB_H2,       0, 1, DIVIDED " " SELECTIVE, 0},
    {"tied",       1, 1, 2, 2, 1, V_HALF,      2, 3, DIVIDED " " EACH, 0},
    {"qwen2",      2, 1, 3, 1, 1, INTERLEAVED, 2, 1, DIVIDED, 0},
    {"documents",  1, 1, 3, 1, 2, ZERO_BUBBLE, 0, 1, DIVIDED, 0},
    {"dropout",    2, 1, 3, 1, 2, ONE_F_ONE_B, 0, 1, DIVIDED " " SELECTIVE, 0},
    {"llama-bf16", 2, 1, 2, 2, 1, ZERO_BUBBLE, 0, 1, DIVIDED, 0},
    {"gpt2-bf16",  1, 1, 4, 1, 2, INTERLEAVED, 0, 1, DIVIDED, 0},
    {"llama-fp16", 2, 1, 4, 1, 2, ONE_F_ONE_B, 0, 1, DIVIDED, 0},
    /* as much made again as a budget between `none` and `full` asks for */
    {"gpt2",       3, 1, 1, 1, 3, 0,           0, 1, BUDGET, 0},
    {"llama",      1, 1, 4, 1, 2, INTERLEAVED, 2, 1, BUDGET, 0},
    {"tied",       1, 1, 1, 3, 2, 0,           0, 3, EACH " " BUDGET, 0},
    {"qwen3",      2, 1, 3, 1, 1, ZERO_BUBBLE, 0, 1, BUDGET, 0},
    {"llama-bf16", 2, 1, 2, 1, 2, ZERO_BUBBLE, 0, 1, BUDGET, 0},
    /* no bit may depend on recompute and schedule */
    {"llama",      2, 1, 2, 1, 2, GPIPE,       0, 1, NONE, 'a'},
    {"llama",      2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, SELECTIVE, 'a'},
    {"llama",      2, 1, 2, 1, 2, ZERO_BUBBLE, 0, 1, FULL, 'a'},
    {"llama",      2, 1, 2, 1, 2, INTERLEAVED, 2, 1, NONE, 'a'},
    {"llama",      2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, BUDGET, 'a'},
    {"llama",      2, 1, 2, 1, 2, ZB_H2,       0, 1, NONE, 'a'},
    {"llama",      2, 1, 2, 1, 2, ZB_V,        2, 1, FULL, 'a'},
    {"llama",      2, 1, 2, 1, 2, V_HALF,      2, 1, NONE, 'a'},
    {"llama",      2, 1, 2, 1, 2, V_MIN,       2, 1, SELECTIVE, 'a'},
    {"llama",      2, 1, 2, 1, 2, FOUND,       2, 1, BUDGET, 'a'},
    {"llama",      2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, LOWERED, 'a'},
    {"llama",      2, 1, 2, 1, 2, GPIPE,       0, 1, DIVIDED " " NONE, 'v'},
    {"llama",      2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, DIVIDED " " SELECTIVE, 'v'},
    {"llama",      2, 1, 2, 1, 2, ZERO_BUBBLE, 0, 1, DIVIDED " " FULL, 'v'},
    {"llama",      2, 1, 2, 1, 2, INTERLEAVED, 2, 1, DIVIDED " " BUDGET, 'v'},
    {"llama",      2, 1, 2, 1, 2, ZB_V,        2, 1, DIVIDED " " NONE, 'v'},
    {"llama",      2, 1, 2, 1, 2, V_MIN,       2, 1, DIVIDED " " LOWERED, 'v'},
    {"llama",      2, 1, 2, 1, 2, FOUND,       2, 1, DIVIDED, 'v'},
    {"tied",       1, 1, 2, 2, 1, ONE_F_ONE_B, 0, 0, DIVIDED " " NONE, 'w'},
    {"tied",       1, 1, 2, 2, 1, ZB_V,        2, 1, DIVIDED " " FULL, 'w'},
    {"tied",       1, 1, 2, 2, 1, FOUND,       0, 1, DIVIDED, 'w'},
    {"tied",       1, 1, 2, 2, 1, ONE_F_ONE_B, 0, 1, NONE, 't'},
    {"tied",       1, 1, 2, 2, 1, ZB_V,        2, 1, NONE, 't'},
    {"tied",       1, 1, 2, 2, 1, V_MIN,       2, 0, FULL, 't'},
    {"tied",       1, 1, 2, 2, 1, FOUND,       2, 1, NONE, 't'},
    {"dropout",    1, 1, 3, 1, 2, GPIPE,       0, 1, FULL, 'b'},
    {"dropout",    1, 1, 3, 1, 2, ONE_F_ONE_B, 0, 1, NONE, 'b'},
    {"dropout",    1, 1, 3, 1, 2, ZERO_BUBBLE, 0, 1, BUDGET, 'b'},
    {"gpt2-bf16",  2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, NONE, 'c'},
    {"gpt2-bf16",  2, 1, 2, 1, 2, ZERO_BUBBLE, 0, 1, FULL, 'c'},
    {"gpt2-bf16",  2, 1, 2, 1, 2, GPIPE,       0, 1, SELECTIVE, 'c'},
    {"gpt2-bf16",  2, 1, 2, 1, 2, INTERLEAVED, 3, 1, BUDGET, 'c'},
    {"gpt2-bf16",  2, 1, 2, 1, 2, ZERO_BUBBLE, 0, 1, LOWERED, 'c'},
    {"llama-fp16", 2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, NONE, 'h'},
    {"llama-fp16", 2, 1, 2, 1, 2, ZERO_BUBBLE, 0, 1, FULL, 'h'},
    {"llama-fp16", 2, 1, 2, 1, 2, INTERLEAVED, 2, 1, BUDGET, 'h'},
    {"llama-fp16", 2, 1, 2, 1, 2, ZB_V,        2, 1, NONE, 'h'},
    /* nor on how much is sharded: over the step; over each of two micro-batches; all four at one micro-batch */
    {"qwen2",      2, 1, 1, 3, 2, 0,           0, 0, "", 'd'},
    {"qwen2",      2, 1, 1, 3, 2, 0,           0, 1, "", 'd'},
    {"qwen2",      2, 1, 1, 3, 2, 0,           0, 3, GATHER, 'd'},
    {"qwen2",      2, 1, 1, 3, 2, 0,           0, 3, GATHER " " LOWERED, 'd'},
    {"tied",       1, 1, 1, 3, 2, 0,           0, 2, EACH, 'e'},
    {"tied",       1, 1, 1, 3, 2, 0,           0, 3, EACH, 'e'},
    {"llama",      1, 1, 1, 3, 4, 0,           0, 0, "", 'f'},
    {"llama",      1, 1, 1, 3, 4, 0,           0, 1, "", 'f'},
    {"llama",      1, 1, 1, 3, 4, 0,           0, 2, EACH, 'f'},
    {"llama",      1, 1, 1, 3, 4, 0,           0, 3, EACH, 'f'},
    {"gpt2-bf16",  1, 1, 2, 2, 2, ONE_F_ONE_B, 0, 0, "", 'g'},
    {"gpt2-bf16",  1, 1, 2, 2, 2, ZERO_BUBBLE, 0, 1, FULL, 'g'},
    /* a sample's tokens divided over context ranks */
    {"gpt2",       1, 2, 1, 1, 2, 0,           0, 1, "", 0},
    {"gpt2",       2, 2, 1, 1, 2, 0,           0, 1, "", 0},
    {"gpt2",       2, 2, 1, 1, 3, 0,           0, 1, ALONE, 0},
    {"gpt2",       3, 2, 1, 1, 2, 0,           0, 1, FULL, 0},
    {"gpt2",       1, 2, 2, 1, 2, ONE_F_ONE_B, 0, 1, "", 0},
    {"gpt2",       1, 2, 3, 1, 2, ZERO_BUBBLE, 0, 1, FULL, 0},
    {"gpt2",       1, 2, 1, 2, 2, 0,           0, 0, "", 0},
    {"gpt2",       1, 2, 1, 2, 2, 0,           0, 3, EACH, 0},
    {"gpt2",       2, 2, 1, 2, 2, 0,           0, 3, "", 0},
    {"gpt2",       1, 4, 1, 1, 2, 0,           0, 3, "", 0},
    {"llama",      1, 2, 1, 1, 1, 0,           0, 1, "", 0},
    {"llama",      2, 2, 1, 1, 2, 0,           0, 1, PARTS, 0},
    {"llama",      2, 2, 1, 1, 2, 0,           0, 1, HALVES " " SELECTIVE, 0},
    {"llama",      4, 2, 1, 1, 2, 0,           0, 1, ALONE, 0},
    {"llama",      1, 2, 2, 1, 2, INTERLEAVED, 2, 1, "", 0},
    {"llama",      1, 2, 2, 1, 1, V_HALF,      2, 1, SELECTIVE, 0},
    {"llama",      1, 2, 3, 1, 2, FOUND,       0, 1, UNEVEN("3,3,2"), 0},
    {"llama",      1, 2, 1, 2, 1, 0,           0, 2, REDUCE, 0},
    {"llama",      1, 2, 1, 3, 2, 0,           0, 3, GATHER, 0},
    {"llama",      2, 2, 2, 1, 2, ONE_F_ONE_B, 0, 1, "", 0},
    {"llama",      1, 2, 2, 2, 1, ZERO_BUBBLE, 0, 3, EACH, 0},
    {"llama",      1, 4, 1, 1, 3, 0,           0, 2, "", 0},
    {"llama",      2, 4, 1, 1, 2, 0,           0, 1, FULL, 0},
    {"llama",      1, 4, 2, 1, 2, ZERO_BUBBLE, 0, 1, "", 0},
    {"llama-48",   1, 3, 1, 1, 2, 0,           0, 1, "", 0},
    {"llama-48",   2, 3, 1, 1, 1, 0,           0, 1, "", 0},
    {"llama-48",   1, 3, 2, 1, 2, ZB_H2,       0, 1, FULL, 0},
    {"llama-48",   1, 3, 1, 2, 2, 0,           0, 3, EACH, 0},
    {"tied",       3, 2, 1, 1, 2, 0,           0, 1, "", 0},
    {"tied",       1, 2, 2, 1, 4, ONE_F_ONE_B, 0, 1, FULL, 0},
    {"tied",       1, 2, 1, 3, 2, 0,           0, 3, EACH, 0},
    {"tied",       1, 4, 2, 1, 2, ZB_V,        2, 1, "", 0},
    {"qwen2",      4, 2, 1, 1, 2, 0,           0, 1, "", 0},
    {"qwen3",      2, 2, 1, 1, 2, 0,           0, 1, "", 0},
    {"qwen3",      1, 2, 3, 1, 1, GPIPE,       0, 1, "", 0},
    {"mistral",    1, 2, 1, 1, 4, 0,           0, 1, "", 0},
    {"mistral",    3, 2, 1, 1, 2, 0,           0, 1, "", 0},
    {"mistral",    1, 2, 2, 1, 2, ZERO_BUBBLE, 0, 1, FULL, 0},
    {"mistral",    1, 4, 1, 1, 2, 0,           0, 1, "", 0},
    {"documents",  1, 2, 1, 1, 2, 0,           0, 1, "", 0},
    {"documents",  2, 2, 1, 1, 2, 0,           0, 1, "", 0},
    {"documents",  1, 2, 3, 1, 2, INTERLEAVED, 2, 1, "", 0},
    {"documents",  1, 2, 1, 2, 1, 0,           0, 3, "", 0},
    {"documents",  1, 4, 1, 1, 4, 0,           0, 1, FULL, 0},
    {"documents",  1, 2, 1, 1, 2, 0,           0, 1, BALANCED, 0},
    {"documents",  2, 2, 1, 1, 2, 0,           0, 1, BALANCED " " PARTS, 0},
    {"documents",  1, 2, 3, 1, 2, INTERLEAVED, 2, 1, BALANCED, 0},
    {"documents",  1, 2, 1, 3, 1, 0,           0, 3, BALANCED " " EACH, 0},
    {"documents",  1, 4, 1, 1, 4, 0,           0, 1, BALANCED " " FULL, 0},
    {"documents",  1, 2, 3, 1, 2, ZERO_BUBBLE, 0, 1, BALANCED " " DIVIDED, 0},
    {"dropout",    1, 2, 1, 1, 2, 0,           0, 1, "", 0},
    {"dropout",    2, 2, 1, 1, 2, 0,           0, 1, "", 0},
    {"dropout",    3, 2, 1, 1, 2, 0,           0, 1, ALONE, 0},
    {"dropout",    1, 2, 3, 1, 2, ZERO_BUBBLE, 0, 1, FULL, 0},
    {"dropout",    1, 2, 1, 3, 2, 0,           0, 2, "", 0},
    {"dropout",    1, 4, 1, 1, 1, 0,           0, 1, "", 0},
    {"gpt2",       1, 2, 2, 1, 2, ONE_F_ONE_B, 0, 1, DIVIDED, 0},
    {"tied",       1, 2, 3, 1, 2, ZB_V,        2, 1, DIVIDED, 0},
    {"llama",      1, 2, 2, 2, 1, INTERLEAVED, 2, 3, DIVIDED " " EACH, 0},
    {"documents",  1, 2, 3, 1, 2, ZERO_BUBBLE, 0, 1, DIVIDED, 0},
    {"gpt2",       1, 2, 1, 1, 2, 0,           0, 1, BUDGET, 0},
    {"llama-bf16", 1, 2, 1, 1, 2, 0,           0, 1, "", 0},
    {"llama-bf16", 2, 4, 1, 1, 2, 0,           0, 1, "", 0},
    {"gpt2-bf16",  1, 2, 1, 3, 2, 0,           0, 3, EACH, 0},
    {"llama-fp16", 1, 2, 2, 1, 2, INTERLEAVED, 2, 1, "", 0},
    {"llama",      1, 2, 2, 1, 2, GPIPE,       0, 1, NONE, 'j'},
    {"llama",      1, 2, 2, 1, 2, ZERO_BUBBLE, 0, 1, FULL, 'j'},
    {"llama",      1, 2, 2, 1, 2, INTERLEAVED, 2, 1, SELECTIVE, 'j'},
    {"gpt2",       1, 2, 1, 2, 2, 0,           0, 0, "", 'k'},
    {"gpt2",       1, 2, 1, 2, 2, 0,           0, 1, LOWERED, 'k'},
    /* what families add: norms behind, two rotary tables, multipliers, layers that do not rotate */
    {"gemma2",     3, 1, 1, 1, 2, 0,           0, 1, "", 0},
    {"gemma2",     1, 2, 1, 1, 2, 0,           0, 1, FULL, 0},
    {"gemma2",     1, 1, 3, 1, 2, ONE_F_ONE_B, 0, 1, DIVIDED, 0},
    {"gemma2",     1, 1, 1, 2, 2, 0,           0, 3, EACH, 0},
    {"gemma3",     3, 1, 1, 1, 2, 0,           0, 1, "", 0},
    {"gemma3",     6, 1, 1, 1, 4, 0,           0, 1, ALONE " " FULL, 0},
    {"gemma3",     1, 2, 1, 1, 2, 0,           0, 1, "", 0},
    {"gemma3",     1, 1, 3, 1, 2, ONE_F_ONE_B, 0, 1, DIVIDED, 0},
    {"gemma3",     1, 1, 1, 2, 2, 0,           0, 3, EACH, 0},
    {"gemma3",     3, 1, 2, 1, 1, INTERLEAVED, 3, 1, PARTS, 0},
    {"gemma3",     3, 2, 1, 1, 2, 0,           0, 1, "", 0},
    {"granite",    2, 1, 1, 1, 2, 0,           0, 1, "", 0},
    {"granite",    4, 1, 1, 1, 4, 0,           0, 1, ALONE " " FULL, 0},
    {"granite",    1, 2, 1, 1, 2, 0,           0, 1, "", 0},
    {"granite",    1, 1, 3, 1, 2, ZERO_BUBBLE, 0, 1, DIVIDED, 0},
    {"granite",    1, 1, 1, 2, 2, 0,           0, 3, EACH, 0},
    {"granite",    2, 1, 2, 2, 1, INTERLEAVED, 3, 2, PARTS, 0},
    {"granite",    2, 2, 2, 1, 2, ZERO_BUBBLE, 0, 1, "", 0},
    {"smollm3",    2, 1, 1, 1, 2, 0,           0, 1, "", 0},
    {"smollm3",    2, 1, 1, 1, 4, 0,           0, 1, ALONE " " FULL, 0},
    {"smollm3",    1, 2, 1, 1, 2, 0,           0, 1, "", 0},
    {"smollm3",    1, 1, 3, 1, 2, ONE_F_ONE_B, 0, 1, DIVIDED, 0},
    {"smollm3",    1, 1, 1, 2, 2, 0,           0, 3, EACH, 0},
    {"smollm3",    2, 1, 2, 2, 1, GPIPE,       0, 2, SELECTIVE, 0},
    {"smollm3",    2, 2, 2, 1, 2, ZERO_BUBBLE, 0, 1, "", 0},
    {"olmo2",      2, 1, 1, 1, 2, 0,           0, 1, "", 0},
    {"olmo2",      4, 1, 1, 1, 4, 0,           0, 1, ALONE " " FULL, 0},
    {"olmo2",      1, 2, 1, 1, 2, 0,           0, 1, "", 0},
    {"olmo2",      1, 1, 3, 1, 2, ONE_F_ONE_B, 0, 1, DIVIDED, 0},
    {"olmo2",      4, 1, 1, 2, 2, 0,           0, 3, EACH, 0},
    {"olmo2",      2, 2, 2, 1, 2, ZERO_BUBBLE, 0, 1, "", 0},
    {"olmo3",      3, 1, 1, 1, 2, 0,           0, 1, SELECTIVE, 0},
    {"olmo3",      6, 1, 1, 1, 4, 0,           0, 1, ALONE " " FULL, 0},
    {"olmo3",      3, 2, 1, 1, 2, 0,           0, 1, "", 0},
    {"olmo3",      3, 1, 2, 1, 1, INTERLEAVED, 3, 1, PARTS, 0},
    {"olmo3",      1, 1, 3, 1, 2, ONE_F_ONE_B, 0, 1, DIVIDED, 0},
    {"olmo3",      3, 1, 1, 2, 2, 0,           0, 3, EACH, 0},
    {"phi3",       4, 1, 1, 1, 2, 0,           0, 1, "", 0},
    {"phi3",       1, 1, 3, 1, 2, ZERO_BUBBLE, 0, 1, DIVIDED, 0},
    {"phi3",       1, 2, 3, 1, 2, ONE_F_ONE_B, 0, 1, "", 0},
    {"phi3",       2, 1, 1, 2, 2, 0,           0, 3, SELECTIVE, 0},
    {"glm4",       4, 1, 1, 1, 2, 0,           0, 1, "", 0},
    {"glm4",       2, 1, 1, 1, 2, 0,           0, 1, ALONE " " FULL, 0},
    {"glm4",       1, 2, 3, 1, 2, ONE_F_ONE_B, 0, 1, DIVIDED, 0},
    {"glm4",       2, 2, 1, 1, 2, 0,           0, 3, SELECTIVE, 0},
    {"neox",       4, 1, 1, 1, 2, 0,           0, 1, "", 0},
    {"neox",       3, 1, 1, 1, 2, 0,           0, 1, ALONE " " FULL, 0},
    {"neox",       1, 2, 3, 1, 2, ONE_F_ONE_B, 0, 1, DIVIDED, 0},
    {"neox",       2, 1, 1, 2, 2, 0,           0, 3, SELECTIVE, 0},
    {"neox",       2, 2, 2, 1, 2, ZERO_BUBBLE, 0, 1, "", 0},
    /* experts, each rank with all of them */
    {"mixtral",    2, 1, 1, 1, 2, 0,           0, 1, "", 0},
    {"mixtral",    6, 1, 1, 1, 4, 0,           0, 1, FULL, 0},
    {"mixtral",    1, 2, 1, 1, 2, 0,           0, 1, "", 0},
    {"mixtral",    1, 1, 3, 1, 2, ONE_F_ONE_B, 0, 1, DIVIDED, 0},
    {"mixtral",    1, 1, 1, 3, 2, 0,           0, 3, EACH, 0},
    {"mixtral",    2, 1, 1, 2, 2, 0,           0, 2, REDUCE, 0},
    {"mixtral",    4, 1, 1, 2, 2, 0,           0, 3, "", 0},
    {"mixtral",    2, 2, 1, 1, 2, 0,           0, 1, PARTS, 0},
    {"experts",    3, 1, 1, 1, 2, 0,           0, 1, "", 0},
    {"experts",    1, 2, 1, 1, 2, 0,           0, 1, SELECTIVE, 0},
    {"experts",    1, 1, 4, 1, 2, INTERLEAVED, 2, 1, "", 0},
    {"experts",    1, 1, 1, 2, 2, 0,           0, 0, "", 0},
    /* experts divided over blocks of ranks */
    {"mixtral",    2, 1, 1, 1, 2, 0,           0, 1, EXPERT("2"), 0},
    {"mixtral",    4, 1, 1, 1, 2, 0,           0, 1, EXPERT("4"), 0},
    {"mixtral",    4, 1, 1, 1, 1, 0,           0, 1, EXPERT("2") " " FULL, 0},
    {"mixtral",    1, 2, 1, 1, 2, 0,           0, 1, EXPERT("2"), 0},
    {"mixtral",    1, 1, 1, 2, 2, 0,           0, 1, EXPERT("2"), 0},
    {"mixtral",    1, 1, 1, 3, 2, 0,           0, 0, EXPERT("3"), 0},
    {"mixtral",    1, 1, 1, 4, 1, 0,           0, 3, EXPERT("2") " " EACH, 0},
    {"mixtral",    1, 1, 1, 6, 2, 0,           0, 2, EXPERT("3") " " REDUCE, 0},
    {"mixtral",    2, 2, 1, 1, 2, 0,           0, 1, EXPERT("4"), 0},
    {"mixtral",    2, 1, 1, 2, 2, 0,           0, 3, EXPERT("2"), 0},
    {"mixtral",    2, 1, 1, 3, 2, 0,           0, 1, EXPERT("3") " " SELECTIVE, 0},
    {"mixtral",    1, 1, 2, 2, 2, ONE_F_ONE_B, 0, 1, EXPERT("2"), 0},
    {"mixtral",    1, 1, 2, 2, 1, ZERO_BUBBLE, 0, 3, EXPERT("2") " " EACH, 0},
    {"mixtral",    2, 1, 3, 1, 2, INTERLEAVED, 2, 1, EXPERT("2") " " FULL, 0},
    {"mixtral",    1, 2, 2, 2, 1, GPIPE,       0, 2, EXPERT("4"), 0},
    {"mixtral",    1, 1, 2, 3, 1, V_HALF,      2, 1, EXPERT("3") " " DIVIDED, 0},
    {"mixtral",    1, 1, 2, 2, 2, ZB_V,        2, 1, EXPERT("2") " " BUDGET, 0},
    {"experts",    3, 1, 1, 1, 3, 0,           0, 1, EXPERT("3"), 0},
    {"experts",    1, 1, 1, 4, 1, 0,           0, 1, EXPERT("4"), 0},
    {"experts",    1, 2, 2, 1, 2, ZERO_BUBBLE, 0, 1, EXPERT("2"), 0},
    {"experts",    1, 1, 1, 2, 2, 0,           0, 3, EXPERT("2") " " EACH, 0},
    {"experts",    1, 2, 1, 3, 1, 0,           0, 1, EXPERT("6"), 0},
    /* little room, so that steps are played again on both higher buckets */
    {"mixtral",    1, 1, 1, 2, 2, 0,           0, 1, EXPERT("2") " " ROOM("0.3", "0"), 0},
    {"mixtral",    2, 1, 1, 3, 2, 0,           0, 3, EXPERT("6") " " ROOM("0.5", "1") " " EACH, 0},
    {"mixtral",    1, 1, 2, 2, 2, ZERO_BUBBLE, 0, 1, EXPERT("2") " " ROOM("0.9", "1"), 0},
    {"mixtral",    1, 2, 2, 1, 2, INTERLEAVED, 2, 1, EXPERT("2") " " ROOM("0.4", "2") " " FULL, 0},
    {"experts",    1, 1, 1, 3, 2, 0,           0, 2, EXPERT("3") " " ROOM("0.2", "3") " " REDUCE, 0},
    {"experts",    3, 1, 2, 1, 3, V_HALF,      2, 1, EXPERT("3") " " ROOM("0.7", "0"), 0},
    {"mixtral",    1, 1, 2, 3, 1, ONE_F_ONE_B, 0, 1, EXPERT("3") " " ROOM("0.5", "0") " " BUDGET, 0},
    /* a bias that counts of tokens move: every layout, and steps played again, count each token once */
    {"shared",     4, 1, 1, 1, 2, 0,           0, 1, EXPERT("4"), 0},
    {"shared",     2, 1, 1, 2, 2, 0,           0, 3, EXPERT("4") " " EACH, 0},
    {"shared",     1, 2, 2, 1, 2, ONE_F_ONE_B, 0, 1, FULL, 0},
    {"shared",     2, 1, 2, 1, 2, ZB_V,        2, 1, EXPERT("2") " " SELECTIVE, 0},
    {"shared",     1, 1, 1, 3, 2, 0,           0, 2, EXPERT("3") " " ROOM("0.3", "1") " " REDUCE, 0},
    /* latents: by which ranks they are made, gathered and expanded */
    {"latent",     2, 1, 1, 1, 2, 0,           0, 1, "", 0},
    {"unrouted",   2, 1, 1, 1, 2, 0,           0, 1, ALONE, 0},
    {"latent",     4, 1, 1, 1, 2, 0,           0, 1, FULL, 0},
    {"latent",     4, 1, 1, 1, 2, 0,           0, 1, EXPERT("4") " " SELECTIVE, 0},
    {"latent",     1, 2, 1, 1, 2, 0,           0, 1, LATENTS, 0},
    {"latent",     1, 2, 1, 1, 2, 0,           0, 1, KEYS, 0},
    {"latent",     2, 2, 1, 1, 2, 0,           0, 1, LATENTS " " FULL, 0},
    {"unrouted",   2, 2, 1, 1, 2, 0,           0, 1, LATENTS " " ALONE, 0},
    {"latent",     1, 2, 2, 1, 2, ONE_F_ONE_B, 0, 1, LATENTS " " EXPERT("2"), 0},
    {"latent",     2, 1, 3, 1, 2, ONE_F_ONE_B, 0, 1, DIVIDED " " FULL, 0},
    {"latent",     2, 1, 2, 1, 2, ZB_V,        2, 1, SELECTIVE, 0},
    {"latent",     1, 1, 1, 3, 2, 0,           0, 3, EACH, 0},
    {"latent",     2, 1, 1, 2, 2, 0,           0, 3, EXPERT("2") " " EACH, 0},
    {"latent",     1, 1, 1, 3, 2, 0,           0, 2, EXPERT("3") " " REDUCE, 0},
    {"latent-biased", 2, 1, 1, 1, 2, 0,        0, 1, "", 0},
    {"latent-biased", 2, 1, 1, 1, 2, 0,        0, 1, ALONE " " FULL, 0},
    {"latent-biased", 1, 2, 1, 1, 2, 0,        0, 1, LATENTS, 0},
    {"latent-biased", 2, 1, 2, 1, 2, ZERO_BUBBLE, 0, 1, SELECTIVE, 0},
    {"latent-biased", 2, 1, 1, 2, 2, 0,        0, 3, EACH, 0},
    {"latent-bf16", 2, 1, 1, 1, 2, 0,          0, 1, "", 0},
    {"latent-bf16", 2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, NONE, 'r'},
    {"latent-bf16", 2, 1, 2, 1, 2, ZERO_BUBBLE, 0, 1, FULL, 'r'},
    {"direct",     2, 1, 1, 1, 2, 0,           0, 1, "", 0},
    {"unrouted",   3, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, ALONE " " FULL, 0},
    {"direct",     1, 3, 1, 1, 2, 0,           0, 1, LATENTS " " FULL, 0},
    {"direct",     1, 3, 1, 1, 2, 0,           0, 1, KEYS, 0},
    {"direct",     2, 3, 1, 1, 2, 0,           0, 1, LATENTS, 0},
    {"direct",     1, 2, 1, 2, 2, 0,           0, 3, KEYS " " EACH, 0},
    {"direct",     1, 1, 2, 2, 2, INTERLEAVED, 2, 1, EXPERT("2"), 0},
    {"direct",     1, 2, 2, 1, 2, ZERO_BUBBLE, 0, 1, LATENTS " " BALANCED, 0},
    /* sinks of divided heads, and experts with biases */
    {"gpt-oss",    2, 1, 1, 1, 2, 0,           0, 1, "", 0},
    {"gpt-oss",    4, 1, 1, 1, 2, 0,           0, 1, "", 0},
    {"gpt-oss",    4, 1, 1, 1, 2, 0,           0, 1, EXPERT("4") " " FULL, 0},
    {"gpt-oss",    1, 2, 1, 1, 2, 0,           0, 1, "", 0},
    {"gpt-oss",    2, 2, 1, 1, 2, 0,           0, 1, SELECTIVE, 0},
    {"gpt-oss",    1, 2, 2, 1, 2, ZERO_BUBBLE, 0, 1, FULL, 0},
    {"gpt-oss",    1, 1, 3, 1, 2, ONE_F_ONE_B, 0, 1, DIVIDED, 0},
    {"gpt-oss",    2, 1, 2, 1, 2, ZB_V,        2, 1, DIVIDED " " SELECTIVE, 0},
    {"gpt-oss",    1, 1, 1, 2, 2, 0,           0, 3, EXPERT("2") " " EACH, 0},
    {"gpt-oss",    2, 1, 1, 2, 2, 0,           0, 3, EXPERT("4"), 0},
    {"gpt-oss",    1, 1, 1, 3, 2, 0,           0, 2, SLOTS("3") " " REDUCE, 0},
    {"gpt-oss",    2, 1, 2, 2, 1, INTERLEAVED, 3, 1, EXPERT("2") " " ROOM("0.5", "1"), 0},
    {"gpt-oss-48", 1, 3, 1, 1, 2, 0,           0, 1, "", 0},
    {"gpt-oss-48", 2, 3, 1, 1, 1, 0,           0, 1, FULL, 0},
    {"biased",     2, 1, 1, 1, 2, 0,           0, 1, "", 0},
    {"biased",     4, 1, 1, 1, 2, 0,           0, 1, FULL, 0},
    {"biased",     1, 2, 1, 1, 2, 0,           0, 1, FULL, 0},
    {"biased",     1, 1, 3, 1, 2, ONE_F_ONE_B, 0, 1, DIVIDED, 0},
    {"biased",     1, 1, 2, 1, 2, ZB_V,        2, 1, SELECTIVE, 0},
    {"biased",     1, 1, 1, 3, 2, 0,           0, 3, EACH, 0},
    {"biased",     2, 2, 1, 1, 2, 0,           0, 1, EXPERT("4"), 0},
    {"biased",     1, 1, 1, 2, 1, 0,           0, 0, EXPERT("2"), 0},
    {"biased",     1, 1, 1, 3, 2, 0,           0, 2, EXPERT("3") " " ROOM("0.2", "0") " " REDUCE, 0},
    {"biased",     2, 1, 1, 2, 2, 0,           0, 3, EXPERT("2") " " ROOM("0.3", "1") " " EACH, 0},
    {"biased",     1, 1, 2, 2, 2, ZERO_BUBBLE, 0, 1, EXPERT("2") " " ROOM("0.4", "0") " " FULL, 0},
    {"biased",     1, 1, 2, 3, 1, INTERLEAVED, 2, 1, EXPERT("3") " " BUDGET, 0},
    {"biased",     1, 1, 2, 2, 2, GPIPE,       0, 1, EXPERT("2") " " NONE, 'z'},
    {"biased",     1, 1, 2, 2, 2, ZB_V,        2, 0, EXPERT("2") " " FULL, 'z'},
    /* a block behind the last layer: the table of tokens on the last stage, once more or tied; gradients of both */
    {"mtp",        2, 1, 1, 1, 2, 0,           0, 1, "", 0},
    {"mtp",        4, 1, 1, 1, 2, 0,           0, 1, FULL, 0},
    {"mtp",        1, 2, 1, 1, 2, 0,           0, 1, SELECTIVE, 0},
    {"mtp",        1, 2, 1, 1, 2, 0,           0, 1, BALANCED, 0},
    {"mtp",        1, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, "", 0},
    {"mtp",        1, 1, 3, 1, 2, ONE_F_ONE_B, 0, 1, UNEVEN("0,4,1") " " FULL, 0},
    {"mtp",        1, 1, 2, 1, 2, ZB_V,        2, 1, SELECTIVE, 0},
    {"mtp",        1, 1, 2, 1, 1, ZERO_BUBBLE, 0, 1, "", 0},
    {"mtp",        1, 1, 1, 2, 2, 0,           0, 3, EACH, 0},
    {"mtp",        1, 1, 1, 3, 2, 0,           0, 2, REDUCE, 0},
    {"mtp",        1, 1, 1, 2, 2, 0,           0, 1, EXPERT("2"), 0},
    {"mtp",        2, 2, 1, 1, 2, 0,           0, 1, SLOTS("4") " " ROOM("0.4", "1"), 0},
    {"mtp",        2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, EXPERT("2") " " BUDGET, 0},
    {"mtp",        1, 1, 2, 2, 2, ONE_F_ONE_B, 0, 3, EACH " " FULL, 0},
    {"mtp",        2, 1, 2, 2, 1, INTERLEAVED, 2, 1, EXPERT("2"), 0},
    {"mtp-tied",   2, 1, 1, 1, 2, 0,           0, 1, SELECTIVE, 0},
    {"mtp-tied",   1, 2, 2, 1, 2, ONE_F_ONE_B, 0, 1, FULL, 0},
    {"mtp-tied",   1, 1, 3, 1, 2, ZB_V,        2, 1, "", 0},
    {"mtp-tied",   1, 1, 2, 2, 2, ONE_F_ONE_B, 0, 2, REDUCE, 0},
    {"mtp-tied",   1, 1, 1, 2, 2, 0,           0, 3, EACH, 0},
    /* and the vocabulary divided over the stages: next tokens' embeddings and a second pass over the head, from all */
    {"mtp",        1, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, DIVIDED, 0},
    {"mtp",        1, 1, 3, 1, 1, GPIPE,       0, 1, DIVIDED " " SELECTIVE, 0},
    {"mtp",        1, 1, 4, 1, 2, ONE_F_ONE_B, 0, 1, DIVIDED " " FULL, 0},
    {"mtp",        1, 1, 4, 1, 2, ZB_H2,       0, 1, DIVIDED " " UNEVEN("1,1,2,1"), 0},
    {"mtp",        2, 1, 2, 1, 2, INTERLEAVED, 2, 1, DIVIDED " " EXPERT("2"), 0},
    {"mtp",        2, 1, 3, 1, 2, ZERO_BUBBLE, 0, 1, DIVIDED " " HALVES, 0},
    {"mtp",        1, 2, 2, 1, 2, ONE_F_ONE_B, 0, 1, DIVIDED " " BALANCED, 0},
    {"mtp",        2, 2, 2, 1, 1, GPIPE,       0, 1, DIVIDED " " EXPERT("4"), 0},
    {"mtp",        1, 1, 2, 2, 2, ZERO_BUBBLE, 0, 3, DIVIDED " " EACH " " FULL, 0},
    {"mtp",        1, 1, 2, 3, 1, GPIPE,       0, 2, DIVIDED " " REDUCE, 0},
    {"mtp",        2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, DIVIDED " " EXPERT("2") " " BUDGET, 0},
    {"mtp",        1, 1, 2, 2, 2, GPIPE,       0, 1, DIVIDED " " NONE, 'm'},
    {"mtp",        1, 1, 2, 2, 2, ONE_F_ONE_B, 0, 0, DIVIDED " " FULL, 'm'},
    {"mtp",        1, 1, 2, 2, 2, ZERO_BUBBLE, 0, 1, DIVIDED " " SELECTIVE, 'm'},
    {"mtp",        1, 1, 2, 2, 2, ZB_V,        2, 1, DIVIDED " " NONE, 'm'},
    {"mtp-tied",   1, 1, 2, 1, 2, ZB_V,        2, 1, DIVIDED, 0},
    {"mtp-tied",   1, 1, 3, 1, 2, INTERLEAVED, 2, 1, DIVIDED, 0},
    {"mtp-tied",   2, 1, 2, 2, 2, ONE_F_ONE_B, 0, 1, DIVIDED " " FULL, 0},
    {"mtp-tied",   1, 2, 2, 1, 2, V_HALF,      2, 1, DIVIDED, 0},
    {"mtp-tied",   1, 1, 2, 2, 1, V_MIN,       2, 3, DIVIDED " " EACH, 0},
    {"mtp-tied",   1, 1, 3, 2, 2, ZERO_BUBBLE, 0, 2, DIVIDED " " REDUCE " " SELECTIVE, 0},
    {"mtp-tied",   1, 1, 3, 1, 1, FOUND,       2, 1, DIVIDED, 0},
    {"mtp-latent", 1, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, "", 0},
    {"mtp-latent", 2, 1, 1, 1, 2, 0,           0, 1, SELECTIVE, 0},
    {"mtp-latent", 1, 1, 3, 1, 2, ONE_F_ONE_B, 0, 1, DIVIDED, 0},
    {"mtp-latent", 2, 1, 2, 1, 2, ONE_F_ONE_B, 0, 1, DIVIDED " " FULL, 0},
    {"mtp-latent", 1, 2, 2, 1, 2, GPIPE,       0, 1, DIVIDED " " LATENTS " " EXPERT("2"), 0},
    {"mtp-latent", 1, 1, 2, 2, 2, INTERLEAVED, 2, 3, DIVIDED " " EACH, 0},
    {"mtp-latent", 1, 1, 4, 1, 1, INTERLEAVED, 0, 1, DIVIDED, 0},
    /* a loss of the loads so far, of micro-batches that are one rank's: recomputing and schedules add none twice */
    {"batch",      2, 1, 1, 1, 2, 0,           0, 1, FULL, 0},
    {"batch",      1, 2, 1, 1, 2, 0,           0, 1, EXPERT("2"), 0},
    {"batch",      1, 1, 2, 1, 2, ZERO_BUBBLE, 0, 1, FULL, 0},
    {"batch",      1, 1, 2, 1, 2, ZB_V,        2, 1, SELECTIVE, 0},
    {"batch",      2, 1, 3, 1, 2, INTERLEAVED, 2, 1, EXPERT("2") " " ROOM("0.3", "0"), 0},
    {"batch",      2, 2, 1, 1, 2, 0,           0, 3, EXPERT("2") " " EACH, 0},
    {"batch",      2, 1, 2, 1, 2, V_HALF,      2, 1, EXPERT("2") " " FULL, 'q'},
    {"batch",      2, 1, 2, 1, 2, GPIPE,       0, 1, EXPERT("2") " " NONE, 'q'},
    /* experts divided, tokens in slots */
    {"mixtral",    2, 1, 1, 1, 2, 0,           0, 1, SLOTS("2"), 0},
    {"mixtral",    4, 1, 1, 1, 1, 0,           0, 1, SLOTS("4") " " FULL, 0},
    {"mixtral",    1, 2, 1, 1, 2, 0,           0, 1, SLOTS("2") " " SELECTIVE, 0},
    {"mixtral",    1, 1, 1, 2, 2, 0,           0, 1, SLOTS("2"), 0},
    {"mixtral",    1, 1, 1, 3, 2, 0,           0, 0, SLOTS("3"), 0},
    {"mixtral",    1, 1, 1, 4, 1, 0,           0, 3, SLOTS("2") " " EACH, 0},
    {"mixtral",    1, 1, 1, 6, 2, 0,           0, 2, SLOTS("3") " " REDUCE, 0},
    {"mixtral",    2, 2, 1, 1, 2, 0,           0, 1, SLOTS("4"), 0},
    {"mixtral",    2, 1, 1, 3, 2, 0,           0, 1, SLOTS("6") " " PARTS, 0},
    {"mixtral",    1, 1, 2, 2, 2, ONE_F_ONE_B, 0, 1, SLOTS("2") " " HALVES, 0},
    {"mixtral",    1, 1, 2, 2, 1, ZERO_BUBBLE, 0, 3, SLOTS("2") " " EACH, 0},
    {"mixtral",    2, 1, 3, 1, 2, INTERLEAVED, 2, 1, SLOTS("2") " " FULL, 0},
    {"mixtral",    1, 1, 2, 3, 1, V_HALF,      2, 1, SLOTS("3") " " DIVIDED, 0},
    {"mixtral",    1, 1, 2, 2, 2, ZB_V,        2, 1, SLOTS("2") " " BUDGET, 0},
    {"experts",    3, 1, 1, 1, 3, 0,           0, 1, SLOTS("3"), 0},
    {"experts",    1, 1, 1, 4, 1, 0,           0, 1, SLOTS("4"), 0},
    {"experts",    1, 2, 2, 1, 2, ZERO_BUBBLE, 0, 1, SLOTS("2"), 0},
    {"experts",    1, 2, 1, 3, 1, 0,           0, 1, SLOTS("6"), 0},
    /* and little room in them, so that steps are played again on both higher buckets */
    {"mixtral",    1, 1, 1, 2, 2, 0,           0, 1, SLOTS("2") " " ROOM("0.3", "0"), 0},
    {"mixtral",    2, 1, 1, 3, 2, 0,           0, 3, SLOTS("6") " " ROOM("0.5", "1") " " EACH, 0},
    {"mixtral",    1, 2, 2, 1, 2, INTERLEAVED, 2, 1, SLOTS("2") " " ROOM("0.4", "2") " " FULL, 0},
    {"experts",    1, 1, 1, 3, 2, 0,           0, 2, SLOTS("3") " " ROOM("0.2", "3") " " REDUCE, 0},
    {"experts",    3, 1, 2, 1, 3, V_HALF,      2, 1, SLOTS("3") " " ROOM("0.7", "0"), 0},
    /* no bit depends on recompute, schedule, or how much is sharded */
    {"mixtral",    1, 1, 2, 2, 2, GPIPE,       0, 1, SLOTS("2") " " NONE, 'Z'},
    {"mixtral",    1, 1, 2, 2, 2, ONE_F_ONE_B, 0, 0, SLOTS("2") " " FULL, 'Z'},
    {"mixtral",    1, 1, 2, 2, 2, GPIPE,       0, 1, EXPERT("2") " " NONE, 'x'},
    {"mixtral",    1, 1, 2, 2, 2, ONE_F_ONE_B, 0, 0, EXPERT("2") " " SELECTIVE, 'x'},
    {"mixtral",    1, 1, 2, 2, 2, ZERO_BUBBLE, 0, 1, EXPERT("2") " " FULL, 'x'},
    {"mixtral",    1, 1, 2, 2, 2, ZB_V,        2, 1, EXPERT("2") " " NONE, 'x'},
    {"mixtral",    2, 1, 1, 3, 2, 0,           0, 0, EXPERT("2"), 'y'},
    {"mixtral",    2, 1, 1, 3, 2, 0,           0, 1, EXPERT("2"), 'y'},
    {"mixtral",    2, 1, 1, 3, 2, 0,           0, 3, EXPERT("2") " " GATHER, 'y'},
    /* clang-format on */
};

int layouts_count(void)
{
    return (int)(sizeof rows / sizeof *rows);
}

const layouts_row *layouts_at(int index)
{
    return &rows[index];
}

int layouts_ranks(const layouts_row *row)
{
    return row->tensor * row->context * row->pipeline * row->data;
}

/* AdamW's first step is g / (|g| + epsilon), so the usual epsilon of 1e-8 turns differences of rounding in elements of
 * small gradients into a part of a whole step, and later norms differ by 1e-5. 1e-4 is above such differences. */
char *layouts_yaml(const layouts_model *model, const char *data)
{
    return must_format(
        "model: {%s, vocab_size: %d, max_sequence: %d}\n"
        "data: {train: %s}\n"
        "train: {steps: %d, sequence: %d, micro_batch: 2, global_batch: %d, precision: fp32, device: cpu, "
        "threads: 1, seed: 7}\n"
        "optimizer: {lr: 3e-3, schedule: constant, epsilon: 1e-4}\n"
        "checkpoint: {every: 0, resume: never}\n"
        "evaluate: {every: 0}\n"
        "run: {tensorboard: false, hang_seconds: 60, hash_every: 1}\n",
        model->keys, LAYOUTS_VOCABULARY, LAYOUTS_SEQUENCE, data, LAYOUTS_STEPS, LAYOUTS_SEQUENCE, LAYOUTS_BATCH);
}

static const char *schedule_word(char letter)
{
    static const char *const words[UCHAR_MAX + 1] = {
        [GPIPE] = "gpipe", [INTERLEAVED] = "interleaved", [ZERO_BUBBLE] = "zb-h1", [ZB_H2] = "zb-h2",
        [ZB_V] = "zb-v",   [V_HALF] = "v-half",           [V_MIN] = "v-min",       [FOUND] = "auto",
    };
    const char *word = words[(unsigned char)letter];
    return word ? word : "1f1b";
}

char *layouts_overrides(const layouts_row *row)
{
    return must_format(
        "parallel.tensor=%d parallel.context=%d parallel.pipeline=%d parallel.schedule=%s parallel.virtual_stages=%d "
        "parallel.zero=%d train.micro_batch=%d %s %s",
        row->tensor, row->context, row->pipeline, schedule_word(row->schedule),
        row->virtual_stages ? row->virtual_stages : 1, row->zero, row->micro_batch, row->more,
        layouts_model_of(row->model)->extra);
}

/* Without the sections' names, which say nothing new here. */
static char *shortened(const char *keys)
{
    static const char *const sections[] = {"memory.", "parallel."};
    char *text = must_strdup(keys);
    for (int i = 0; i < 2; i++)
        for (char *at; (at = strstr(text, sections[i]));)
            memmove(at, at + strlen(sections[i]), strlen(at + strlen(sections[i])) + 1);
    return text;
}

char *layouts_title(const layouts_row *row)
{
    char *more = shortened(row->more), pipeline[64] = "", context[16] = "";
    if (row->context > 1)
        snprintf(context, sizeof context, " c%d", row->context);
    if (row->pipeline > 1)
        snprintf(pipeline, sizeof pipeline, " %s%s", schedule_word(row->schedule),
                 row->virtual_stages == 3   ? " v3"
                 : row->virtual_stages == 2 ? " v2"
                                            : "");
    char *title = must_format("%-10s t%d%s p%d d%d zero %d, %2d micro-batches%s%s%s", row->model, row->tensor, context,
                              row->pipeline, row->data, row->zero, LAYOUTS_BATCH / row->micro_batch / row->data,
                              pipeline, *more ? " " : "", more);
    free(more);
    return title;
}

/* ---- rings --------------------------------------------------------------------------------------------------- */

int layouts_first_of_group(int index)
{
    for (int i = 0; rows[index].group && i < index; i++)
        if (rows[i].group == rows[index].group)
            return i;
    return index;
}

/* One row in words: overrides without the values of budgets and of uneven stages, each of which is the only one. */
static char *facts_of(int index)
{
    const layouts_row *row = &rows[index];
    char *keys = layouts_overrides(row), *text = must_format("%s ranks=%d", row->model, layouts_ranks(row)),
         *rest = keys;
    for (char *word; (word = strtok_r(rest, " ", &rest));) {
        char *equals = strchr(word, '=');
        if (equals && (equals[1] == '[' || strcmp(equals + 1, LAYOUTS_HALF) == 0))
            *equals = 0;
        char *more = must_format("%s %s", text, word);
        free(text);
        text = more;
    }
    if (row->group && layouts_first_of_group(index) != index) {
        char *more = must_format("%s bits=%c", text, row->group);
        free(text);
        text = more;
    }
    free(keys);
    return text;
}

void layouts_take(bool *takes)
{
    char **facts = must_calloc(sizeof rows / sizeof *rows, sizeof *facts);
    for (int i = 0; i < layouts_count(); i++)
        facts[i] = facts_of(i);
    cover_take(takes, (const char *const *)facts, layouts_count(), 3);
    for (int i = 0; i < layouts_count(); i++) {
        takes[layouts_first_of_group(i)] |= takes[i];
        free(facts[i]);
    }
    free(facts);
}
