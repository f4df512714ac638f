/* This machine's address as another one sees it: that from which it would speak to the other. */
#ifndef PHALANX_ENGINE_ISLANDS_ADDRESS_H
#define PHALANX_ENGINE_ISLANDS_ADDRESS_H

#include "memory/status.h"

/* `url`: "http://[USER:PASSWORD@]HOST:PORT". The result is the caller's. */
status address_towards(char **out, const char *url);

#endif
