/* SIGTERM and SIGINT: the first asks the run to finish its step, save and end; a second one ends the process at once.
 *
 * A signal reaches a process, not an object: the flag is the one global of this file. It says what this rank has received; that all
 * ranks act on it behind the same step is the training loop's work.
 */
#ifndef PHALANX_PARALLEL_SIGNALS_H
#define PHALANX_PARALLEL_SIGNALS_H

/* Catch both from now on. */
void signals_install(void);
/* The signal received (SIGTERM or SIGINT), or 0. */
int signals_pending(void);

#endif
