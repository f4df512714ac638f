/* A device "cuda" that computes on the host and writes down what is asked of it: the program exports it as
 * device_load() finds devices. It has memory of its own for the host's mirror, as a GPU has, and keeps what is
 * captured. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/device.h"
#include "memory/log.h"
#include "tests/jobs/keys.h"

enum { CAPTURED = 4096 };

static struct {
    char *text;
    size_t bytes;
    FILE *out;
    char *host;
    bool capturing;
    int list; /* the one that is being captured */
    const op *captured[DEVICE_LISTS][CAPTURED];
    int count[DEVICE_LISTS], launches;
} asked;

static void say(const char *what)
{
    if (!asked.out)
        asked.out = open_memstream(&asked.text, &asked.bytes);
    fprintf(asked.out, "%s\n", what);
}

char *keys_device_asked(void)
{
    if (asked.out)
        fclose(asked.out);
    char *text = asked.text ? asked.text : must_strdup("");
    asked.out = NULL;
    asked.text = NULL;
    return text;
}

static status available(void)
{
    return STATUS_OK;
}

static status open_device(device **out, const device_options *o)
{
    say(o->tf32 ? "open with tf32" : o->varies ? "open, sums in any order" : "open");
    asked.capturing = false;
    memset(asked.count, 0, sizeof asked.count);
    asked.launches = 0;
    return device_cpu.open(out, o);
}

static status allocate(device *d, int64_t arena_bytes, int64_t host_bytes)
{
    asked.host = must_calloc((unsigned long)host_bytes + 1, 1);
    return device_cpu.allocate(d, arena_bytes, host_bytes);
}

static void close_device(device *d)
{
    free(asked.host);
    asked.host = NULL;
    device_cpu.close(d);
}

static char *host(device *d)
{
    (void)d;
    return asked.host;
}

static void copy_in(device *d, int64_t at, int64_t from, int64_t bytes)
{
    memcpy(device_cpu.context(d)->arena + at, asked.host + from, (size_t)bytes);
}

static void copy_out(device *d, int64_t at, int64_t bytes)
{
    memcpy(asked.host + at, device_cpu.context(d)->arena + at, (size_t)bytes);
}

static const char *wanted(const device *d, int i)
{
    (void)d;
    return i == 0 ? "a product" : NULL;
}

static status find(device *d, device_choice *choices, int count, bool timing)
{
    (void)d;
    say(timing ? "find by timing" : "find by guessing");
    for (int i = 0; i < count; i++) {
        strcpy(choices[i].value, "the only one");
        choices[i].microseconds = timing;
    }
    return STATUS_OK;
}

static status choose(device *d, const device_choice *choice)
{
    (void)d;
    (void)choice;
    return STATUS_OK;
}

static void launch(device *d, const op *o)
{
    asked.launches++;
    if (!asked.capturing) {
        device_cpu.launch(d, o);
        return;
    }
    MUST(asked.count[asked.list] < CAPTURED, "a program of more than %d ops", CAPTURED);
    asked.captured[asked.list][asked.count[asked.list]++] = o;
}

static void capture(device *d, int list)
{
    (void)d;
    say("capture");
    asked.capturing = true;
    asked.list = list;
}

static void captured(device *d)
{
    (void)d;
    asked.capturing = false;
}

static void replay(device *d, int list)
{
    for (int i = 0; i < asked.count[list]; i++)
        device_cpu.launch(d, asked.captured[list][i]);
}

/* With the number of ops launched before: which step it is. */
static void profile(device *d, bool on)
{
    char text[64];
    (void)d;
    snprintf(text, sizeof text, "profiler %s after %d ops", on ? "on" : "off", asked.launches);
    say(text);
}

static void set_aside(device *d, void *to, int64_t at, int64_t bytes)
{
    memcpy(to, device_cpu.context(d)->arena + at, (size_t)bytes);
}

static void set_aside_first(device *d)
{
    (void)d;
}

static bool set_aside_done(device *d, bool wait)
{
    (void)d;
    (void)wait;
    return true;
}

static status pin(device *d, void *memory, int64_t bytes)
{
    (void)d;
    (void)memory;
    (void)bytes;
    return STATUS_OK;
}

/* All that is not said here is the host's. */
extern device_interface device_cuda;
device_interface device_cuda;

__attribute__((constructor)) static void make_device(void)
{
    device_cuda = device_cpu;
    device_cuda.name = "cuda";
    device_cuda.backend = &cpu_backend;
    device_cuda.available = available;
    device_cuda.open = open_device;
    device_cuda.allocate = allocate;
    device_cuda.close = close_device;
    device_cuda.host = host;
    device_cuda.copy_in = copy_in;
    device_cuda.copy_out = copy_out;
    device_cuda.choices.wanted = wanted;
    device_cuda.choices.find = find;
    device_cuda.choices.choose = choose;
    device_cuda.launch = launch;
    device_cuda.capture = capture;
    device_cuda.captured = captured;
    device_cuda.replay = replay;
    device_cuda.aside.copy = set_aside;
    device_cuda.aside.first = set_aside_first;
    device_cuda.aside.done = set_aside_done;
    device_cuda.aside.pin = pin;
    device_cuda.profile = profile;
}
