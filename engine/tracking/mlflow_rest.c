#include "engine/tracking/mlflow_rest.h"

#include <stdlib.h>
#include <string.h>
#include <openssl/evp.h>

#include "engine/system/http.h"
#include "memory/log.h"
#include "memory/scope.h"

/* ---- login ------------------------------------------------------------------------------------------------------- */

static const char bearer[] = "Authorization: Bearer ", basic[] = "Authorization: Basic ";

/* Checks that a header's text is one line. */
static status check_line(const char *text, const char *name)
{
    return !text || !log_has_control(text)
               ? STATUS_OK
               : status_fail(STATUS_USAGE, "%s holds a control character, or more than one line", name);
}

static status make_header(mlflow_login *l)
{
    TRY(check_line(l->user, MLFLOW_LOGIN_USER));
    TRY(check_line(l->password, MLFLOW_LOGIN_PASSWORD));
    TRY(check_line(l->token, MLFLOW_LOGIN_TOKEN));
    if (!l->user != !l->password)
        return status_fail(STATUS_USAGE, "the environment has %s without %s: set both, or neither",
                           l->user ? MLFLOW_LOGIN_USER : MLFLOW_LOGIN_PASSWORD,
                           l->user ? MLFLOW_LOGIN_PASSWORD : MLFLOW_LOGIN_USER);
    if (l->user) {
        char *both = must_format("%s:%s", l->user, l->password), *coded = must_alloc(strlen(both) / 3 * 4 + 5);
        EVP_EncodeBlock((unsigned char *)coded, (const unsigned char *)both, (int)strlen(both));
        l->header = must_format("%s%s", basic, coded);
        http_wipe(&both);
        http_wipe(&coded);
    } else if (l->token) {
        l->header = must_format("%s%s", bearer, l->token);
    }
    return STATUS_OK;
}

status mlflow_login_take(mlflow_login *out)
{
    *out = (mlflow_login){.user = http_take_variable(MLFLOW_LOGIN_USER, false),
                          .password = http_take_variable(MLFLOW_LOGIN_PASSWORD, true),
                          .token = http_take_variable(MLFLOW_LOGIN_TOKEN, true),
                          .ca = http_take_variable(MLFLOW_LOGIN_CA, false)};
    status s = make_header(out);
    if (s != STATUS_OK)
        mlflow_login_wipe(out);
    return s;
}

void mlflow_login_wipe(mlflow_login *l)
{
    http_wipe(&l->header);
    http_wipe(&l->user);
    http_wipe(&l->password);
    http_wipe(&l->token);
    http_wipe(&l->ca);
}

status mlflow_login_check(const mlflow_login *l, const char *address)
{
    if (!l->header || strncmp(address, "http://", 7) != 0 || http_is_loopback(address))
        return STATUS_OK;
    return status_fail(STATUS_USAGE,
                       "run.mlflow %s is another machine, and http:// would send it MLflow's %s in the clear: use "
                       "https://",
                       address, l->user ? "password" : "token");
}

/* True if the text has a secret, as it is or as it travels. */
static bool holds_secret(const mlflow_login *l, const char *text)
{
    const char *coded = l->user ? l->header + strlen(basic) : NULL;
    return (l->password && strstr(text, l->password)) || (l->token && strstr(text, l->token)) ||
           (coded && strstr(text, coded));
}

/* ---- the client -------------------------------------------------------------------------------------------------- */

enum { MOST_BODY = 160 << 10, MOST_ANSWER = 1 << 20, MOST_WORDS = 240 };
static const double CONNECT = 5, ANSWER = 60; /* seconds */

struct mlflow_rest {
    http *http;
    const char *address;
    size_t address_length; /* excludes trailing slashes */
    const mlflow_login *login;
    const atomic_bool *stop;
    char *body; /* [MOST_BODY]; preallocated, since no such size is allocated during steps */
    long code;  /* HTTP code of the last answer; 0: no answer */
    bool gone;
};

/* ---- one request ------------------------------------------------------------------------------------------------- */

