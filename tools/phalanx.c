/* phalanx: finds the subcommand and hands over. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "memory/log.h"
#include "memory/status.h"
#include "engine/config/nearest.h"
#include "tools/tools.h"

#define VERSION "0.1.0"

static const struct {
    const char *name, *summary;
    int (*main)(int argc, char **argv);
} commands[] = {
    {"train", "train a model as a configuration says", train_main},
    {"supervise", "run a training job, and start it again after an incident", supervise_main},
    {"plan", "say what a configuration needs and costs, without running it", plan_main},
    {"tokenize", "turn text into training data, train a vocabulary", tokenize_main},
    {"detokenize", "turn training data back into text", detokenize_main},
    {"merge", "join training data sets", merge_main},
    {"split", "divide a training data set", split_main},
    {"convert", "between Hugging Face folders and phalanx checkpoints", convert_main},
    {"generate", "continue a prompt with a trained model", generate_main},
    {"eval", "loss and perplexity of a model on a data set or a text", eval_main},
    {"inspect", "show what a checkpoint, data set, safetensors file or run holds", inspect_main},
    {"keys", "make an island's keys", keys_main},
    {"islands", "start or look at the etcd that islands meet at", islands_main},
    {"bench", "measure this machine and the kernels on it", bench_main},
};

enum { COMMANDS = sizeof commands / sizeof *commands };

static void help(FILE *out)
{
    fputs("phalanx pretrains transformers across clusters.\n\nusage: phalanx COMMAND ...\n\n", out);
    for (int i = 0; i < COMMANDS; i++)
        fprintf(out, "  %-12s%s\n", commands[i].name, commands[i].summary);
    fputs("\n`phalanx COMMAND --help` lists what a command takes.\n"
          "Exit status: 0 done; 1 failed; 2 wrong usage or configuration; 75 stopped by a signal and saved: run it "
          "again.\n",
          out);
}

static int unknown(const char *name)
{
    nearest n = {.wanted = name};
    for (int i = 0; i < COMMANDS; i++)
        nearest_offer(&n, commands[i].name);
    const char *meant = nearest_word(&n);
    if (meant)
        log_error("unknown command %.60s; did you mean %s?", name, meant);
    else
        log_error("unknown command %.60s; `phalanx --help` lists them", name);
    return STATUS_USAGE;
}

/* A descriptor that is closed would be given to the next file opened, and what is printed would land in it. */
static void open_standard_streams(void)
{
    for (int fd = open("/dev/null", O_RDWR); fd >= 0; fd = open("/dev/null", O_RDWR))
        if (fd > STDERR_FILENO) {
            close(fd);
            return;
        }
}

int main(int argc, char **argv)
{
    open_standard_streams();
    if (argc < 2) {
        help(stderr);
        return STATUS_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        help(stdout);
        return STATUS_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("phalanx " VERSION);
        return STATUS_OK;
    }
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].main(argc - 1, argv + 1);
    return unknown(argv[1]);
}
