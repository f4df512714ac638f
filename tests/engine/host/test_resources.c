/* What is said of a host: from files as the kernel writes them, and from a driver that this program brings itself. */
#include <math.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/host/resources.h"
#include "memory/scope.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

/* ---- a driver ---- */

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
int nvmlDeviceGetUtilizationRates(void *device, unsigned *per_cent);
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *total_free_used);
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts);
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius);

int nvmlDeviceGetClockInfo(void *device, int which, unsigned *megahertz);
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons);
int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, unsigned long long *errors);
int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed);
int nvmlDeviceGetUUID(void *device, char *out, unsigned bytes);
int nvmlEventSetCreate(void **events);
int nvmlEventSetFree(void *events);
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *events);
int nvmlEventSetWait_v2(void *events, void *event, unsigned milliseconds);

static int opened;
static char handles[2];

int nvmlInit_v2(void)
{
    opened++;
    return 0;
}

int nvmlShutdown(void)
{
    opened--;
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = 2;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    *device = &handles[index];
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned *per_cent)
{
    per_cent[0] = device == &handles[0] ? 75 : 50;
    per_cent[1] = 1;
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *total_free_used)
{
    (void)device;
    total_free_used[0] = 150ULL << 30;
    total_free_used[1] = 100ULL << 30;
    total_free_used[2] = 50ULL << 30;
    return 0;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts)
{
    *milliwatts = 650500;
    return device == &handles[0] ? 0 : 3; /* not supported */
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius)
{
    (void)device;
    *celsius = 61;
    return sensor;
}

int nvmlDeviceGetClockInfo(void *device, int which, unsigned *megahertz)
{
    (void)device;
    *megahertz = which == 1 ? 1980 : 0;
    return 0;
}

/* A driver before CUDA 12.2 calls it so. */
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons)
{
    *reasons = device == &handles[0] ? 4 : 0x48;
    return 0;
}

int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, unsigned long long *errors)
{
    *errors = device == &handles[1] && kind == 1 && counter == 0 ? 3 : 0;
    return 0;
}

int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed)
{
    *corrected = 1;
    *uncorrected = 2;
    *pending = device == &handles[1];
    *failed = 0;
    return 0;
}

int nvmlDeviceGetUUID(void *device, char *out, unsigned bytes)
{
    snprintf(out, bytes, "GPU-%s", device == &handles[0] ? "aaaa" : "bbbb");
    return 0;
}

/* Events come when a test says so: the numbers of the second GPU's errors, through a pipe. */
static struct {
    int sets, registered, pipe[2];
} events;

int nvmlEventSetCreate(void **set)
{
    *set = &events;
    events.sets++;
    return 0;
}

int nvmlEventSetFree(void *set)
{
    events.sets -= set == &events;
    return 0;
}

int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set)
{
    (void)device;
    events.registered += types == 8 && set == &events;
    return 0;
}

int nvmlEventSetWait_v2(void *set, void *event, unsigned milliseconds)
{
    struct {
        void *device;
        unsigned long long type, data;
        unsigned instances[2];
    } e = {.device = &handles[1], .type = 8};
    (void)set;
    struct pollfd comes = {.fd = events.pipe[0], .events = POLLIN};
    if (poll(&comes, 1, (int)milliseconds) != 1 || read(events.pipe[0], &e.data, sizeof e.data) != sizeof e.data)
        return 10; /* nothing has come */
    memcpy(event, &e, sizeof e);
    return 0;
}

/* ---- a host ---- */

static void write_below(const char *top, const char *name, const char *text)
{
    AUTO_FREE char *path = workfolder_path(top, name), *folder = strdup(path);
    *strrchr(folder, '/') = 0;
    assert_int_equal(atomic_make_folders(folder), STATUS_OK);
    workfolder_write(path, text, (int64_t)strlen(text));
}

static void write_host(const char *top, int busy, int disk, int network)
{
    char text[1024];
    snprintf(text, sizeof text, "cpu  %d 5 20 1000 500 1 2 3 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\nintr 1\n", busy);
    write_below(top, "proc/stat", text);
    write_below(top, "proc/meminfo",
                "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:   12000000 kB\n");
    snprintf(text, sizeof text,
             "   7       0 loop0 9 0 99999 0 0 0 99999 0 0 0 0\n"
             " 259       0 nvme0n1 50 0 %d 9 70 0 %d 9 0 9 9\n"
             " 259       1 nvme0n1p1 50 0 4444 9 70 0 5555 9 0 9 9\n"
             "   8       0 sda 50 0 100 9 70 0 10 9 0 9 9\n"
             "   8       1 sda1 50 0 100 9 70 0 10 9 0 9 9\n"
             " 253       0 dm-0 50 0 4444 9 70 0 5555 9 0 9 9\n",
             disk, 2 * disk);
    write_below(top, "proc/diskstats", text);
    snprintf(text, sizeof text,
             "Inter-|   Receive                                                |  Transmit\n"
             " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop\n"
             "    lo: 777777 1 0 0 0 0 0 0 777777 1 0 0 0 0 0 0\n"
             "  eth0: %d 1 0 0 0 0 0 0 %d 1 0 0 0 0 0 0\n"
             "docker0: 888 1 0 0 0 0 0 0 888 1 0 0 0 0 0 0\n",
             network, 3 * network);
    write_below(top, "proc/net/dev", text);
    snprintf(text, sizeof text, "%d\n", network);
    write_below(top, "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data", text);
    write_below(top, "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data", text);
}

