/* The page of `phalanx report`: its data are the run's, it loads nothing, it stays small; and, where a browser is, it
 * draws. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/skip.h"
#include "tests/tools/pages.h"
#include "tests/test.h"

enum { STEPS = 6, LONG = 20000, SPIKE = 12345 };

/* A run on two stages, stopped and resumed, with an incident whose words would end a script, and a skipped step. */
static void make_run(const char *top)
{
    AUTO_FREE char *folder = workfolder_path(top, "run"), *incidents = workfolder_path(folder, "incidents.jsonl"),
                   *metrics = workfolder_path(folder, "metrics.jsonl"), *data = workfolder_path(top, "held");
    runs_write_small(top, 6000, STEPS, "", "");
    runs_write_data(data, 96, 1500, 77);
    free(runs_train_well(60, 1, "%s/run.yaml run.folder=%s/alone train.steps=2", top, top));
    for (int steps = STEPS / 2; steps <= STEPS; steps += STEPS / 2)
        free(runs_train_well(90, 2,
                             "%s/run.yaml run.folder=%s parallel.pipeline=2 model.layers=4 train.steps=%d "
                             "data.validation=[%s,%s/data] evaluate.every=3 checkpoint.every=3",
                             top, folder, steps, data, top));
    runs_write_text(
        incidents,
        "{\"time\": 1.5, \"verdict\": \"slow\", \"rank\": 1, \"host\": \"node7\", \"step\": 2, \"ends\": false, "
        "\"words\": \"a </script><b>\"}\n");
    FILE *f = fopen(metrics, "a");
    assert_non_null(f);
    fprintf(
        f,
        "{\"step\": 7, \"loss\": null, \"skipped\": true, \"skipped_steps\": 1, \"time\": 1e11}\n{\"step\": 8, \"lo");
    fclose(f);
}

/* A run of very many steps, one of which has a spike. */
static void make_long_run(const char *top)
{
    AUTO_FREE char *folder = workfolder_path(top, "long"), *metrics = workfolder_path(folder, "metrics.jsonl");
    launch_result r =
        launch_run(10, "mkdir -p %s && sed 's/^\\( *steps:\\).*/\\1 20000/' %s/run/config.yaml >%s/config.yaml", folder,
                   top, folder);
    assert_int_equal(r.status, 0);
    launch_free(&r);
    FILE *f = fopen(metrics, "w");
    assert_non_null(f);
    for (int i = 1; i <= LONG; i++)
        fprintf(f,
                "{\"step\": %d, \"loss\": %.9g, \"grad_norm\": %.9g, \"lr\": 0.001, \"step_seconds\": 0.25, "
                "\"tokens\": %d%s, \"time\": %.3f}\n",
                i, i == SPIKE ? 99.5 : 3 + 1.0 / i, 1.0 / i, 64 * i,
                i % 50 ? "" : ", \"weights_hash\": \"00c0ffee00c0ffee\"", 1.7e9 + 0.25 * i);
    fclose(f);
    r = launch_run(10, "cp -r %s %s/other && sed '151,$s/00c0/11c0/' %s >%s/other/metrics.jsonl", folder, top, metrics,
                   top);
    assert_int_equal(r.status, 0);
    launch_free(&r);
}

static int prepare(void **state)
{
    if (workfolder_setup(state))
        return -1;
    make_run(*state);
    make_long_run(*state);
    return 0;
}

static char *page_of(const char *top, const char *runs, const char *name)
{
    char *program = launch_beside("../phalanx"), *path = workfolder_path(top, name);
    launch_result r = launch_run(60, "cd %s && %s report %s --output %s", top, program, runs, path);
    if (r.status)
        fail_msg("report %s: %s", runs, r.err);
    launch_free(&r);
    free(program);
    return path;
}

static const json_t *at(const json_t *value, const char *path)
{
    char name[64];
    for (int n = 0; value && sscanf(path, "%63[^/]%n", name, &n) == 1; path += n + (path[n] == '/'))
        value = json_is_array(value) ? json_array_get(value, (size_t)atoi(name)) : json_object_get(value, name);
    return value;
}

static double number(const json_t *value, const char *path)
{
    const json_t *found = at(value, path);
    if (!json_is_number(found))
        fail_msg("no number at %s", path);
    return json_number_value(found);
}

