/* The machine that this program runs on, and where the program lies.
 *
 * Memory nodes are cores and memory of one socket. A process whose cores are on its device's node, and whose pages are
 * touched there, copies to and from the device without crossing between sockets. Facts are the kernel's, below `root`
 * (""; a test has its own): sys/bus/pci/devices/ID/numa_node and sys/devices/system/node/nodeN/cpulist.
 */
#pragma once

#include <stdbool.h>

enum { MACHINE_BOOT = 40 };

/* Writes the identity of the kernel's boot, at most 36 characters, and zeros behind it: programs in all of a machine's
 * containers share it, a restart changes it, and those with the same one have the same monotonic clock (clock.h). Where
 * the kernel does not tell, returns false, and all bytes are 0. */
bool machine_boot(char out[MACHINE_BOOT]);

/* "libphalanx_NAME.so" in the folder of the running program, the caller's: shared objects that are loaded when they are
 * wanted, since a login node has no CUDA, and most machines no Arrow. */
char *machine_object(const char *name);

/* The node of a PCI device ("0000:1B:00.0", in letters of any case); -1: the kernel does not say, or there is one node
 * only. */
int machine_node_of(const char *root, const char *pci);

typedef enum machine_verdict {
    MACHINE_UNKNOWN,   /* nothing is known of the node, and nothing has changed */
    MACHINE_NEAR,      /* all threads of this process run on the node's cores, by somebody's choice or by this one */
    MACHINE_ELSEWHERE, /* whoever started the process has bound it to cores of other nodes only: that stays */
} machine_verdict;

/* Of the cores that this process may use, its threads, and those that they will make, keep the node's. */
machine_verdict machine_stay_near(const char *root, int node);
