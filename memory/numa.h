/* Memory nodes: cores and memory of one socket. A process whose cores are on its device's node, and whose pages are
 * touched there, copies to and from the device without crossing between sockets.
 *
 * Facts are the kernel's, below `root` (""; a test has its own): sys/bus/pci/devices/ID/numa_node and
 * sys/devices/system/node/nodeN/cpulist.
 */
#pragma once

/* The node of a PCI device ("0000:1B:00.0", in letters of any case); -1: the kernel does not say, or there is one node
 * only. */
int numa_node_of(const char *root, const char *pci);

typedef enum numa_verdict {
    NUMA_UNKNOWN,   /* nothing is known of the node, and nothing has changed */
    NUMA_NEAR,      /* all threads of this process run on the node's cores, by somebody's choice or by this one */
    NUMA_ELSEWHERE, /* whoever started the process has bound it to cores of other nodes only: that stays */
} numa_verdict;

/* Of the cores that this process may use, its threads, and those that they will make, keep the node's. */
numa_verdict numa_stay_near(const char *root, int node);