TEST(curves_are_the_metrics)
{
    char *text, *path = page_of(*state, "run", "one.html"), *folder = workfolder_path(*state, "run");
    json_t *data = pages_data(&text, path);
    const json_t *run = at(data, "runs/0");
    runs_metrics m = runs_read_metrics(folder);
    assert_int_equal(json_array_size(at(run, "series/loss")), STEPS + 1);
    for (int i = 0; i < STEPS; i++) {
        assert_true(json_number_value(json_array_get(at(run, "series/loss"), (size_t)i)) == m.step[i].loss);
        assert_true(json_number_value(json_array_get(at(run, "series/grad_norm"), (size_t)i)) == m.step[i].norm);
    }
    assert_true(json_is_null(json_array_get(at(run, "series/loss"), STEPS)));
    assert_true(number(run, "validation/eval_loss/1") == m.evaluation[1].loss);
    assert_int_equal(json_object_size(at(run, "validation/eval_losses/0")), 2);
    assert_true(number(run, "series/time/0") > 1.7e9);
    json_decref(data);
    free(folder);
    free(text);
    free(path);
}

TEST(events_come_in_order_of_time_and_end_no_script)
{
    static const char *const kinds[] = {"incident", "started", "saved", "done",
                                        "resumed",  "saved",   "done",  "skipped step"};
    char *text, *path = page_of(*state, "run", "one.html");
    json_t *data = pages_data(&text, path), *event;
    const json_t *list = at(data, "runs/0/events/list");
    size_t i;
    assert_int_equal(json_array_size(list), sizeof kinds / sizeof *kinds);
    json_array_foreach((json_t *)list, i, event)
        assert_string_equal(json_string_value(json_object_get(event, "kind")), kinds[i]);
    assert_string_equal(json_string_value(at(list, "0/words")), "rank 1: slow, node7: a </script><b>");
    assert_string_equal(json_string_value(at(list, "5/words")), "step-00000006");
    json_decref(data);
    free(text);
    free(path);
}

/* Whatever `said` holds, `plan` holds too; numbers of the page have 13 digits. */
static void check_same(const json_t *said, const json_t *plan, const char *where)
{
    json_t *value;
    const char *key;
    size_t i;
    if (!plan || (json_is_number(said) ? !json_is_number(plan) : json_typeof(said) != json_typeof(plan)))
        fail_msg("%s is another thing on the page", where);
    if (json_is_number(said)) {
        double a = json_number_value(said), b = json_number_value(plan);
        if (fabs(a - b) > 1e-12 * fabs(a))
            fail_msg("%s is %.17g, and %.17g on the page", where, a, b);
    } else if (json_is_object(said)) {
        json_object_foreach((json_t *)said, key, value) check_same(value, json_object_get(plan, key), key);
    } else if (json_is_array(said)) {
        assert_int_equal(json_array_size(said), json_array_size(plan));
        json_array_foreach((json_t *)said, i, value) check_same(value, json_array_get(plan, i), where);
    } else if (!json_equal(said, plan)) {
        fail_msg("%s is another word on the page", where);
    }
}

/* All that the page has of a plan, but for its own pictures, is what the command says. */
static void check_all(const json_t *said, const json_t *plan)
{
    json_t *value;
    const char *key;
    int same = 0;
    json_object_foreach((json_t *)plan, key, value)
    {
        if (strcmp(key, "timeline") == 0 || strcmp(key, "coordinates") == 0 || strcmp(key, "command") == 0 ||
            strcmp(key, "course") == 0)
            continue;
        const json_t *there = json_object_get(said, key);
        if (!there)
            fail_msg("plan --json has no %s", key);
        check_same(there, value, key);
        same++;
    }
    assert_true(same > 15);
}

/* What a command that begins with "phalanx" prints, with --json. */
static json_t *said_by(const char *top, const char *command)
{
    AUTO_FREE char *program = launch_beside("../phalanx");
    launch_result r = launch_run(30, "cd %s && %s%s --json", top, program, command + strlen("phalanx"));
    if (r.status)
        fail_msg("%s: %s", command, r.err);
    json_t *said = json_loads(r.out, 0, NULL);
    assert_non_null(said);
    launch_free(&r);
    return said;
}

