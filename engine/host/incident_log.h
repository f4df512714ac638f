/* Incidents and flight records in a run's folder: incidents.jsonl, a line each, appended; flight-RANK.jsonl, the last
 * ops and messages of one rank, replaced at each incident. Writing needs no heap and no stream, for it happens while
 * other threads of the process are stuck, or have crashed.
 */
#pragma once

#include <limits.h>

#include "parallel/watch/watchdog.h"

#define INCIDENTS_FILE "incidents.jsonl"

/* Zero at first; the caller's, who keeps it as long as the watchdog. */
typedef struct incident_log {
    char folder[PATH_MAX];
    watchdog *_Atomic watchdog;
} incident_log;

/* Once they are known: where to write, and whose flight record. Until then nothing is written. */
void incident_log_place(incident_log *k, const char *folder, watchdog *w);
/* A watchdog_write: the incident if it is ours, and this rank's flight record. */
void incident_log_write(void *k, const incident *what, bool ours);

/* One line more in FOLDER/incidents.jsonl. */
status incident_log_append(const char *folder, const incident *what);
/* The same of this rank, where it is just now. Whoever calls has told people already: a failure is not said again. */
void incident_log_say(const char *folder, watchdog *w, incident_verdict verdict, bool ends, const char *words);

/* An incident that ends the run, as it is when it happens, kept until all that can be saved is saved: whoever reads it
 * may end the job. Zero at first. */
typedef struct incident_log_held {
    incident what;
    watchdog_text text;
    char words[INCIDENT_WORDS];
    bool held;
    bool known; /* to all ranks: one of them holds it */
} incident_log_held;

/* The first that is held stays. Its host must live until it is said. */
void incident_log_hold(incident_log_held *k, const incident *what);
/* Writes it, if there is one; the status message stays. */
void incident_log_say_held(const char *folder, incident_log_held *k);
