#include "tests/engine/tracking/mlflow_standin.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "memory/log.h"
#include "memory/scope.h"

enum { MOST_REQUEST = 1 << 20 };
static const char id_of_run[] = "0123456789abcdef0123456789abcdef";

struct mlflow_standin {
    int listener;
    char *address;
    pthread_t thread;
    pthread_mutex_t lock;
    mlflow_standin_mode mode;
    int requests;
    char *login;
    bool experiment;
    json_t *run, *seen; /* metrics as text */
};

/* ---- what is kept ------------------------------------------------------------------------------------------------ */

static void keep_pairs(json_t *to, const json_t *pairs, bool once)
{
    size_t i;
    const json_t *pair;
    json_array_foreach(pairs, i, pair)
    {
        const char *key = json_string_value(json_object_get(pair, "key"));
        if (!once || !json_object_get(to, key))
            json_object_set(to, key, json_object_get(pair, "value"));
    }
}

static void keep_metrics(mlflow_standin *m, const json_t *metrics)
{
    size_t i;
    json_t *metric, *to = json_object_get(m->run, "metrics");
    json_array_foreach(metrics, i, metric)
    {
        AUTO_FREE char *text = json_dumps(metric, JSON_SORT_KEYS | JSON_COMPACT);
        if (!json_object_get(m->seen, text))
            json_array_append(to, metric);
        json_object_set_new(m->seen, text, json_true());
    }
}

