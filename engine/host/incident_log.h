/* Incidents and flight records in a run's folder: incidents.jsonl, a line each, appended; flight-RANK.jsonl, the last
 * ops and messages of one rank, replaced at each incident. Writing needs no heap and no stream, for it happens while
 * other threads of the process are stuck, or have crashed.
 */
#pragma once

#include <limits.h>

#include "parallel/watch/watchdog.h"

#define INCIDENTS_FILE "incidents.jsonl"

/* Zero at first; the caller keeps it as long as the watchdog. */
typedef struct incident_log {
    char folder[PATH_MAX];
    watchdog *_Atomic watchdog;
} incident_log;

/* Sets the folder and the watchdog of the flight record once they are known. Until then writes are skipped. */
void incident_log_place(incident_log *k, const char *folder, watchdog *w);
/* A watchdog_write: writes the incident if it is ours, and this rank's flight record. */
void incident_log_write(void *k, const incident *what, bool ours);

/* Appends a line to FOLDER/incidents.jsonl, unless the incident's run has lost FOLDER/lock to another. */
status incident_log_append(const char *folder, const incident *what);
/* Appends an incident at this rank's current position. The caller has already logged it, so a failure is not
 * reported. */
void incident_log_say(const char *folder, watchdog *w, incident_verdict verdict, bool ends, const char *words);

/* An incident that ends the run, recorded when it happens and held back until all is saved: its readers may end the
 * job. Zero at first. */
typedef struct incident_log_held {
    incident what;
    watchdog_text text;
    char words[INCIDENT_WORDS];
    bool held;
    bool known; /* known to all ranks: one of them holds it */
} incident_log_held;

/* Holds the incident unless one is held. Its host must live until it is written. */
void incident_log_hold(incident_log_held *k, const incident *what);
/* Writes the incident, if any; keeps the status message. */
void incident_log_say_held(const char *folder, incident_log_held *k);
