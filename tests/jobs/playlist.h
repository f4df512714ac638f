/* Many training runs in one job, so that a test pays for mpirun once and not for each of its layouts.
 *
 * playlist_main() is what rank programs are: arguments are a file, each line of which is "CONFIG.yaml key=value ...",
 * as `phalanx train` takes them. Each is loaded and trained as tools/train.c does; a run that fails says one line and
 * the next begins. A line may begin with "@WORD": `prepare` is told the word before that run, NULL before one without.
 * Exit status 0 unless the job itself could not be joined.
 */
#pragma once

int playlist_main(int argc, char **argv, void (*prepare)(const char *word));
