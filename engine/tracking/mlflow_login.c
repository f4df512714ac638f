#include "engine/tracking/mlflow_login.h"

#include <stdlib.h>
#include <string.h>
#include <openssl/evp.h>

#include "engine/system/http.h"
#include "memory/log.h"
#include "memory/scope.h"

static const char bearer[] = "Authorization: Bearer ", basic[] = "Authorization: Basic ";

static void wipe_text(char **text)
{
    if (*text)
        explicit_bzero(*text, strlen(*text));
    free(*text);
    *text = NULL;
}

/* A copy of a variable that is not empty; NULL: there is none. A secret one is removed. */
static char *take_variable(const char *name, bool secret)
{
    char *given = getenv(name), *copy = given && *given ? must_strdup(given) : NULL;
    if (given && secret) {
        explicit_bzero(given, strlen(given)); /* /proc/PID/environ shows this memory */
        unsetenv(name);
    }
    return copy;
}

/* What becomes a line of a header is one line. */
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
        wipe_text(&both);
        wipe_text(&coded);
    } else if (l->token) {
        l->header = must_format("%s%s", bearer, l->token);
    }
    return STATUS_OK;
}

status mlflow_login_take(mlflow_login *out)
{
    *out = (mlflow_login){.user = take_variable(MLFLOW_LOGIN_USER, false),
                          .password = take_variable(MLFLOW_LOGIN_PASSWORD, true),
                          .token = take_variable(MLFLOW_LOGIN_TOKEN, true),
                          .ca = take_variable(MLFLOW_LOGIN_CA, false)};
    status s = make_header(out);
    if (s != STATUS_OK)
        mlflow_login_wipe(out);
    return s;
}

void mlflow_login_wipe(mlflow_login *l)
{
    wipe_text(&l->header);
    wipe_text(&l->user);
    wipe_text(&l->password);
    wipe_text(&l->token);
    wipe_text(&l->ca);
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

bool mlflow_login_in(const mlflow_login *l, const char *text)
{
    const char *coded = l->user ? l->header + strlen(basic) : NULL;
    return (l->password && strstr(text, l->password)) || (l->token && strstr(text, l->token)) ||
           (coded && strstr(text, coded));
}
