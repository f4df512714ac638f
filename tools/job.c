#include "tools/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/manifest.h"
#include "engine/host/causes.h"
#include "engine/host/incident_log.h"
#include "engine/train/train.h"
#include "engine/state/weights/weights.h"
#include "memory/clock.h"
#include "memory/fault.h"
#include "memory/log.h"
#include "memory/outlet.h"
#include "memory/scope.h"
#include "parallel/watch/signals.h"
#include "tools/tools.h"

/* This limit holds before the configuration is known. */
enum { SECONDS_TO_BEGIN = 900 };

/* The watchdog of the process, from its first moment to its last. */
typedef struct guard {
    incident_log incidents;
    watchdog *watchdog;
    int64_t position; /* position of this job's first incident */
} guard;

static void tell_fault(void *context, fault_kind kind, const char *words)
{
    static const incident_verdict verdicts[] = {
        [FAULT_CRASH] = INCIDENT_DEAD, [FAULT_FILE] = INCIDENT_DATA, [FAULT_STORAGE] = INCIDENT_STORAGE};
    watchdog_fail(((guard *)context)->watchdog, verdicts[kind], words);
}

static void tell_fatal(void *context, const char *words)
{
    watchdog_fail(((guard *)context)->watchdog, INCIDENT_DEAD, words);
}

static status guard_open(guard *g)
{
    watchdog_limits limits = {.silent = SECONDS_TO_BEGIN};
    for (int i = 0; i < INCIDENT_PHASES; i++)
        limits.phase[i] = SECONDS_TO_BEGIN;
    signals_install();
    TRY(watchdog_open(&g->watchdog, &limits, incident_log_write, &g->incidents));
    fault_install(tell_fault, g);
    log_set_last_words(tell_fatal, g);
    log_set_where(watchdog_where, g->watchdog);
    return STATUS_OK;
}

/* Tells whether an override sets this key, or a key of the section that holds it. */
static bool says(const options_said *said, const char *key)
{
    size_t section = strcspn(key, ".");
    for (int i = 0; i < said->overrides; i++) {
        size_t length = strcspn(said->override[i], "=");
        if ((length == section || length == strlen(key)) && !strncmp(said->override[i], key, length))
            return true;
    }
    return false;
}

/* Names all missing keys at once if there is no configuration file. */
static status check_without_file(const options_said *said)
{
    const char *model = says(said, "model.preset") || says(said, "model.from") || says(said, "model.config") ||
                                says(said, "model.layers")
                            ? NULL
                            : "model.preset (or model.from, model.config, or every size)",
               *data = says(said, "data.train") ? NULL : "data.train (the prefix of a .bin/.idx pair, of tokenize)";
    if (said->file || (!model && !data))
        return STATUS_OK;
    return status_fail(STATUS_USAGE, "no configuration file is named, and these keys are missing: %s%s%s",
                       model ? model : "", model && data ? ", " : "", data ? data : "");
}

/* Reads the configuration before joining the job, since it limits how long joining may take. */
static status read_config(config *c, guard *g, options_said said)
{
    watchdog_enter(g->watchdog, DURING_START, true, 0, "reading the configuration");
    status s = check_without_file(&said);
    if (s == STATUS_OK)
        s = config_load(c, said.file, said.overrides, said.override);
    if (s == STATUS_OK && c->run.log_format == CONFIG_LOG_JSON)
        outlet_write_json(log_rank);
    if (s == STATUS_OK) {
        watchdog_limits limits = train_limits(c);
        watchdog_limit(g->watchdog, &limits);
        incident_log_place(&g->incidents, c->run.folder, g->watchdog);
        g->position = causes_position(c->run.folder);
    }
    watchdog_enter(g->watchdog, DURING_START, false, 0, "joining the job");
    return s;
}

/* Joins the job; all ranks then know how reading the configuration ended, and that they were started alike. */
static status join(comm **world, const guard *g, const options_facts *facts, status loaded)
{
    AUTO_FREE char *words = must_strdup(status_message());
    status s = comm_open(world);
    if (s != STATUS_OK) {
        log_error("%s", status_message());
    } else {
        log_set_rank(comm_rank(*world), comm_ranks(*world));
        s = loaded == STATUS_OK ? STATUS_OK : status_fail(loaded, "%s", words);
        s = options_agree(*world, s, facts);
    }
    return s == STATUS_OK ? watchdog_join(g->watchdog, *world) : s;
}

