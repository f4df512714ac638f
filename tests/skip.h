/* Skipping a test with the reason why: cmocka's skip() has none, and tests/run.sh repeats reasons at its end. */
#ifndef PHALANX_TESTS_SKIP_H
#define PHALANX_TESTS_SKIP_H

#define SKIP_NO_ETCD "no etcd: apt-get install etcd-server"

/* Ends the running test as skipped, and prints `why`. */
void skip_because(const char *why);

#endif
