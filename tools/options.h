/* Command lines of the subcommands: a table of options gives parsing, the complete --help and the messages for wrong
 * usage. A row points at the variable it sets; the variable's initial value is the default. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "engine/config/config.h"
#include "memory/status.h"
#include "parallel/comm/comm.h"

typedef enum options_kind {
    OPTIONS_FLAG,    /* bool *: no argument, sets true */
    OPTIONS_INTEGER, /* int64_t *, within [low, high] */
    OPTIONS_NUMBER,  /* double *, within [low, high] */
    OPTIONS_TEXT,    /* const char **: points into argv */
    OPTIONS_CHOICE,  /* int *: position in `choices`, which ends with NULL */
} options_kind;

typedef struct options_row {
    const char *name;     /* "--tokens" */
    options_kind kind;    /* */
    const char *argument; /* "N", for the help; NULL for flags and choices */
    const char *doc;      /* one line; says the default where it matters */
    void *into;
    double low, high; /* both 0: any */
    const char *const *choices;
} options_row;

/* Rows of each kind; `low` and `high` both 0: any number. */
#define OPTION_FLAG(name_, doc_, into_)                                                                                \
    {                                                                                                                  \
        .name = name_, .kind = OPTIONS_FLAG, .doc = doc_, .into = into_                                                \
    }
#define OPTION_TEXT(name_, argument_, doc_, into_)                                                                     \
    {                                                                                                                  \
        .name = name_, .kind = OPTIONS_TEXT, .argument = argument_, .doc = doc_, .into = into_                         \
    }
#define OPTION_CHOICE(name_, doc_, into_, choices_)                                                                    \
    {                                                                                                                  \
        .name = name_, .kind = OPTIONS_CHOICE, .doc = doc_, .into = into_, .choices = choices_                         \
    }
#define OPTION_INTEGER(name_, argument_, doc_, into_, low_, high_)                                                     \
    {                                                                                                                  \
        .name = name_, .kind = OPTIONS_INTEGER, .argument = argument_, .doc = doc_, .into = into_, .low = low_,        \
        .high = high_                                                                                                  \
    }
#define OPTION_NUMBER(name_, argument_, doc_, into_, low_, high_)                                                      \
    {                                                                                                                  \
        .name = name_, .kind = OPTIONS_NUMBER, .argument = argument_, .doc = doc_, .into = into_, .low = low_,         \
        .high = high_                                                                                                  \
    }
/* Members of options_command. */
#define OPTION_ROWS(rows_) .row = rows_, .rows = sizeof rows_ / sizeof *(rows_)

typedef struct options_command {
    const char *name;     /* "generate" */
    const char *operands; /* "CONFIG.yaml [key=value ...]", or "" */
    const char *summary;  /* a sentence or a few lines about its use */
    int least, most;      /* number of operands; most < 0: any */
    const options_row *row;
    int rows;
    void (*more_help)(FILE *out); /* printed after the options; may be NULL */
    /* Prints the help about the subject of `--help SUBJECT`; false if there is none. May be NULL. */
    bool (*help_about)(FILE *out, const char *subject);
} options_command;

enum { OPTIONS_GO_ON = -1 };

/* CONFIG.yaml [key=value ...] among the operands of a command. */
typedef struct options_said {
    const char *file; /* NULL: there are only overrides */
    int overrides;
    char *const *override;
} options_said;

/* Splits operands; the first one is an override, not a file, if it is a key=value or, with its = forgotten, a key. */
options_said options_said_of(int operands, char *const *operand);

/* Reads argv[1..argc-1]: `--name value`, `--name=value`, `--` ends the options, a lone `-` is an operand. Returns
 * OPTIONS_GO_ON with the operands moved to argv[1..*operands], or the status to exit with: 0 after --help, 2 after a
 * message on stderr. --help-man and --help-words are for `phalanx help` and for shells. */
int options_parse(const options_command *command, int *operands, int argc, char **argv);

/* Returns the exit status of a command that ends with `s`, and prints a failure: also to write the output. */
int options_exit(status s);

void options_help(FILE *out, const options_command *command);
/* The facts of a start, beside the environment. */
typedef struct options_facts {
    const options_command *command; /* its name and its options' values */
    const config *config;           /* NULL: none */
    const char *rest;               /* another argument, or NULL */
} options_facts;

/* The first message between ranks. Fails on all of them if `mine` did on any, or if they were started differently:
 * another command, option, key or variable of the environment (parallel/comm/agree.h). Another build is a warning. */
status options_agree(comm *world, status mine, const options_facts *facts);