TEST(counters_are_those_of_whole_disks_and_outer_ports)
{
    resources_host h;
    write_host(*state, 100, 1000, 10);
    resources_host_read(&h, *state);
    assert_int_equal(h.cpu_all, 100 + 5 + 20 + 1000 + 500 + 1 + 2 + 3);
    assert_int_equal(h.cpu_busy, h.cpu_all - 1500);
    assert_int_equal(h.memory_all, INT64_C(16000000) * 1024);
    assert_int_equal(h.memory_used, INT64_C(4000000) * 1024);
    assert_int_equal(h.disk_read, 512 * (1000 + 100));
    assert_int_equal(h.disk_written, 512 * (2000 + 10));
    assert_int_equal(h.network_received, 10 + 4 * 10);
    assert_int_equal(h.network_sent, 30 + 4 * 10);
    resources_host_read(&h, "/nowhere");
    assert_true(h.cpu_all == -1 && h.memory_all == -1 && h.disk_read == -1 && h.network_sent == -1);
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-6 * fabs(b);
}

static double number(const json_t *line, const char *key)
{
    const json_t *value = json_object_get(line, key);
    if (!json_is_number(value))
        fail_msg("no number %s", key);
    return json_number_value(value);
}

TEST(a_line_has_the_rates_since_the_line_before)
{
    resources *r = NULL;
    char *folder = workfolder_path(*state, "run/hosts/node1"), *path = workfolder_path(folder, "resources.jsonl");
    write_host(*state, 100, 1000, 10);
    const resources_options options = {
        .folder = folder, .root = *state, .every = 3600, .tensorboard = true, .first_step = 1};
    assert_int_equal(resources_open(&r, &options), STATUS_OK);
    assert_int_equal(opened, 1);
    write_host(*state, 200, 3000, 50);
    assert_int_equal(resources_look(r, 6, false), STATUS_OK);
    assert_null(runs_last_line(path)); /* an hour has not passed */
    assert_int_equal(resources_look(r, 7, true), STATUS_OK);
    resources_close(r);
    assert_int_equal(opened, 0);
    json_t *line = runs_last_line(path);
    assert_non_null(line);
    assert_true(number(line, "step") == 7 && number(line, "time") > 1.7e9);
    assert_true(number(line, "cpu_busy") == 1); /* 100 ticks more of any kind, and 100 busy ones */
    assert_true(number(line, "memory_bytes") == 4000000.0 * 1024);
    double read = number(line, "disk_read_bytes_per_second"), in = number(line, "network_received_bytes_per_second");
    assert_true(read > 0 && in > 0);
    assert_true(near(number(line, "disk_written_bytes_per_second") / read, 2));
    assert_true(near(number(line, "network_sent_bytes_per_second") / in, (120.0 + 160) / (40 + 160)));
    assert_true(number(line, "gpu0_busy") == 0.75 && number(line, "gpu1_busy") == 0.5);
    assert_true(number(line, "gpu1_memory_bytes") == (double)(50ULL << 30));
    assert_true(number(line, "gpu0_memory_total_bytes") == (double)(150ULL << 30));
    assert_true(number(line, "gpu0_watts") == 650.5 && number(line, "gpu1_celsius") == 61);
    assert_null(json_object_get(line, "gpu1_watts")); /* what a device does not say */
    assert_true(number(line, "gpu0_megahertz") == 1980 && number(line, "gpu1_held_back") == 0x48);
    assert_true(number(line, "gpu0_uncorrected_errors") == 0 && number(line, "gpu1_uncorrected_errors") == 3);
    assert_true(number(line, "gpu0_rows_remapped") == 3 && number(line, "gpu1_remapping_pending") == 1);
    json_decref(line);
    free(path);
    free(folder);
}

static void hear(void *context, const char *words)
{
    const int *pipe = context;
    assert_int_equal(write(pipe[1], words, strlen(words)), strlen(words));
}

/* Nobody looks at the host meanwhile. */
TEST(a_critical_error_of_a_gpu_is_told_at_once)
{
    resources *r = NULL;
    int heard[2];
    assert_true(pipe(heard) == 0 && pipe(events.pipe) == 0);
    char *folder = workfolder_path(*state, "run/hosts/node2");
    const resources_options options = {.folder = folder, .root = *state, .every = 3600, .tell = hear, .context = heard};
    assert_int_equal(resources_open(&r, &options), STATUS_OK);
    assert_true(events.sets == 1 && events.registered == 2);
    static const struct {
        unsigned long long xid;
        const char *words;
    } cases[] = {
        {79, "GPU 1 (GPU-bbbb): Xid 79: the GPU has fallen off the bus: restart the host"},
        {7, "GPU 1 (GPU-bbbb): Xid 7: see NVIDIA's documentation of Xid errors"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char words[256] = "";
        assert_int_equal(write(events.pipe[1], &cases[i].xid, sizeof cases[i].xid), sizeof cases[i].xid);
        assert_true(read(heard[0], words, sizeof words - 1) > 0);
        assert_string_equal(words, cases[i].words);
    }
    resources_close(r);
    assert_int_equal(events.sets, 0);
    free(folder);
}

TEST(a_folder_that_cannot_be_made_is_a_failure)
{
    resources *r = NULL;
    const resources_options options = {.folder = "/proc/nowhere", .root = *state, .every = 1};
    assert_int_equal(resources_open(&r, &options), STATUS_FAILED);
    assert_null(r);
    assert_int_equal(resources_look(NULL, 1, true), STATUS_OK);
}

TEST_MAIN(workfolder_setup, workfolder_teardown)
