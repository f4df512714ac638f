#include "tests/skip.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

void skip_because(const char *why)
{
    printf("# skipped: %s\n", why);
    fflush(stdout);
    skip();
}
