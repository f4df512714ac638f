/* Credentials and endpoint of an object store, read from AWS's environment variables and files like AWS's tools do.
 *
 * Keys:     AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN; else the profile AWS_PROFILE (default)
 *           of AWS_SHARED_CREDENTIALS_FILE (~/.aws/credentials) or AWS_CONFIG_FILE (~/.aws/config).
 * Region:   AWS_REGION, AWS_DEFAULT_REGION, the profile's `region`, us-east-1.
 * Endpoint: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's `endpoint_url`, AWS.
 * CA file:  AWS_CA_BUNDLE, the profile's `ca_bundle`, SSL_CERT_FILE, the system's.
 *
 * AWS_NO_SIGN_REQUEST=true asks anonymously, for public data. The caller owns an account until account_wipe, which
 * overwrites the secrets; they are never printed and in no configuration.
 */
#pragma once

#include <stdbool.h>

#include "memory/status.h"

typedef struct account {
    bool anonymous;
    char *id, *secret, *token; /* token NULL: none */
    char *region, *endpoint;   /* endpoint "http://HOST:PORT" or "https://...", without a slash; NULL: AWS's */
    char *ca_file;             /* NULL: libcurl's default */
    char *source;              /* source of the keys, for messages: "AWS_ACCESS_KEY_ID", "profile x of FILE" */
} account;

/* Fails if there are no keys, and lists the places searched. */
status account_load(account *out);
void account_wipe(account *a); /* an account that is all zero is accepted */
/* True if the keys are the same. */
bool account_same(const account *a, const account *b);
