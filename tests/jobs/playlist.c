#include "tests/jobs/playlist.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/config.h"
#include "engine/train/train.h"
#include "engine/state/weights/weights.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "parallel/comm/comm.h"

enum { WORDS = 64 };

static void play(comm *world, char *line, void (*prepare)(const char *word))
{
    char *word[WORDS], *rest = line;
    int words = 0;
    while (words < WORDS && (word[words] = strtok_r(rest, " \n", &rest)))
        words++;
    MUST(words > 0 && words < WORDS, "a playlist's line has %d words", words);
    const char *said = word[0][0] == '@' ? word[0] + 1 : NULL;
    int at = said ? 1 : 0;
    if (prepare)
        prepare(said);
    config c;
    double began = clock_seconds();
    status s = comm_all_status(comm_world(world), config_load(&c, word[at], words - at - 1, word + at + 1));
    if (s == STATUS_OK) {
        bool stopped;
        s = comm_all_status(comm_world(world), weights_configure(&c));
        if (s == STATUS_OK)
            s = train_run(&stopped, &c, world, NULL, began);
        config_free(&c);
    }
    if (s != STATUS_OK && comm_rank(world) == 0)
        fprintf(stderr, "phalanx: %s\n", status_message());
}

int playlist_main(int argc, char **argv, void (*prepare)(const char *word))
{
    MUST(argc == 2, "usage: %s PLAYLIST", argv[0]);
    comm *world = NULL;
    MUST(comm_open(&world) == STATUS_OK, "%s", status_message());
    log_set_rank(comm_rank(world), comm_ranks(world));
    FILE *list = fopen(argv[1], "r");
    MUST(list, "cannot read %s", argv[1]);
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, list) > 0)
        play(world, line, prepare);
    free(line);
    fclose(list);
    comm_close(world);
    return 0;
}