/* What a command that begins with "phalanx" prints ends in the page's lines on the whole run. */
static void check_course(const char *top, const char *command, const json_t *plan)
{
    AUTO_FREE char *program = launch_beside("../phalanx");
    const char *course = json_string_value(json_object_get(plan, "course"));
    launch_result r = launch_run(30, "cd %s && %s%s", top, program, command + strlen("phalanx"));
    assert_int_equal(r.status, 0);
    assert_non_null(course);
    assert_non_null(strstr(course, "\nrun  "));
    assert_non_null(strstr(course, "\ncheckpoint  "));
    assert_non_null(strstr(course, "\nlaunch  "));
    size_t all = strlen(r.out), part = strlen(course);
    if (all < part || strcmp(r.out + all - part, course) != 0)
        fail_msg("the page says %s, and plan %s", course, r.out);
    launch_free(&r);
}

/* A run on one rank and one on two stages: what the page says `plan --json` says, too, by the command that the page
 * names and by the one that a user would type. */
TEST(the_plan_of_the_page_is_that_of_the_command)
{
    static const struct {
        const char *run, *typed;
        int ranks;
    } cases[] = {{"alone", "phalanx plan alone/config.yaml", 1}, {"run", "phalanx plan run/config.yaml --ranks 2", 2}};
    for (size_t i = 0; i < 2; i++) {
        char *text, *path = page_of(*state, cases[i].run, "one.html");
        json_t *data = pages_data(&text, path);
        const json_t *plan = at(data, "runs/0/plan");
        json_t *typed = said_by(*state, cases[i].typed),
               *named = said_by(*state, json_string_value(at(plan, "command")));
        check_all(typed, plan);
        check_all(named, plan);
        check_course(*state, cases[i].typed, plan);
        check_course(*state, json_string_value(at(plan, "command")), plan);
        assert_true(number(plan, "run/seconds") > 0 && number(plan, "checkpoint_bytes") > 0);
        assert_int_equal(number(plan, "layout/ranks"), cases[i].ranks);
        assert_string_equal(json_string_value(at(plan, "assumed/device")), "cpu");
        assert_true(i == 0 || number(plan, "bubble") > 0.001);
        json_decref(typed);
        json_decref(named);
        json_decref(data);
        free(text);
        free(path);
    }
}

static double seconds_of(const json_t *plan, int stage)
{
    char place[64];
    json_t *part;
    double sum = 0;
    size_t i;
    snprintf(place, sizeof place, "timeline/stages/%d/seconds", stage);
    json_array_foreach((json_t *)at(plan, place), i, part) sum += number(part, "1");
    return sum;
}

/* Every action of the schedule once, one after another within the step; what its time goes for sums to it. */
TEST(the_timeline_is_that_of_the_schedule_and_the_step)
{
    char *text, *path = page_of(*state, "run", "one.html");
    json_t *data = pages_data(&text, path), *span;
    const json_t *plan = at(data, "runs/0/plan");
    int micro_batches = (int)number(plan, "layout/micro_batches");
    for (int stage = 0; stage < 2; stage++) {
        char place[64];
        snprintf(place, sizeof place, "timeline/stages/%d/spans", stage);
        size_t i;
        int forward = 0, actions = 0, before = 0;
        json_array_foreach((json_t *)at(plan, place), i, span)
        {
            forward += json_integer_value(json_array_get(span, 0)) == 0;
            actions += number(span, "2") >= 0;
            assert_true(number(span, "3") >= before && number(span, "4") >= number(span, "3") &&
                        number(span, "4") <= 1e6);
            before = (int)number(span, "4");
        }
        assert_int_equal(forward, micro_batches);
        assert_int_equal(actions, 2 * micro_batches);
        double step = number(plan, "step_seconds");
        assert_true(fabs(number(plan, "timeline/length") - step) <= 1e-12 * step);
        assert_true(fabs(seconds_of(plan, stage) - step) <= 1e-9 * step);
    }
    json_decref(data);
    free(text);
    free(path);
}

