/* phalanx: finds the subcommand and runs it. */
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/log.h"
#include "memory/status.h"
#include "engine/config/nearest.h"
#include "engine/islands/islands.h"
#include "engine/system/http.h"
#include "engine/tracking/mlflow_rest.h"
#include "tools/tools.h"
#include "parallel/watch/signals.h"

/* The loader calls this before any library is initialised. */
__attribute__((section(".preinit_array"), used)) static void (*const before_libraries)(void) = signals_note_hangup;

static void help(FILE *out)
{
    fputs("phalanx pretrains transformers across clusters.\n\nusage: phalanx COMMAND ...\n\n", out);
    help_commands(out);
    fputs("\n`phalanx COMMAND --help` lists what a command takes, `phalanx help TOPIC` says what to know.\n"
          "Exit status: 0 done; 1 failed; 2 wrong usage or configuration; 75 stopped by a signal and saved, or by the "
          "loss of its folder's lock: run it "
          "again.\n",
          out);
}

static int unknown(const char *name)
{
    nearest n = {.wanted = name};
    for (int i = 0; commands_at(i); i++)
        nearest_offer(&n, commands_at(i)->name);
    nearest_offer(&n, "help");
    const char *meant = nearest_word(&n);
    if (meant)
        log_error("unknown command %.60s; did you mean %s?", name, meant);
    else
        log_error("unknown command %.60s; `phalanx --help` lists them", name);
    return STATUS_USAGE;
}

/* Opens closed standard descriptors; otherwise the next opened file would get one, and output would land in it. */
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
    static const char *const secrets[] = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
                                          ISLANDS_CREDENTIALS, MLFLOW_LOGIN_PASSWORD,   MLFLOW_LOGIN_TOKEN};
    open_standard_streams();
    /* If memory for JSON ran out, jansson would return the same as for a text that is no JSON, and a checkpoint would
     * count as damaged. */
    json_set_alloc_funcs(must_alloc, free);
    signal(SIGXFSZ, SIG_IGN); /* a write beyond `ulimit -f` fails and is reported like any other */
    if (argc < 2) {
        help(stderr);
        return STATUS_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        help(stdout);
        return STATUS_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("phalanx " COMMANDS_VERSION);
        return STATUS_OK;
    }
    if (strcmp(argv[1], "help") == 0)
        return help_main(argc - 1, argv + 1);
    const commands_row *command = commands_find(argv[1]);
    if (!command)
        return unknown(argv[1]);
    if (command->main != supervise_main) /* its jobs need them */
        http_hide_variables(secrets, sizeof secrets / sizeof *secrets);
    return command->main(argc - 1, argv + 1);
}