/* `body` NULL: a GET request. */
static void perform_request(http_answer *out, mlflow_rest *m, const char *url, const char *body)
{
    const char *login = m->login->header; /* "Authorization: ..." */
    const http_pair header[] = {{"Content-Type", "application/json"},
                                {"Authorization", login ? strchr(login, ' ') + 1 : NULL}};
    http_ask(out, m->http,
             &(http_request){.method = body ? "POST" : "GET",
                             .url = url,
                             .header = header,
                             .headers = login ? 2 : 1,
                             .body = body,
                             .body_bytes = body ? (int64_t)strlen(body) : 0,
                             .authorities = m->login->ca,
                             .direct = http_is_loopback(m->address),
                             .connect = CONNECT,
                             .answer = ANSWER,
                             .most = MOST_ANSWER,
                             .stop = m->stop});
    m->code = out->failure ? 0 : out->code;
}

/* Keeps the server's own words, unless they repeat a secret. */
static status refuse_answer(mlflow_rest *m, const json_t *answer)
{
    const char *error = json_string_value(json_object_get(answer, "error_code"));
    const char *said = json_string_value(json_object_get(answer, "message"));
    char words[MOST_WORDS];
    m->gone = m->code == 404 && error && !strcmp(error, "RESOURCE_DOES_NOT_EXIST");
    snprintf(words, sizeof words, "%s", said ? said : error ? error : "no JSON of MLflow's");
    if ((said && holds_secret(m->login, said)) || (error && holds_secret(m->login, error)))
        snprintf(words, sizeof words, "it repeats what it was logged in with");
    log_make_printable(words);
    return status_fail(STATUS_FAILED, "MLflow at %s answers %ld: %s%s", m->address, m->code, words,
                       m->code == 401 || m->code == 403 ? " (the environment's " MLFLOW_LOGIN_USER
                                                          " and " MLFLOW_LOGIN_PASSWORD ", or " MLFLOW_LOGIN_TOKEN
                                                          ", are sent)"
                                                        : "");
}

/* Takes ownership of `body`; NULL: a GET. The caller frees *out, unless `out` is NULL. */
static status send_json(json_t **out, mlflow_rest *m, const char *path, json_t *body)
{
    AUTO_FREE char *url = must_format("%.*s/api/2.0/mlflow/%s", (int)m->address_length, m->address, path);
    RELEASED_BY(http_answer_free) http_answer reply = {0};
    size_t bytes = body ? json_dumpb(body, m->body, MOST_BODY - 1, JSON_COMPACT) : 0;
    MUST(bytes < MOST_BODY, "a request of %zu bytes to MLflow", bytes);
    m->body[bytes] = 0;
    m->gone = false;
    perform_request(&reply, m, url, body ? m->body : NULL);
    json_decref(body);
    if (reply.failure)
        return status_fail(STATUS_FAILED, "MLflow at %s: %s", m->address,
                           reply.too_long ? "it answers more than this reads" : reply.failure);
    json_auto_t *answer = reply.text ? json_loads(reply.text, 0, NULL) : NULL;
    if (m->code != 200 || !json_is_object(answer))
        return refuse_answer(m, answer);
    if (out)
        *out = TAKE(answer);
    return STATUS_OK;
}

/* Posts a body; NULL means that its text is not UTF-8. */
static status post_json(json_t **out, mlflow_rest *m, const char *path, json_t *body)
{
    return body ? send_json(out, m, path, body)
                : status_fail(STATUS_FAILED, "run.mlflow_experiment or run.mlflow_name is no UTF-8");
}

bool mlflow_rest_refused(const mlflow_rest *m)
{
    static const long passing[] = {401, 403, 404, 408, 425, 429};
    for (size_t i = 0; i < sizeof passing / sizeof *passing; i++)
        if (m->code == passing[i])
            return false;
    return m->code >= 400 && m->code < 500;
}