TEST(a_long_run_keeps_its_spike_on_a_small_page)
{
    char *text, *path = page_of(*state, "long run long run long run", "many.html");
    json_t *data = pages_data(&text, path);
    const json_t *steps = at(data, "runs/0/series/step"), *losses = at(data, "runs/0/series/loss");
    size_t count = json_array_size(steps);
    bool found = false;
    assert_true(count > 100 && count < 1300 && json_array_size(losses) == count);
    for (size_t i = 0; i < count; i++) {
        double step = json_number_value(json_array_get(steps, i)), loss = json_number_value(json_array_get(losses, i));
        assert_true(fabs(loss - (step == SPIKE ? 99.5 : 3 + 1 / step)) < 1e-7);
        found |= step == SPIKE;
    }
    assert_true(found && number(steps, "0") == 1);
    assert_true(json_number_value(json_array_get(steps, count - 1)) == LONG);
    json_decref(data);
    free(text);
    free(path);
}

TEST(the_step_at_which_two_runs_part_is_told)
{
    char *text, *path = page_of(*state, "long other run long", "parted.html");
    json_t *data = pages_data(&text, path);
    const json_t *partings = at(data, "partings");
    assert_int_equal(json_array_size(partings), 2); /* "run" has no hashes */
    assert_string_equal(json_string_value(at(partings, "0")),
                        "long and other have equal weights up to step 150, and have other weights at step 200 "
                        "(run.hash_every).");
    assert_string_equal(json_string_value(at(partings, "1")),
                        "long and long have equal weights up to step 20000 (run.hash_every).");
    json_decref(data);
    free(text);
    free(path);
}

TEST(the_page_loads_nothing)
{
    static const char *const loads[] = {" src=",  "<link",          "@import", "url(",
                                        "fetch(", "XMLHttpRequest", "https:",  "import("};
    char *text, *path = page_of(*state, "run", "one.html");
    json_t *data = pages_data(&text, path);
    for (size_t i = 0; i < sizeof loads / sizeof *loads; i++)
        if (strstr(text, loads[i]))
            fail_msg("the page has %s", loads[i]);
    json_decref(data);
    free(text);
    free(path);
}

TEST(what_is_no_run_is_refused)
{
    AUTO_FREE char *program = launch_beside("../phalanx");
    launch_result r = launch_run(30, "%s report %s --output %s/no.html", program, (char *)*state, (char *)*state);
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "is no run's folder: it has no metrics.jsonl and config.yaml"));
    launch_free(&r);
    r = launch_run(30, "%s report %s/run", program, (char *)*state);
    assert_int_equal(r.status, 2);
    launch_free(&r);
}

/* ---- in a browser ---- */

/* The script for Weights & Biases, with a package of our own in wandb's place that prints what it is given. */
TEST(a_script_sends_a_run_to_wandb)
{
    const char *top = *state;
    char *program = launch_beside("../phalanx"), *fake = workfolder_path(top, "fake/wandb.py"),
         *yaml = workfolder_path(top, "fake/yaml.py");
    launch_result r = launch_run(20, "cd %s && mkdir fake && %s report run --wandb send.py", top, program);
    assert_int_equal(r.status, 0);
    launch_free(&r);
    r = launch_run(20, "cd %s && %s report . --wandb no.py", top, program);
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "is no run's folder"));
    launch_free(&r);
    r = launch_run(10, "python3 -c 'print(1)'");
    bool python = r.status == 0;
    launch_free(&r);
    if (python) {
        runs_write_text(fake, "class Run:\n"
                              "    def define_metric(self, *a, **k): pass\n"
                              "    def log(self, values): print('logged', values['step'], 'train/loss' in values)\n"
                              "    def finish(self): print('finished')\n"
                              "def init(project, name, id, resume, config):\n"
                              "    print('began', project, name, len(id), resume)\n"
                              "    return Run()\n");
        runs_write_text(yaml, "def safe_load(file): return {'train': {'steps': len(file.read())}}\n");
        r = launch_run(20, "cd %s/fake && PYTHONPATH=. python3 ../send.py", top);
        assert_string_equal(r.err, "");
        assert_non_null(strstr(r.out, "began phalanx run 16 allow\nlogged 1 True\n"));
        assert_non_null(strstr(r.out, "logged 7 False\nfinished\n")); /* the line that is not whole is left out */
        launch_free(&r);
        r = launch_run(20, "cd %s/fake && PYTHONPATH=. python3 ../send.py && rm ../run/wandb.json", top);
        assert_non_null(strstr(r.out, "began phalanx run 16 allow\nfinished\n")); /* nothing is sent twice */
        launch_free(&r);
    }
    free(program);
    free(fake);
    free(yaml);
    if (!python)
        skip_because("no python3: apt-get install python3");
}