/* As runs/get has them: the last step of each key, and parameters and tags as pairs. */
static json_t *data_of(const json_t *run)
{
    json_t *latest = json_object(), *metrics = json_array(), *params = json_array(), *value;
    size_t i;
    const char *key;
    json_array_foreach(json_object_get(run, "metrics"), i, value)
    {
        key = json_string_value(json_object_get(value, "key"));
        const json_t *best = json_object_get(latest, key);
        if (!best ||
            json_integer_value(json_object_get(value, "step")) >= json_integer_value(json_object_get(best, "step")))
            json_object_set(latest, key, value);
    }
    json_object_foreach(latest, key, value) json_array_append(metrics, value);
    json_object_foreach(json_object_get(run, "params"), key, value)
        json_array_append_new(params, json_pack("{s:s, s:O}", "key", key, "value", value));
    json_decref(latest);
    return json_pack("{s:{s:{s:s}, s:{s:o, s:o}}}", "run", "info", "run_id", id_of_run, "data", "metrics", metrics,
                     "params", params);
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static json_t *not_there(int *code)
{
    *code = 404;
    return json_pack("{s:s, s:s}", "error_code", "RESOURCE_DOES_NOT_EXIST", "message", "it does not exist");
}

static json_t *answer_log(int *code, mlflow_standin *m, const json_t *body)
{
    const json_t *metrics = json_object_get(body, "metrics");
    if (m->mode == MLFLOW_STANDIN_FULL && metrics) {
        *code = 400;
        return json_pack("{s:s, s:s}", "error_code", "INVALID_PARAMETER_VALUE", "message", "these are not wanted");
    }
    MUST(json_array_size(metrics) <= 1000, "%zu metrics in a batch", json_array_size(metrics));
    keep_metrics(m, metrics);
    keep_pairs(json_object_get(m->run, "params"), json_object_get(body, "params"), true);
    keep_pairs(json_object_get(m->run, "tags"), json_object_get(body, "tags"), false);
    return json_object();
}

static json_t *answer_well(int *code, mlflow_standin *m, const char *path, const json_t *body)
{
    int64_t made = json_integer_value(json_object_get(m->run, "count"));
    if (strstr(path, "experiments/get-by-name"))
        return m->experiment
                   ? json_pack("{s:{s:s, s:s}}", "experiment", "experiment_id", "7", "lifecycle_stage", "active")
                   : not_there(code);
    if (strstr(path, "experiments/create")) {
        m->experiment = true;
        return json_pack("{s:s}", "experiment_id", "7");
    }
    if (strstr(path, "runs/search"))
        return made ? json_pack("{s:[{s:{s:s}}]}", "runs", "info", "run_id", id_of_run) : json_object();
    if (strstr(path, "runs/create")) {
        json_object_set_new(m->run, "count", json_integer(made + 1));
        json_object_set(m->run, "name", json_object_get(body, "run_name"));
        keep_pairs(json_object_get(m->run, "tags"), json_object_get(body, "tags"), false);
        return data_of(m->run);
    }
    if (strstr(path, "runs/get"))
        return data_of(m->run);
    if (strstr(path, "runs/update")) {
        json_object_set(m->run, "status", json_object_get(body, "status"));
        return json_object();
    }
    return strstr(path, "runs/log-batch") ? answer_log(code, m, body) : not_there(code);
}

static char *repeat(const char *text, size_t times)
{
    size_t length = strlen(text);
    char *out = must_alloc(length * times + 1);
    for (size_t i = 0; i < times; i++)
        memcpy(out + i * length, text, length);
    out[length * times] = 0;
    return out;
}

/* The text of an answer, the caller's. */
static char *answer(int *code, mlflow_standin *m, const char *path, const json_t *body)
{
    static const char strange[] = "{\"experiment_id\": \"../../x\", \"experiment\": {\"experiment_id\": 9}, \"runs\": "
                                  "[{\"info\": {\"run_id\": \"a/b?c\"}}], \"run\": 3, \"message\": [1]}";
    *code = 200;
    switch (m->mode) {
    case MLFLOW_STANDIN_BUSY:
        *code = 503;
        return must_strdup("\x1b[31mbusy\n");
    case MLFLOW_STANDIN_GARBAGE:
        return must_strdup("\xff\xfe{\"experiment");
    case MLFLOW_STANDIN_ENDLESS:
        return repeat("[1,2,3,4,5,6,7,8,9,10,11,12,13],", 96 << 10);
    case MLFLOW_STANDIN_DEEP:
        return repeat("[", 500000);
    case MLFLOW_STANDIN_STRANGE:
        return must_strdup(strange);
    case MLFLOW_STANDIN_REDIRECT:
        *code = 302;
        return must_strdup("{}");
    case MLFLOW_STANDIN_ECHO:
        *code = 403;
        return must_format("{\"error_code\": \"PERMISSION_DENIED\", \"message\": \"you said %s\"}", m->login);
    default: {
        json_t *out = answer_well(code, m, path, body);
        char *text = json_dumps(out, JSON_COMPACT);
        json_decref(out);
        return text;
    }
    }
}

/* ---- connections ------------------------------------------------------------------------------------------------- */

/* A request's head and body, the caller's; NULL: it is not whole. */
static char *read_request(char **body, int fd)
{
    char *text = must_alloc(MOST_REQUEST);
    size_t got = 0, whole = MOST_REQUEST - 1;
    *body = NULL;
    while (got < whole) {
        ssize_t now = recv(fd, text + got, MOST_REQUEST - 1 - got, 0);
        if (now <= 0)
            break;
        text[got += (size_t)now] = 0;
        const char *length = strcasestr(text, "content-length:");
        char *end = strstr(text, "\r\n\r\n");
        if (end) {
            *body = end + 4;
            whole = (size_t)(*body - text) + (length && length < end ? (size_t)atoi(length + 15) : 0);
        }
    }
    if (*body && got >= whole)
        return text;
    free(text);
    return NULL;
}

static void note_login(mlflow_standin *m, const char *text)
{
    const char *at = strcasestr(text, "authorization:");
    free(m->login);
    m->login = at ? must_format("%.*s", (int)strcspn(at + 15, "\r"), at + 15) : must_strdup("");
}

static void serve(mlflow_standin *m, int fd)
{
    char *body, *text = read_request(&body, fd), path[512] = "";
    if (!text)
        return;
    sscanf(text, "%*s %511s", path);
    pthread_mutex_lock(&m->lock);
    m->requests++;
    note_login(m, text);
    if (m->mode != MLFLOW_STANDIN_AWAY && m->mode != MLFLOW_STANDIN_SILENT) {
        int code;
        json_t *asked = json_loads(body, 0, NULL);
        AUTO_FREE char *out = answer(&code, m, path, asked);
        AUTO_FREE char *head =
            must_format("HTTP/1.1 %d X\r\nContent-Length: %zu\r\nLocation: http://127.0.0.1:9/\r\nConnection: "
                        "close\r\n\r\n",
                        code, strlen(out));
        if (send(fd, head, strlen(head), MSG_NOSIGNAL) > 0)
            (void)send(fd, out, strlen(out), MSG_NOSIGNAL);
        json_decref(asked);
    }
    bool silent = m->mode == MLFLOW_STANDIN_SILENT;
    pthread_mutex_unlock(&m->lock);
    char byte;
    while (silent && recv(fd, &byte, 1, 0) > 0)
        ; /* until the other side has had enough */
    free(text);
}

static void *accept_all(void *context)
{
    mlflow_standin *m = context;
    for (int fd; (fd = accept(m->listener, NULL, NULL)) >= 0; close(fd))
        serve(m, fd);
    return NULL;
}

mlflow_standin *mlflow_standin_open(void)
{
    mlflow_standin *m = must_calloc(1, sizeof *m);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof at;
    m->listener = socket(AF_INET, SOCK_STREAM, 0);
    MUST(bind(m->listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(m->listener, 16) == 0 &&
             getsockname(m->listener, (struct sockaddr *)&at, &length) == 0,
         "no port");
    m->address = must_format("http://127.0.0.1:%d", ntohs(at.sin_port));
    m->login = must_strdup("");
    m->run = json_pack("{s:i, s:{}, s:{}, s:[]}", "count", 0, "params", "tags", "metrics");
    m->seen = json_object();
    pthread_mutex_init(&m->lock, NULL);
    MUST(pthread_create(&m->thread, NULL, accept_all, m) == 0, "cannot start a thread");
    return m;
}

void mlflow_standin_close(mlflow_standin *m)
{
    shutdown(m->listener, SHUT_RDWR);
    pthread_join(m->thread, NULL);
    close(m->listener);
    pthread_mutex_destroy(&m->lock);
    json_decref(m->run);
    json_decref(m->seen);
    free(m->login);
    free(m->address);
    free(m);
}

const char *mlflow_standin_address(const mlflow_standin *m)
{
    return m->address;
}

void mlflow_standin_set(mlflow_standin *m, mlflow_standin_mode mode)
{
    pthread_mutex_lock(&m->lock);
    m->mode = mode;
    pthread_mutex_unlock(&m->lock);
}

int mlflow_standin_requests(mlflow_standin *m)
{
    pthread_mutex_lock(&m->lock);
    int count = m->requests;
    pthread_mutex_unlock(&m->lock);
    return count;
}

char *mlflow_standin_login(mlflow_standin *m)
{
    pthread_mutex_lock(&m->lock);
    char *out = must_strdup(m->login);
    pthread_mutex_unlock(&m->lock);
    return out;
}

json_t *mlflow_standin_run(mlflow_standin *m)
{
    pthread_mutex_lock(&m->lock);
    json_t *out = json_deep_copy(m->run);
    pthread_mutex_unlock(&m->lock);
    return out;
}
