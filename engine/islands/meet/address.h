/* This machine's address as another one sees it: that from which it would speak to the other. */
#pragma once

#include "memory/status.h"

/* `url`: "http://[USER:PASSWORD@]HOST:PORT". The result is the caller's. */
status address_towards(char **out, const char *url);
