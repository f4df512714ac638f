/* Signals that ask a run to save or to stop.
 *
 *   SIGTERM, SIGINT    finish the step, save and end; a second one, a second or more later, ends the process at once,
 *                      with 128 + its number, or with the status of finished work (signals_done)
 *   SIGHUP, SIGUSR1    finish the step, save and end (a closed terminal; batch systems before a time limit)
 *   SIGUSR2            save after the step at hand and go on
 *
 * SIGHUP that is ignored when the process starts (nohup) stays ignored, although libraries may take it before main()
 * (UCX does, in Open MPI 5): the program notes it before they are initialised. SIGPIPE is ignored: the reader of the
 * output may go. A signal reaches a process, not an object: the flags are the globals of this file. They say what this
 * rank has received; the training loop makes all ranks act on it after the same step.
 */
#pragma once

typedef enum signals_request { SIGNALS_NONE, SIGNALS_SAVE, SIGNALS_STOP } signals_request;

/* Notes whether SIGHUP is ignored. A program names it in its .preinit_array: its functions run before libraries are
 * initialised; otherwise the state at signals_install counts. */
void signals_note_hangup(void);
/* Catches them from now on; must be called again after libraries that may have taken them. */
void signals_install(void);
/* The strongest request so far. */
signals_request signals_pending(void);
/* The name of the signal that asked to stop, "SIGTERM"; "a signal" if it reached another rank. */
const char *signals_name(void);
/* Notes that all ranks have saved: the request is fulfilled, on whichever rank it arrived, or just arrives. */
void signals_saved(void);
/* Notes that the work of all ranks is done and agreed on, and that this process is about to end with `status` (0 to
 * 255): a signal that would end it at once gives that status, too. Launchers send one to the ranks that end last: srun
 * --kill-on-bad-exit sees a first rank end with 75, and must not see 143 of another. */
void signals_done(int status);