bool mlflow_rest_gone(const mlflow_rest *m)
{
    return m->gone;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

status mlflow_rest_open(mlflow_rest **out, const char *address, const mlflow_login *login, const atomic_bool *stop)
{
    AUTO(mlflow_rest) *m = must_calloc(1, sizeof *m);
    *m = (mlflow_rest){.address = address, .address_length = strlen(address), .login = login, .stop = stop};
    while (m->address_length > 0 && address[m->address_length - 1] == '/')
        m->address_length--;
    m->body = must_alloc(MOST_BODY);
    TRY(http_open(&m->http));
    *out = TAKE(m);
    return STATUS_OK;
}

void mlflow_rest_close(mlflow_rest *m)
{
    if (!m)
        return;
    http_close(m->http);
    free(m->body);
    free(m);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Takes an id of letters, digits, - and _, since it becomes part of requests and is printed. */
static status take_id(char out[MLFLOW_REST_ID], const mlflow_rest *m, const json_t *holder, const char *key)
{
    static const char sound[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    const char *id = json_string_value(json_object_get(holder, key));
    size_t length = id ? strlen(id) : 0;
    if (length == 0 || length >= MLFLOW_REST_ID || strspn(id, sound) != length)
        return status_fail(STATUS_FAILED, "MLflow at %s answers without a sound %s", m->address, key);
    memcpy(out, id, length + 1);
    return STATUS_OK;
}

status mlflow_rest_experiment(char out[MLFLOW_REST_ID], mlflow_rest *m, const char *name)
{
    json_auto_t *answer = NULL;
    AUTO_FREE char *coded = http_coded(name, "");
    AUTO_FREE char *path = must_format("experiments/get-by-name?experiment_name=%s", coded);
    status s = send_json(&answer, m, path, NULL);
    if (s != STATUS_OK && m->gone) { /* another client made it at the same moment: ask again later */
        TRY(post_json(&answer, m, "experiments/create", json_pack("{s:s}", "name", name)));
        return take_id(out, m, answer, "experiment_id");
    }
    TRY(s);
    const json_t *experiment = json_object_get(answer, "experiment");
    const char *stage = json_string_value(json_object_get(experiment, "lifecycle_stage"));
    if (stage && strcmp(stage, "deleted") == 0)
        return status_fail(STATUS_FAILED,
                           "MLflow at %s: experiment %s is deleted: restore it, or name another with "
                           "run.mlflow_experiment",
                           m->address, name);
    return take_id(out, m, experiment, "experiment_id");
}

status mlflow_rest_find(bool *found, char out[MLFLOW_REST_ID], mlflow_rest *m, const char *experiment, const char *tag,
                        const char *value)
{
    AUTO_FREE char *filter = must_format("tags.`%s` = '%s'", tag, value);
    json_auto_t *answer = NULL;
    json_t *body = json_pack("{s:[s], s:s, s:i}", "experiment_ids", experiment, "filter", filter, "max_results", 1);
    TRY(post_json(&answer, m, "runs/search", body));
    const json_t *run = json_array_get(json_object_get(answer, "runs"), 0);
    *found = json_is_object(run);
    return *found ? take_id(out, m, json_object_get(run, "info"), "run_id") : STATUS_OK;
}

status mlflow_rest_create(char out[MLFLOW_REST_ID], mlflow_rest *m, const char *experiment, const char *name,
                          int64_t began, const char *tag, const char *value)
{
    json_auto_t *answer = NULL;
    json_t *body = json_pack("{s:s, s:s, s:I, s:[{s:s, s:s}]}", "experiment_id", experiment, "run_name", name,
                             "start_time", (json_int_t)began, "tags", "key", tag, "value", value);
    TRY(post_json(&answer, m, "runs/create", body));
    return take_id(out, m, json_object_get(json_object_get(answer, "run"), "info"), "run_id");
}

status mlflow_rest_data(json_t **out, mlflow_rest *m, const char *run)
{
    json_auto_t *answer = NULL;
    AUTO_FREE char *path = must_format("runs/get?run_id=%s", run);
    TRY(send_json(&answer, m, path, NULL));
    json_t *data = json_object_get(json_object_get(answer, "run"), "data");
    *out = json_is_object(data) ? json_incref(data) : json_object();
    return STATUS_OK;
}

static void put_array(json_t *body, const char *key, json_t *array)
{
    if (array)
        json_object_set_new(body, key, array);
}

status mlflow_rest_log(mlflow_rest *m, const char *run, json_t *metrics, json_t *parameters, json_t *tags)
{
    json_t *body = json_pack("{s:s}", "run_id", run);
    put_array(body, "metrics", metrics);
    put_array(body, "params", parameters);
    put_array(body, "tags", tags);
    return post_json(NULL, m, "runs/log-batch", body);
}

status mlflow_rest_update(mlflow_rest *m, const char *run, mlflow_rest_state state, int64_t ended)
{
    static const char *const words[] = {[MLFLOW_REST_RUNNING] = "RUNNING",
                                        [MLFLOW_REST_FINISHED] = "FINISHED",
                                        [MLFLOW_REST_FAILED] = "FAILED",
                                        [MLFLOW_REST_KILLED] = "KILLED"};
    json_t *body = json_pack("{s:s, s:s}", "run_id", run, "status", words[state]);
    if (ended > 0)
        json_object_set_new(body, "end_time", json_integer(ended));
    return post_json(NULL, m, "runs/update", body);
}
