#include "engine/store/s3/account.h"

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "engine/system/http.h"
#include "engine/system/reading.h"
#include "memory/log.h"
#include "memory/scope.h"

void account_wipe(account *a)
{
    char **const texts[] = {&a->id, &a->secret, &a->token, &a->region, &a->endpoint, &a->ca_file, &a->source};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        http_wipe(texts[i]);
    *a = (account){0};
}

static bool same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

bool account_same(const account *a, const account *b)
{
    return same_text(a->id, b->id) && same_text(a->secret, b->secret) && same_text(a->token, b->token);
}

/* ---- AWS's files ------------------------------------------------------------------------------------------------- */

/* Takes one line of a profile; values that are already set stay. */
static void take_line(account *p, const char *name, const char *value)
{
    const struct {
        const char *name;
        char **to;
    } known[] = {{"aws_access_key_id", &p->id}, {"aws_secret_access_key", &p->secret}, {"aws_session_token", &p->token},
                 {"region", &p->region},        {"endpoint_url", &p->endpoint},        {"ca_bundle", &p->ca_file}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcasecmp(name, known[i].name) == 0 && !*known[i].to && *value)
            *known[i].to = must_strdup(value);
}

/* Strips space at both ends, in place. */
static char *trim_space(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    for (size_t n = strlen(text); n > 0 && isspace((unsigned char)text[n - 1]); n--)
        text[n - 1] = 0;
    return text;
}

/* Matches "[NAME]", or "[profile NAME]" in the configuration file. */
static bool names_profile(char *line, const char *name)
{
    line[strcspn(line, "]")] = 0;
    char *inside = trim_space(line + 1);
    if (strncmp(inside, "profile", 7) == 0 && isspace((unsigned char)inside[7]))
        inside = trim_space(inside + 7);
    return strcmp(inside, name) == 0;
}

/* Takes the lines "name = value" of the profile's section. Skips lines that begin with space, which continue the line
 * before. */
static void take_lines(bool *found, account *p, char *text, const char *name)
{
    bool inside = false;
    for (char *line = text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        char *equals = strchr(line, '=');
        if (*line == '[') {
            inside = names_profile(line, name);
            *found = *found || inside;
        } else if (inside && equals && !isspace((unsigned char)*line) && *line != '#' && *line != ';') {
            *equals = 0;
            take_line(p, trim_space(line), trim_space(equals + 1));
        }
    }
}

/* Reads a file; one that does not exist adds no values. */
static status take_file(bool *found, account *p, const char *path, const char *name)
{
    AUTO_FREE char *text = NULL;
    int64_t bytes = 0;
    TRY(reading_file(&text, &bytes, path));
    if (!text)
        return STATUS_OK;
    take_lines(found, p, text, name);
    explicit_bzero(text, (size_t)bytes);
    return STATUS_OK;
}

static char *path_of(const char *name, const char *within_home)
{
    const char *given = http_variable(name), *home = http_variable("HOME");
    return given ? must_strdup(given) : must_format("%s/.aws/%s", home ? home : "", within_home);
}

/* ---- one account ------------------------------------------------------------------------------------------------- */

/* Rejects unprintable characters: the texts become lines of headers. */
static status check_printable(const char *what, const char *text, const char *from)
{
    for (const char *at = text ? text : ""; *at; at++)
        if (!isgraph((unsigned char)*at))
            return status_fail(STATUS_USAGE, "the %s of %s holds space or a character that no %s has", what, from,
                               what);
    return STATUS_OK;
}

