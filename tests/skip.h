/* Skipping a test with the reason why: cmocka's skip() has none, and tests/run.sh repeats reasons at its end. */
#pragma once

#define SKIP_NO_ETCD "no etcd: apt-get install etcd-server"

/* Ends the running test as skipped, and prints `why`. */
void skip_because(const char *why);
