/* What tests of object stores share. */
#pragma once

#include "engine/store/object.h"
#include "tests/engine/store/s3_server.h"

/* A handle whose pauses begin at a millisecond. */
object_store *stores_open(const char *bucket, double patience);
/* Bytes that a number draws; the caller's. */
char *stores_bytes(int64_t count, unsigned seed);
void stores_assert_ok(status s);
/* It failed; its message has each of the words, between which is a |, and nothing of the stand-in's credentials. */
void stores_assert_failed(status s, const char *words);
