/* Signatures are those that AWS publishes: its test suite of Signature Version 4, and the examples of S3's API
 * reference. What is left out of the suite is what S3 does not do, or this client does not send: paths are not
 * normalised, a header stands once and on one line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/store/s3/signature.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/test.h"

#define UNRESERVED "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
#define SUITE_TIME "20150830T123600Z"
#define S3_TIME    "20130524T000000Z"
/* clang-format off */
#define SUITE_HEADERS {"host", "example.amazonaws.com"}, {"x-amz-date", SUITE_TIME}
#define S3_HEADERS    {"host", "examplebucket.s3.amazonaws.com"}, {"x-amz-date", S3_TIME}
#define STS_TOKEN \
    "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPfIeoIYRqTflfKD8YUuwth" \
    "Ax7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7WZ0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAk" \
    "iY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8FDrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA=="

static const signature_key suite_key = {"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "us-east-1",
                                        "service"};
static const signature_key s3_key = {"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "us-east-1",
                                     "s3"};

typedef struct vector {
    const char *name, *method, *path;
    http_pair query[4], header[6]; /* up to the first without a name */
    const char *body, *signature;
} vector;

static const vector suite[] = {
    {"get-vanilla", "GET", "/", {{0}}, {SUITE_HEADERS}, "", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
    {"get-unreserved", "GET", "/" UNRESERVED, {{0}}, {SUITE_HEADERS}, "", "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f"},
    {"get-utf8", "GET", "/\xE1\x88\xB4", {{0}}, {SUITE_HEADERS}, "", "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"},
    {"get-space", "GET", "/example space/", {{0}}, {SUITE_HEADERS}, "", "652487583200325589f1fba4c7e578f72c47cb61beeca81406b39ddec1366741"},
    {"get-special-character", "GET", "/example/$delete", {{0}}, {SUITE_HEADERS}, "", "a853c9b21b528b19643d00910d35b83a10c366a10833ceefb45edd6c80e40f27"},
    {"get-vanilla-empty-query-key", "GET", "/", {{"Param1", "value1"}}, {SUITE_HEADERS}, "", "a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb"},
    {"get-vanilla-query-order-encoded", "GET", "/", {{"Param-3", "Value3"}, {"Param", "Value2"}, {"\xE1\x88\xB4", "Value1"}}, {SUITE_HEADERS}, "", "371d3713e185cc334048618a97f809c9ffe339c62934c032af5a0e595648fcac"},
    {"get-vanilla-query-order-key-case", "GET", "/", {{"Param2", "value2"}, {"Param1", "value1"}}, {SUITE_HEADERS}, "", "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"},
    {"get-vanilla-query-order-key", "GET", "/", {{"Param1", "value2"}, {"Param1", "Value1"}}, {SUITE_HEADERS}, "", "eedbc4e291e521cf13422ffca22be7d2eb8146eecf653089df300a15b2382bd1"},
    {"get-vanilla-query-order-value", "GET", "/", {{"Param1", "value2"}, {"Param1", "value1"}}, {SUITE_HEADERS}, "", "5772eed61e12b33fae39ee5e7012498b51d56abc0abb7c60486157bd471c4694"},
    {"get-vanilla-query-unreserved", "GET", "/", {{UNRESERVED, UNRESERVED}}, {SUITE_HEADERS}, "", "9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197"},
    {"get-vanilla-utf8-query", "GET", "/", {{"\xE1\x88\xB4", "bar"}}, {SUITE_HEADERS}, "", "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04"},
    {"post-vanilla", "POST", "/", {{0}}, {SUITE_HEADERS}, "", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"},
    {"post-header-key-sort", "POST", "/", {{0}}, {{"my-header1", "value1"}, SUITE_HEADERS}, "", "c5410059b04c1ee005303aed430f6e6645f61f4dc9e1461ec8f8916fdf18852c"},
    {"post-header-value-case", "POST", "/", {{0}}, {SUITE_HEADERS, {"my-header1", "VALUE1"}}, "", "cdbc9802e29d2942e5e10b5bccfdd67c5f22c7c4e8ae67b53629efa58b974b7d"},
    {"post-vanilla-query", "POST", "/", {{"Param1", "value1"}}, {SUITE_HEADERS}, "", "28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11"},
    {"post-x-www-form-urlencoded", "POST", "/", {{0}}, {{"content-type", "application/x-www-form-urlencoded"}, SUITE_HEADERS}, "Param1=value1", "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a"},
    {"post-x-www-form-urlencoded-parameters", "POST", "/", {{0}}, {{"content-type", "application/x-www-form-urlencoded; charset=utf8"}, SUITE_HEADERS}, "Param1=value1", "1a72ec8f64bd914b0e42e42607c7fbce7fb2c7465f63e3092b3b0d39fa77a6fe"},
    {"post-sts-header-before", "POST", "/", {{0}}, {{"x-amz-security-token", STS_TOKEN}, SUITE_HEADERS}, "", "85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead"},
};

#define EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

static const vector s3_examples[] = {
    {"GET object", "GET", "/test.txt", {{0}}, {S3_HEADERS, {"range", "bytes=0-9"}, {"x-amz-content-sha256", EMPTY}}, "", "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"},
    {"PUT object", "PUT", "/test$file.text", {{0}}, {{"date", "Fri, 24 May 2013 00:00:00 GMT"}, S3_HEADERS, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}, {"x-amz-content-sha256", "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"}}, "Welcome to Amazon S3.", "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"},
    {"GET lifecycle", "GET", "/", {{"lifecycle", ""}}, {S3_HEADERS, {"x-amz-content-sha256", EMPTY}}, "", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"},
    {"GET list", "GET", "/", {{"max-keys", "2"}, {"prefix", "J"}}, {S3_HEADERS, {"x-amz-content-sha256", EMPTY}}, "", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"},
};
/* clang-format on */

static char *sign(const signature_key *key, const vector *v, const char *time)
{
    char hash[SIGNATURE_HEX];
    signature_hash(hash, v->body, (int64_t)strlen(v->body));
    signature_request r = {v->method, v->path, v->query, v->header, 0, 0, hash, time};
    while (r.queries < 4 && v->query[r.queries].name)
        r.queries++;
    while (r.headers < 6 && v->header[r.headers].name)
        r.headers++;
    return signature_authorization(key, &r);
}

static void check(const signature_key *key, const vector *v, const char *time)
{
    AUTO_FREE char *got = sign(key, v, time),
                   *credential =
                       must_format("Credential=%s/%.8s/us-east-1/%s/aws4_request, ", key->id, time, key->service);
    if (!strstr(got, credential) || strcmp(strstr(got, "Signature=") + 10, v->signature) != 0)
        fail_msg("%s: %s, and not %s", v->name, got, v->signature);
}

TEST(signatures_are_those_of_the_published_suite)
{
    for (size_t i = 0; i < sizeof suite / sizeof *suite; i++)
        check(&suite_key, &suite[i], SUITE_TIME);
}

TEST(signatures_are_those_of_the_api_reference)
{
    for (size_t i = 0; i < sizeof s3_examples / sizeof *s3_examples; i++)
        check(&s3_key, &s3_examples[i], S3_TIME);
}

/* The oracle can fail: each part of a request is in its signature. */
TEST(a_signature_depends_on_every_part_of_the_request)
{
    const vector right = s3_examples[1];
    vector other[6];
    for (int i = 0; i < 6; i++)
        other[i] = right;
    other[0].method = "POST";
    other[1].path = "/test$file.texu";
    other[2].query[0] = (http_pair){"acl", ""};
    other[3].header[1].value = "examplebucket.s3.amazonaws.org";
    other[4].body = "Welcome to Amazon S4.";
    other[5].header[3].value = "STANDARD";
    AUTO_FREE char *got = sign(&s3_key, &right, S3_TIME);
    for (int i = 0; i < 6; i++) {
        AUTO_FREE char *changed = sign(&s3_key, &other[i], S3_TIME);
        assert_string_not_equal(strstr(got, "Signature="), strstr(changed, "Signature="));
    }
    signature_key keys[] = {s3_key, s3_key, s3_key};
    keys[0].secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEX";
    keys[1].region = "us-east-2";
    keys[2].service = "s4";
    for (int i = 0; i < 3; i++) {
        AUTO_FREE char *changed = sign(&keys[i], &right, S3_TIME);
        assert_string_not_equal(strstr(got, "Signature="), strstr(changed, "Signature="));
    }
}

TEST(paths_and_queries_are_encoded_once)
{
    AUTO_FREE char *path = signature_path("/a b/\xC3\xA4+%41//../c~");
    assert_string_equal(path, "/a%20b/%C3%A4%2B%2541//../c~");
    const http_pair pairs[] = {{"b", "/ x"}, {"a-", "2"}, {"a", "2"}, {"a", "10"}, {"a=", "1"}};
    AUTO_FREE char *query = signature_query(pairs, 5);
    assert_string_equal(query, "a=10&a=2&a%3D=1&a-=2&b=%2F%20x");
}

TEST_MAIN(NULL, NULL)
