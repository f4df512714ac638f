#include "engine/host/resources.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/atomic.h"
#include "engine/system/lines.h"
#include "engine/files/tensorboard.h"
#include "engine/host/resources_gpu.h"
#include "engine/host/resources_host.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"

/* A figure and its name; the figures of GPU 0 are gpu0_..., as TensorBoard's host/gpu0_... */
typedef struct figure {
    char name[48];
    double value;
} figure;

enum { HOST_FIGURES = 8, GPU_FIGURES = 10, FIGURES = HOST_FIGURES + GPU_FIGURES * RESOURCES_GPUS };

typedef struct figures {
    int count;
    figure item[FIGURES];
} figures;

struct resources {
    lines *lines;
    tensorboard *events;
    char *root;
    double every, looked; /* seconds, and of the program's clock */
    bool written;
    resources_host before;
    resources_gpus *gpus;
};

static void add(figures *f, const char *name, double value)
{
    snprintf(f->item[f->count].name, sizeof f->item[f->count].name, "%s", name);
    f->item[f->count++].value = value;
}

static void add_rate(figures *f, const char *name, int64_t before, int64_t now, double seconds)
{
    if (before >= 0 && now >= before && seconds > 0)
        add(f, name, (double)(now - before) / seconds);
}

static void add_gpu(figures *f, const resources_gpus *gpus, int index)
{
    resources_gpu g;
    resources_gpu_read(&g, gpus, index);
    const struct {
        const char *name;
        double value;
    } all[GPU_FIGURES] = {{"busy", g.busy},
                          {"memory_bytes", (double)g.memory_used},
                          {"memory_total_bytes", (double)g.memory_all},
                          {"watts", g.watts},
                          {"celsius", g.celsius},
                          {"megahertz", g.megahertz},
                          {"held_back", g.held_back},
                          {"uncorrected_errors", g.uncorrected},
                          {"rows_remapped", g.rows_remapped},
                          {"remapping_pending", g.remapping_pending}};
    for (int i = 0; i < GPU_FIGURES; i++) {
        char name[48];
        snprintf(name, sizeof name, "gpu%d_%s", index, all[i].name);
        if (all[i].value >= 0)
            add(f, name, all[i].value);
    }
}

static void gather(figures *f, const resources *r, const resources_host *now)
{
    const resources_host *before = &r->before;
    double seconds = now->time - before->time;
    if (before->cpu_all >= 0 && now->cpu_all > before->cpu_all)
        add(f, "cpu_busy", (double)(now->cpu_busy - before->cpu_busy) / (double)(now->cpu_all - before->cpu_all));
    if (now->memory_all >= 0) {
        add(f, "memory_bytes", (double)now->memory_used);
        add(f, "memory_total_bytes", (double)now->memory_all);
    }
    add_rate(f, "disk_read_bytes_per_second", before->disk_read, now->disk_read, seconds);
    add_rate(f, "disk_written_bytes_per_second", before->disk_written, now->disk_written, seconds);
    add_rate(f, "network_received_bytes_per_second", before->network_received, now->network_received, seconds);
    add_rate(f, "network_sent_bytes_per_second", before->network_sent, now->network_sent, seconds);
    for (int i = 0; i < resources_gpu_count(r->gpus); i++)
        add_gpu(f, r->gpus, i);
}

static status write_line(resources *r, const figures *f, int64_t step, double time)
{
    AUTO_FREE char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    MUST(out, "out of host memory");
    fprintf(out, "{\"time\": %.3f, \"step\": %lld", time, (long long)step);
    for (int i = 0; i < f->count; i++)
        fprintf(out, ", \"%s\": %.12g", f->item[i].name, f->item[i].value);
    fputs("}\n", out);
    fclose(out);
    return lines_write(r->lines, text);
}

static status write_events(resources *r, const figures *f, int64_t step, double time)
{
    char tag[FIGURES][64];
    tensorboard_value value[FIGURES];
    if (!r->events)
        return STATUS_OK;
    for (int i = 0; i < f->count; i++) {
        snprintf(tag[i], sizeof tag[i], "host/%s", f->item[i].name);
        value[i] = (tensorboard_value){tag[i], f->item[i].value};
    }
    return tensorboard_write(r->events, value, f->count, step, time);
}

status resources_open(resources **out, const resources_options *o)
{
    resources *r = must_calloc(1, sizeof *r);
    r->root = must_strdup(o->root);
    r->every = o->every;
    resources_host_read(&r->before, r->root);
    r->looked = clock_seconds();
    AUTO_FREE char *path = must_format("%s/resources.jsonl", o->folder);
    status s = atomic_make_folders(o->folder);
    if (s == STATUS_OK)
        s = lines_open(&r->lines, path);
    if (s == STATUS_OK && o->tensorboard)
        s = tensorboard_open(&r->events, o->folder, o->first_step, r->before.time);
    if (s != STATUS_OK) {
        resources_close(r);
        return s;
    }
    r->gpus = resources_gpu_open();
    if (o->tell)
        resources_gpu_watch(r->gpus, o->tell, o->context);
    *out = r;
    return STATUS_OK;
}

status resources_look(resources *r, int64_t step, bool now)
{
    double least = r && r->written ? 1 : 0; /* rates over less are noise */
    resources_host here;
    figures f = {0};
    double passed = r ? clock_seconds() - r->looked : 0;
    if (!r || passed < (now ? least : r->every))
        return STATUS_OK;
    r->looked = clock_seconds();
    resources_host_read(&here, r->root);
    gather(&f, r, &here);
    r->before = here;
    r->written = true;
    status s = write_line(r, &f, step, here.time);
    return s == STATUS_OK ? write_events(r, &f, step, here.time) : s;
}

void resources_close(resources *r)
{
    if (!r)
        return;
    lines_close(r->lines);
    tensorboard_close(r->events);
    resources_gpu_close(r->gpus);
    free(r->root);
    free(r);
}