static status check_account(const account *a)
{
    TRY(check_printable("access key", a->id, a->source));
    TRY(check_printable("secret key", a->secret, a->source));
    TRY(check_printable("session token", a->token, a->source));
    TRY(check_printable("region", a->region, "AWS_REGION or the profile"));
    TRY(check_printable("endpoint", a->endpoint, "AWS_ENDPOINT_URL or the profile"));
    if (!a->endpoint)
        return STATUS_OK;
    if (strchr(a->endpoint, '@') || strpbrk(a->endpoint, "?#"))
        return status_fail(STATUS_USAGE, "AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or endpoint_url holds a user, a "
                                         "password or a query: an endpoint is http://HOST:PORT or https://HOST");
    if (strncmp(a->endpoint, "http://", 7) != 0 && strncmp(a->endpoint, "https://", 8) != 0)
        return status_fail(STATUS_USAGE, "the endpoint %s is none: http://HOST:PORT or https://HOST is one",
                           a->endpoint);
    return STATUS_OK;
}

static char *first_of(const char *a, const char *b, const char *c, const char *d)
{
    const char *found = a ? a : b ? b : c ? c : d;
    return found ? must_strdup(found) : NULL;
}

static status take_keys(account *out, const account *p, bool found, const char *name, const char *files)
{
    const char *id = http_variable("AWS_ACCESS_KEY_ID"), *secret = http_variable("AWS_SECRET_ACCESS_KEY");
    const char *token = http_variable("AWS_SESSION_TOKEN"), *unsigned_too = http_variable("AWS_NO_SIGN_REQUEST");
    out->anonymous = unsigned_too && (strcasecmp(unsigned_too, "true") == 0 || strcmp(unsigned_too, "1") == 0);
    if (out->anonymous) {
        out->source = must_strdup("AWS_NO_SIGN_REQUEST");
        return STATUS_OK;
    }
    if (!id != !secret)
        return status_fail(STATUS_USAGE, "of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY only one is set: set both");
    if (id || (p->id && p->secret)) {
        token = id ? token : p->token;
        out->source = id ? must_strdup("AWS_ACCESS_KEY_ID") : must_format("profile %s of %s", name, files);
        out->id = must_strdup(id ? id : p->id);
        out->secret = must_strdup(id ? secret : p->secret);
        out->token = token ? must_strdup(token) : NULL;
        return STATUS_OK;
    }
    return status_fail(STATUS_USAGE,
                       "no credentials for s3://: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set, and %s %s "
                       "of %s%s; set them (a role's or a login's: aws configure export-credentials --format env), or "
                       "AWS_NO_SIGN_REQUEST=true for public data",
                       found ? "profile" : "there is no profile", name, files, found ? " has no keys" : "");
}

/* Finds the system's certificate authorities: a program built on one system may run on another. NULL: libcurl searches
 * by itself. */
static const char *find_authorities(void)
{
    static const char *const paths[] = {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                                        "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (access(paths[i], R_OK) == 0)
            return paths[i];
    return NULL;
}

status account_load(account *out)
{
    RELEASED_BY(account_wipe) account a = {0};
    RELEASED_BY(account_wipe) account p = {0};
    bool found = false;
    const char *name = http_variable("AWS_PROFILE") ? http_variable("AWS_PROFILE") : "default";
    AUTO_FREE char *keys = path_of("AWS_SHARED_CREDENTIALS_FILE", "credentials");
    AUTO_FREE char *config = path_of("AWS_CONFIG_FILE", "config");
    AUTO_FREE char *files = must_format("%s and %s", keys, config);
    TRY(take_file(&found, &p, keys, name));
    TRY(take_file(&found, &p, config, name));
    TRY(take_keys(&a, &p, found, name, files));
    a.region = first_of(http_variable("AWS_REGION"), http_variable("AWS_DEFAULT_REGION"), p.region, "us-east-1");
    a.endpoint = first_of(http_variable("AWS_ENDPOINT_URL_S3"), http_variable("AWS_ENDPOINT_URL"), p.endpoint, NULL);
    a.ca_file = first_of(http_variable("AWS_CA_BUNDLE"), p.ca_file, http_variable("SSL_CERT_FILE"), find_authorities());
    for (size_t n = a.endpoint ? strlen(a.endpoint) : 0; n > 0 && a.endpoint[n - 1] == '/'; n--)
        a.endpoint[n - 1] = 0;
    TRY(check_account(&a));
    *out = a;
    a = (account){0};
    return STATUS_OK;
}
