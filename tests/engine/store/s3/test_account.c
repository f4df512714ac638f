/* AWS's variables and files, read as AWS's tools read them; secrets are in no message. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/store/s3/account.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/test.h"

static const char *const names[] = {
    "AWS_ACCESS_KEY_ID",   "AWS_SECRET_ACCESS_KEY",       "AWS_SESSION_TOKEN", "AWS_PROFILE",   "AWS_REGION",
    "AWS_DEFAULT_REGION",  "AWS_ENDPOINT_URL_S3",         "AWS_ENDPOINT_URL",  "AWS_CA_BUNDLE", "SSL_CERT_FILE",
    "AWS_NO_SIGN_REQUEST", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE",   "HOME",
};

static void forget_variables(void)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
}

static char folder[] = "/tmp/phalanx-account-XXXXXX";

static void write_home(const char *credentials, const char *config)
{
    const char *const texts[] = {credentials, config}, *const files[] = {"credentials", "config"};
    char *path = must_format("%s/.aws", folder);
    setenv("HOME", folder, 1);
    char *make = must_format("mkdir -p %s", path);
    assert_int_equal(system(make), 0);
    free(make);
    free(path);
    for (int i = 0; i < 2; i++) {
        path = must_format("%s/.aws/%s", folder, files[i]);
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(texts[i], f);
        fclose(f);
        free(path);
    }
}

static const char credentials[] = "# keys\r\n[default]\r\naws_access_key_id = AKIDDEFAULT\r\n"
                                  "aws_secret_access_key=S3CR3T/a+b=\r\n\r\n[ work ]\naws_access_key_id=AKIDWORK\n"
                                  "aws_secret_access_key =  S3CR3Twork  \naws_session_token = T0K3N==\n";
static const char config[] = "[default]\nregion = eu-central-1\ns3 =\n  endpoint_url = http://nested.example\n"
                             "  aws_access_key_id = AKIDNESTED\n[profile work]\nregion=us-west-2\n"
                             "endpoint_url = https://store.example:9000/\nca_bundle = /etc/ca.pem\n"
                             "[profile only]\naws_access_key_id = AKIDONLY\naws_secret_access_key = S3CR3Tonly\n";

static void check(const char *id, const char *secret, const char *token, const char *region, const char *endpoint)
{
    account a;
    status s = account_load(&a);
    if (s != STATUS_OK)
        fail_msg("%s", status_message());
    const struct {
        const char *want, *have;
    } texts[] = {{id, a.id}, {secret, a.secret}, {token, a.token}, {region, a.region}, {endpoint, a.endpoint}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].want)
            assert_string_equal(texts[i].have, texts[i].want);
        else
            assert_null(texts[i].have);
    account_wipe(&a);
    assert_null(a.secret);
}

TEST(profiles_are_read_as_awss_tools_read_them)
{
    forget_variables();
    write_home(credentials, config);
    check("AKIDDEFAULT", "S3CR3T/a+b=", NULL, "eu-central-1", NULL);
    setenv("AWS_PROFILE", "work", 1);
    check("AKIDWORK", "S3CR3Twork", "T0K3N==", "us-west-2", "https://store.example:9000");
    setenv("AWS_PROFILE", "only", 1);
    check("AKIDONLY", "S3CR3Tonly", NULL, "us-east-1", NULL);
    setenv("AWS_REGION", "ap-south-1", 1);
    setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000", 1);
    check("AKIDONLY", "S3CR3Tonly", NULL, "ap-south-1", "http://127.0.0.1:9000");
    setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9001//", 1);
    check("AKIDONLY", "S3CR3Tonly", NULL, "ap-south-1", "http://127.0.0.1:9001");
    setenv("AWS_ACCESS_KEY_ID", "AKIDENV", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "S3CR3Tenv", 1);
    setenv("AWS_SESSION_TOKEN", "T0K3Nenv", 1);
    check("AKIDENV", "S3CR3Tenv", "T0K3Nenv", "ap-south-1", "http://127.0.0.1:9001");
    setenv("AWS_NO_SIGN_REQUEST", "true", 1);
    check(NULL, NULL, NULL, "ap-south-1", "http://127.0.0.1:9001");
}

static void assert_refused(const char *words)
{
    account a;
    assert_int_equal(account_load(&a), STATUS_USAGE);
    if (!strstr(status_message(), words))
        fail_msg("\"%s\" does not say \"%s\"", status_message(), words);
    assert_null(strstr(status_message(), "S3CR3T"));
    assert_null(strstr(status_message(), "T0K3N"));
}

TEST(what_is_missing_or_wrong_is_said_without_secrets)
{
    forget_variables();
    write_home("", "");
    assert_refused("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set, and there is no profile default");
    setenv("AWS_PROFILE", "none", 1);
    assert_refused("no profile none of");
    setenv("AWS_ACCESS_KEY_ID", "AKIDENV", 1);
    assert_refused("only one is set");
    setenv("AWS_SECRET_ACCESS_KEY", "S3CR3T\nX-Evil: 1", 1);
    assert_refused("the secret key of AWS_ACCESS_KEY_ID");
    setenv("AWS_SECRET_ACCESS_KEY", "S3CR3T", 1);
    setenv("AWS_SESSION_TOKEN", "T0K3N with space", 1);
    assert_refused("the session token of");
    setenv("AWS_SESSION_TOKEN", "T0K3N", 1);
    static const struct {
        const char *endpoint, *words;
    } bad[] = {{"http://user:S3CR3T@host", "a user, a password"},
               {"https://host/?token=S3CR3T", "a query"},
               {"host:9000", "http://HOST:PORT"},
               {"file:///etc/passwd", "http://HOST:PORT"},
               {"http://h\r\nHost: x", "the endpoint of"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("AWS_ENDPOINT_URL_S3", bad[i].endpoint, 1);
        assert_refused(bad[i].words);
    }
    setenv("AWS_ENDPOINT_URL_S3", "http://h", 1);
    setenv("AWS_REGION", "x\ny", 1);
    assert_refused("the region of");
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    AUTO_FREE char *command = must_format("rm -r %s", folder);
    return system(command);
}

TEST_MAIN(make_folder, remove_folder)