TEST(a_browser_draws_every_section)
{
    static const char *const sections[] = {"curves",          "a-step-s-time",      "layout",
                                           "memory-by-class", "timeline-of-a-step", "hosts",
                                           "events",          "configuration"};
    static const int widths[] = {1400, 400};
    if (!pages_browser())
        skip_because("no browser: apt-get install chromium");
    AUTO_FREE char *path = page_of(*state, "run long", "two.html");
    for (int w = 0; w < 2; w++) {
        char *text = pages_built(*state, path, widths[w]), mark[64];
        assert_non_null(strstr(text, "data-state=\"ready\""));
        for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
            snprintf(mark, sizeof mark, "<section id=\"%s\"", sections[i]);
            if (!strstr(text, mark))
                fail_msg("no section %s at %d pixels", sections[i], widths[w]);
        }
        int curves = pages_occurrences(text, "class=\"curve\"");
        assert_true(curves >= 12); /* six charts or more, of two runs */
        assert_int_equal(pages_occurrences(text, "class=\"timeline\""), 2);
        assert_int_equal(pages_occurrences(text, "class=\"stacked\""), 5);
        assert_null(strstr(text, "NaN"));
        assert_null(strstr(text, "undefined"));
        assert_non_null(strstr(text, "a &lt;/script&gt;&lt;b&gt;"));
        free(text);
    }
}

/* What a reader does with the page, and what it then shows. */
static const char *const script =
    "const loss = charted[0], plot = () => loss.querySelector('svg.plot');"
    "const at = share => { const b = plot().getBoundingClientRect(); return b.left + 66 + share * (b.width - 74); };"
    "const send = (type, share) => plot().dispatchEvent(new PointerEvent(type, {button: 0, clientX: at(share), "
    "bubbles: "
    "true}));"
    "const values = c => [...c.querySelectorAll('.legend b')].map(b => b.textContent);"
    "const press = (where, words) => [...where.querySelectorAll('button')].find(b => "
    "b.textContent.startsWith(words)).click();"
    "const rows = id => [...document.querySelectorAll(`#${id} tbody tr`)].map(r => [...r.children].map(c => "
    "c.textContent));"
    "const labels = () => [...loss.querySelectorAll('svg.plot > text')].map(t => t.textContent).join(' ');"
    "const curves = () => document.querySelectorAll('.curve').length, mine = () => "
    "loss.querySelectorAll('.curve').length;"
    "out.title = document.title; out.heading = document.querySelector('h1').textContent;"
    "out.width = window.innerWidth; out.scroll = document.documentElement.scrollWidth;"
    "out.cut = [...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, pre, svg svg') && "
    "e.getBoundingClientRect().right > window.innerWidth + 1).length;"
    "out.marks = ['restart', 'checkpoint', 'incident'].map(k => loss.querySelectorAll('.mark.' + k).length);"
    "send('pointermove', .5); out.linked = charted.map(c => c.querySelector('.readout').textContent.split(' ')[1]);"
    "out.past = values(loss); send('pointerleave', .5); out.rest = values(loss);"
    "send('pointerdown', .25); send('pointermove', .5); send('pointerup', .5);"
    "out.zoomed = page.dataset.view.split(' ').map(Number);"
    "out.inside = loss.csv().trim().split('\\n').slice(1).map(l => +l.split(',')[0]);"
    "plot().dispatchEvent(new MouseEvent('dblclick', {bubbles: true})); out.whole = page.dataset.view;"
    "const linear = labels(); press(loss, 'log'); out.log = labels() !== linear; press(loss, 'log'); out.linear = "
    "labels() "
    "=== linear;"
    "out.curves = [curves()]; for (let k = 0; k < 2; k++) { press(document.querySelector('.runs'), 'long'); "
    "out.curves.push(curves()); }"
    "out.legend = [mine()]; for (let k = 0; k < 2; k++) { press(loss.querySelector('.legend'), 'run'); "
    "out.legend.push(mine()); }"
    "out.csv = loss.csv().split('\\n').slice(0, 2); out.all = allValues().split('\\n').slice(0, 2);"
    "out.differ = rows('differences-of-configurations'); out.memory = rows('memory-by-class');"
    "out.timeline = document.querySelector('#timeline-of-a-step .card').textContent;"
    "document.getElementById('marks').click(); out.unmarked = loss.querySelectorAll('.mark').length;"
    "out.axes = Object.keys(axes).map(k => { const c = document.getElementById('axis'); c.value = k; "
    "c.dispatchEvent(new "
    "Event('change')); return mine(); });";

