/* The machine that this program runs on, and where the program lies.
 *
 * Memory nodes are cores and memory of one socket. A process with its cores on its device's node, and its pages touched
 * there, copies to and from the device without crossing between sockets. Facts come from the kernel's files below
 * `root` (""; a test has its own): sys/bus/pci/devices/ID/numa_node and sys/devices/system/node/nodeN/cpulist.
 */
#pragma once

#include <stdbool.h>

enum { MACHINE_BOOT = 40 };

/* Writes the identity of the kernel's boot, at most 36 characters, followed by zeros: programs in all of a machine's
 * containers share it, a restart changes it, and programs with the same one have the same monotonic clock (clock.h). If
 * it is unknown, returns false, and all bytes are 0. */
bool machine_boot(char out[MACHINE_BOOT]);

/* Returns the path of "libphalanx_NAME.so" in the program's folder, which the caller frees: shared objects are loaded
 * on demand, since a login node has no CUDA, and most machines no Arrow. */
char *machine_object(const char *name);

/* Returns the node of a PCI device ("0000:1B:00.0", letters of any case); -1: unknown, or there is one node only. */
int machine_node_of(const char *root, const char *pci);

typedef enum machine_verdict {
    MACHINE_UNKNOWN,   /* the node is unknown, and all stays as it was */
    MACHINE_NEAR,      /* all threads of this process run on the node's cores, bound before or by this call */
    MACHINE_ELSEWHERE, /* the process was started with cores of other nodes only, and keeps them */
} machine_verdict;

/* Restricts present and future threads to the node's cores, as far as this process may use them. */
machine_verdict machine_stay_near(const char *root, int node);
