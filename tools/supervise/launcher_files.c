#include "tools/supervise/launcher_files.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "memory/log.h"
#include "memory/scope.h"

/* The number of the job, from the session's contact.txt: "JOB.0;tcp://...". Its upper half is the launcher's; 0:
 * unknown. */
static unsigned job_of(const char *session)
{
    unsigned job = 0;
    AUTO_FREE char *path = must_format("%s/contact.txt", session);
    AUTO(FILE) *f = fopen(path, "r");
    if (f && fscanf(f, "%u.", &job) != 1)
        job = 0;
    return job;
}

/* vader_segment.HOST.UID.JOB.RANK, JOB in hexadecimal. A host's name may hold dots, so it is read from the end. */
static void remove_segments(unsigned job)
{
    AUTO(DIR) *folder = opendir("/dev/shm");
    for (struct dirent *e = folder ? readdir(folder) : NULL; e; e = readdir(folder)) {
        char *copy = must_strdup(e->d_name), *rank = strrchr(copy, '.'), *number = NULL;
        if (rank) {
            *rank = 0;
            number = strrchr(copy, '.');
        }
        if (number && strncmp(copy, "vader_segment.", 14) == 0 && (strtoul(number + 1, NULL, 16) ^ job) >> 16 == 0)
            unlinkat(dirfd(folder), e->d_name, 0); /* another user's stays */
        free(copy);
    }
}

void launcher_files_remove(pid_t launcher)
{
    char host[256] = "";
    const char *top = getenv("TMPDIR");
    gethostname(host, sizeof host - 1);
    host[strcspn(host, ".")] = 0;
    AUTO_FREE char *session =
        must_format("%s/ompi.%s.%d/pid.%d", top && *top ? top : "/tmp", host, (int)getuid(), (int)launcher);
    if (atomic_exists(session)) {
        unsigned job = job_of(session);
        if (job)
            remove_segments(job);
        if (atomic_remove(session) != STATUS_OK)
            log_warn("%s", status_message());
    }
}