/* Looks for the things that a reader of several runs looks for. */
static const char *const reading =
    "out.toc = [...document.querySelectorAll('nav a')].map(a => document.querySelector('section' + "
    "a.getAttribute('href')) !== null);"
    "out.first = document.querySelector('main section').id;"
    "const least = what => Math.min(...charted.filter(c => c.querySelector('svg.plot')).map(c => "
    "c.querySelectorAll(what).length)); out.ticks = [least('.level'), least('.place')];"
    "out.outside = [...document.querySelectorAll('svg.plot > text, svg.stacked > text')].filter(t => { const b = "
    "t.getBBox(), v = t.ownerSVGElement.viewBox.baseVal; return b.x < -1 || b.x + b.width > v.width + 1; "
    "}).map(t => t.textContent);"
    "out.scales = ['memory-by-class', 'timeline-of-a-step'].map(i => new Set([...document.querySelectorAll(`#${i} "
    "svg.stacked`)].map(e => e.dataset.most)).size);"
    "out.whose = [...loss.querySelectorAll('.mark')].map(m => m.getAttribute('stroke') || m.getAttribute('fill'));"
    "out.loss = document.querySelector('#runs tbody td:nth-child(2)').getBoundingClientRect().right;"
    "out.parameters = rows('hyperparameters-of-all').length + document.querySelectorAll('dt').length;"
    "const find = document.getElementById('find'), look_for = v => { find.value = v; find.dispatchEvent(new "
    "Event('input')); return [...document.querySelectorAll('#runs tbody tr')].filter(r => !r.hidden).map(r => "
    "r.children[0].textContent); }; out.found = [look_for('lon'), look_for('train.steps=6'), look_for('')];"
    "const by = document.getElementById('group'); by.value = 'train.steps'; by.dispatchEvent(new Event('change'));"
    "out.groups = by.parentNode.nextSibling.textContent;";

static const char *word(const json_t *value, const char *path)
{
    const char *found = json_string_value(at(value, path));
    if (!found)
        fail_msg("no words at %s", path);
    return found;
}

/* Curves of a run of 6 steps, stopped, resumed and skipped, and of one of 20000, as a reader uses them. */
static void check_curves(const json_t *out)
{
    const char *title = word(out, "title");
    json_t *step;
    size_t i;
    assert_string_equal(title, "run, long - phalanx report");
    assert_string_equal(word(out, "heading"), "Runs run, long");
    assert_true(number(out, "marks/0") == 1 && number(out, "marks/1") == 2 && number(out, "marks/2") == 2);
    assert_int_equal(number(out, "unmarked"), 0);
    assert_true(json_array_size(at(out, "linked")) > 6);
    json_array_foreach(at(out, "linked"), i, step)
        assert_true(abs(atoi(json_string_value(step)) - LONG / 2) < LONG / 100);
    assert_string_equal(word(out, "past/0"), "ended at 6");
    assert_string_equal(word(out, "past/1"), "3");
    assert_true(atof(word(out, "rest/0")) > 1);
    assert_true(fabs(number(out, "zoomed/0") - LONG / 4.0) < LONG / 100.0);
    assert_true(fabs(number(out, "zoomed/1") - LONG / 2.0) < LONG / 100.0);
    assert_true(json_array_size(at(out, "inside")) > 100);
    json_array_foreach(at(out, "inside"), i, step) assert_true(json_number_value(step) >= number(out, "zoomed/0") &&
                                                               json_number_value(step) <= number(out, "zoomed/1"));
    assert_string_equal(word(out, "whole"), "whole");
    assert_true(json_is_true(at(out, "log")) && json_is_true(at(out, "linear")));
    assert_true(number(out, "curves/1") < number(out, "curves/0") &&
                number(out, "curves/2") == number(out, "curves/0"));
    assert_int_equal(number(out, "legend/1"), number(out, "legend/0") - 1);
    assert_int_equal(number(out, "legend/2"), number(out, "legend/0"));
    for (i = 0; i < 3; i++)
        assert_int_equal(json_number_value(json_array_get(at(out, "axes"), i)), number(out, "legend/0"));
}