/* Names this start, by the id that its supervisor gave or by a drawn one, and reads the model's sizes. */
static status configure(config *c, comm *world, const guard *g)
{
    char id[MANIFEST_RUN] = "";
    snprintf(id, sizeof id, "%s", watchdog_run(g->watchdog));
    TRY(comm_all_status(comm_world(world), *id ? STATUS_OK : manifest_draw_run_id(id)));
    comm_broadcast_bytes(comm_world(world), id, sizeof id, 0);
    watchdog_name_run(g->watchdog, id);
    watchdog_enter(g->watchdog, DURING_SETUP, true, 0, "reading the model's configuration");
    return comm_all_status(comm_world(world), weights_configure(c));
}

/* Prints the failure on one rank: all ranks agreed on the status, which names the rank it came from. Records it as an
 * incident unless a rank has recorded the cause. */
static void say_failed(const guard *g, const config *c, const comm *world, status s, status loaded)
{
    if (s == STATUS_OK || !world || comm_rank(world) != 0)
        return;
    fprintf(stderr, "phalanx: %s\n", status_message());
    if (s != STATUS_FAILED || loaded != STATUS_OK)
        return;
    AUTO_FREE char *words = must_strdup(status_message());
    if (!causes_read(c->run.folder, g->position, watchdog_run(g->watchdog)).known)
        incident_log_say(c->run.folder, g->watchdog, INCIDENT_REFUSED, true, words);
}

/* Parses the command line: `command` and the options that every job has. */
static int parse_options(const char **id, int *operands, const options_command *command, int argc, char **argv)
{
    const options_row row =
        OPTION_TEXT("--start-id", "ID",
                    "of this start, 32 hexadecimal digits, as phalanx supervise gives it; else drawn", (void *)id);
    options_command all = *command;
    all.row = &row;
    all.rows = 1;
    int code = options_parse(&all, operands, argc, argv);
    if (code != OPTIONS_GO_ON || !*id ||
        (strlen(*id) == MANIFEST_RUN - 1 && strspn(*id, "0123456789abcdef") == MANIFEST_RUN - 1))
        return code;
    log_error("--start-id %s: expected 32 hexadecimal digits", *id);
    return STATUS_USAGE;
}

int job_run(const options_command *command, int argc, char **argv, job_work *work)
{
    double began = clock_seconds();
    bool stopped = false;
    const char *id = NULL;
    int operands, code = parse_options(&id, &operands, command, argc, argv);
    if (code != OPTIONS_GO_ON)
        return code;
    comm *world = NULL;
    config c = {.run.exit_when_stopped = STATUS_LOST};
    guard g = {0};
    outlet_open();
    log_set_rank(comm_expected_rank(), 1);
    status s = guard_open(&g);
    if (s != STATUS_OK) {
        log_error("%s", status_message());
        return (int)s;
    }
    if (id)
        watchdog_name_run(g.watchdog, id);
    status loaded = read_config(&c, &g, options_said_of(operands, argv + 1));
    const options_facts facts = {.command = command, .config = loaded == STATUS_OK ? &c : NULL};
    s = join(&world, &g, &facts, loaded);
    if (s == STATUS_OK)
        s = configure(&c, world, &g);
    if (s == STATUS_OK)
        s = work(&stopped, &c, world, g.watchdog, began);
    code = (s == STATUS_OK && stopped) || s == STATUS_LOST ? c.run.exit_when_stopped : (int)s;
    signals_done(code);
    say_failed(&g, &c, world, s, loaded);
    if (loaded == STATUS_OK)
        config_free(&c);
    watchdog_leave(g.watchdog);
    comm_close(world);
    fault_install(NULL, NULL);
    log_set_last_words(NULL, NULL);
    log_set_where(NULL, NULL);
    watchdog_close(g.watchdog);
    outlet_close(OUTLET_CLOSE_SECONDS);
    return code;
}

int train_main(int argc, char **argv)
{
    static const options_command command = {
        .name = "train",
        .operands = "[CONFIG.yaml] [key=value ...]",
        .summary =
            "Trains a model as CONFIG.yaml says; key=value overrides the file (`optimizer.lr=1e-4`, "
            "`data.train=[a,b]`).\n"
            "On several ranks: mpirun -np N phalanx train ..., or srun. A run resumes from its latest checkpoint.",
        .least = 1,
        .most = -1,
        .more_help = config_help,
        .help_about = config_help_about,
    };
    return job_run(&command, argc, argv, train_run);
}
