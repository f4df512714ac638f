#include "tools/tools.h"

#include <stddef.h>
#include <string.h>

static const commands_row rows[] = {
    {"train", "train a model as a configuration says", train_main},
    {"supervise", "run a training job, and start it again after an incident", supervise_main},
    {"plan", "say what a configuration needs and costs, without running it", plan_main},
    {"schedule", "bubble, memory and timeline of a pipeline schedule, without a model", schedule_main},
    {"tokenize", "turn text into training data, train a vocabulary", tokenize_main},
    {"detokenize", "turn training data back into text", detokenize_main},
    {"merge", "join training data sets", merge_main},
    {"split", "divide a training data set", split_main},
    {"convert", "between Hugging Face folders and phalanx checkpoints", convert_main},
    {"generate", "continue a prompt with a trained model", generate_main},
    {"eval", "loss and perplexity of a model on a data set or a text", eval_main},
    {"report", "a page about one run or several: curves, memory, timeline, events", report_main},
    {"timeline", "draw a step, as predicted and as measured", timeline_main},
    {"inspect", "show what a checkpoint, Hugging Face folder, data set, safetensors file or run holds", inspect_main},
    {"keys", "make an island's keys", keys_main},
    {"islands", "start or look at the etcd that islands meet at", islands_main},
    {"server", "hold the model of islands that push to it (outer.topology server)", server_main},
    {"bench", "measure this machine and the kernels on it", bench_main},
};

enum { ROWS = sizeof rows / sizeof *rows };

const commands_row *commands_at(int index)
{
    return index >= 0 && index < ROWS ? &rows[index] : NULL;
}

const commands_row *commands_find(const char *name)
{
    for (int i = 0; i < ROWS; i++)
        if (strcmp(name, rows[i].name) == 0)
            return &rows[i];
    return NULL;
}