/* A reader of several runs asks first what differs, whose a mark is, and which bar is longer. */
static void check_reading(const json_t *out, int width)
{
    json_t *value;
    size_t i;
    assert_true(json_array_size(at(out, "toc")) >= 8);
    json_array_foreach(at(out, "toc"), i, value) assert_true(json_is_true(value));
    assert_string_equal(word(out, "first"), "differences-of-configurations");
    assert_true(number(out, "ticks/0") >= 4 && number(out, "ticks/1") >= 4);
    if (json_array_size(at(out, "outside")) > 0)
        fail_msg("cut at %d pixels: %s", width, word(out, "outside/0"));
    assert_true(number(out, "scales/0") == 1 && number(out, "scales/1") == 1);
    json_array_foreach(at(out, "whose"), i, value) assert_string_equal(json_string_value(value), "var(--r0)");
    assert_true(number(out, "loss") <= width);
    assert_true(number(out, "parameters") >= 12);
    assert_int_equal(json_array_size(at(out, "found/0")), 1);
    assert_string_equal(word(out, "found/0/0"), "long");
    assert_string_equal(word(out, "found/1/0"), "run");
    assert_int_equal(json_array_size(at(out, "found/2")), 2);
    assert_string_equal(word(out, "groups"), "200006");
}

/* The numbers of the files, to their last digit, and those that plan prints, to the digits that it prints. */
static void check_values(const char *top, const json_t *out)
{
    char *folder = workfolder_path(top, "run"), row[128], *program = launch_beside("../phalanx");
    runs_metrics m = runs_read_metrics(folder);
    assert_string_equal(word(out, "csv/0"), "step,run,long,run validation");
    assert_int_equal(sscanf(word(out, "csv/1"), "1,%127[^,]", row), 1);
    assert_true(strtod(row, NULL) == m.step[0].loss);
    assert_int_equal(strncmp(word(out, "all/0"), "run,step,time,loss,", 19), 0);
    assert_true(strtod(strchr(strchr(strchr(word(out, "all/1"), ',') + 1, ',') + 1, ',') + 1, NULL) == m.step[0].loss);
    launch_result r = launch_run(30, "cd %s && %s plan run/config.yaml --ranks 2", top, program);
    assert_int_equal(r.status, 0);
    for (int stage = 0; stage < 2; stage++) {
        char path[32], unit[8], number_text[16];
        const char *line = strstr(r.out, "memory of one rank");
        for (int skip = 0; skip < stage + 2; skip++)
            line = strchr(line, '\n') + 1;
        line = strchr(strchr(line, '|') + 1, '|');
        assert_int_equal(sscanf(line, "| %15s %7s", number_text, unit), 2);
        snprintf(row, sizeof row, "%s %s", number_text, unit);
        snprintf(path, sizeof path, "memory/%d/8", stage);
        assert_string_equal(word(out, path), row);
    }
    double bubble;
    assert_int_equal(sscanf(strstr(r.out, "\nbubble"), "\nbubble %lf%%", &bubble), 1);
    snprintf(row, sizeof row, "bubble %.1f%% of it", bubble);
    assert_non_null(strstr(word(out, "timeline"), row));
    launch_free(&r);
    free(program);
    free(folder);
}

TEST(a_reader_zooms_hides_compares_and_saves)
{
    static const int widths[] = {1400, 400};
    if (!pages_browser())
        skip_because("no browser: apt-get install chromium");
    AUTO_FREE char *path = page_of(*state, "run long", "two.html");
    for (int w = 0; w < 2; w++) {
        AUTO_FREE char *both = must_format("%s%s", script, reading);
        json_t *out = pages_probe(*state, path, widths[w], both);
        assert_true(number(out, "width") == widths[w] && number(out, "scroll") == widths[w]);
        assert_int_equal(number(out, "cut"), 0);
        check_curves(out);
        check_reading(out, widths[w]);
        check_values(*state, out);
        assert_int_equal(json_array_size(at(out, "differ")), 1);
        assert_string_equal(word(out, "differ/0/0"), "train.steps");
        json_decref(out);
    }
}

TEST_MAIN(prepare, workfolder_teardown)
