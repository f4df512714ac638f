/* Cores near a device, as machine.h promises, on a machine of two nodes made of files. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "memory/machine.h"
#include "memory/scope.h"
#include "tests/jobs/workfolder.h"
#include "tests/skip.h"
#include "tests/test.h"

#define NODES   "sys/devices/system/node"
#define DEVICES "sys/bus/pci/devices"

/* The cores that this process may use, in order; how many. */
static int own_cores(int *out, int most)
{
    cpu_set_t mine;
    int count = 0;
    assert_int_equal(sched_getaffinity(0, sizeof mine, &mine), 0);
    for (int i = 0; i < CPU_SETSIZE && count < most; i++)
        if (CPU_ISSET(i, &mine))
            out[count++] = i;
    return count;
}

static void put(const char *root, const char *name, const char *text)
{
    AUTO_FREE char *path = workfolder_path(root, name);
    for (char *slash = strchr(path + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0777);
        *slash = '/';
    }
    workfolder_write(path, text, (int64_t)strlen(text));
}

/* One core of this process in node 0 and one in node 1, and three devices. */
static void make_machine(const char *root, const int *cores)
{
    char line[64];
    snprintf(line, sizeof line, "%d\n", cores[0]);
    put(root, NODES "/node0/cpulist", line);
    snprintf(line, sizeof line, "%d,1000-1003,9000\n", cores[1]);
    put(root, NODES "/node1/cpulist", line);
    put(root, DEVICES "/0000:1b:00.0/numa_node", "0\n");
    put(root, DEVICES "/0000:ca:00.0/numa_node", "1\n");
    put(root, DEVICES "/0000:cb:00.0/numa_node", "-1\n");
}

/* In a process of its own, first bound to `first` (-1: not bound): the verdict, and the only core left then. */
static void stays(const char *root, int first, int node, machine_verdict verdict, int core)
{
    pid_t child = fork();
    if (child == 0) {
        int cores[2];
        cpu_set_t one;
        CPU_ZERO(&one);
        if (first >= 0)
            CPU_SET(first, &one);
        if (first >= 0 && sched_setaffinity(0, sizeof one, &one) != 0)
            _exit(2);
        machine_verdict v = machine_stay_near(root, node);
        int count = own_cores(cores, 2);
        _exit(v != verdict || (core >= 0 && (count != 1 || cores[0] != core)));
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

TEST_WITH(a_process_keeps_to_the_node_of_its_device, workfolder_setup, workfolder_teardown)
{
    const char *root = *state;
    int cores[2];
    if (own_cores(cores, 2) < 2)
        skip_because("one core only");
    assert_int_equal(machine_node_of(root, "0000:1B:00.0"), -1); /* nothing is known yet */
    make_machine(root, cores);
    assert_int_equal(machine_node_of(root, "0000:1B:00.0"), 0);
    assert_int_equal(machine_node_of(root, "0000:ca:00.0"), 1);
    assert_int_equal(machine_node_of(root, "0000:cb:00.0"), -1); /* a machine whose firmware does not say */
    assert_int_equal(machine_node_of(root, "0000:cc:00.0"), -1);
    stays(root, -1, 1, MACHINE_NEAR, cores[1]);
    stays(root, -1, 0, MACHINE_NEAR, cores[0]);
    stays(root, cores[0], 0, MACHINE_NEAR, cores[0]);
    stays(root, cores[0], 1, MACHINE_ELSEWHERE, cores[0]); /* mpirun or Slurm has bound it: that stays */
    stays(root, cores[1], -1, MACHINE_UNKNOWN, cores[1]);
    stays(root, cores[1], 7, MACHINE_UNKNOWN, cores[1]);
}

TEST_MAIN(NULL, NULL)
