/* The pages that phalanx makes, as tests see them. What is missing fails the test. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

/* The data of a page, the caller's; *text is the page itself, likewise. */
json_t *pages_data(char **text, const char *path);
bool pages_browser(void);
/* The document as a browser has built it, `width` pixels wide, with a profile in the folder `top`; the caller's. */
char *pages_built(const char *top, const char *path, int width);
/* The page with a script behind its own, in that browser: what the script has put into `out` as JSON, the caller's. The
 * page may say nothing on the console. */
json_t *pages_probe(const char *top, const char *path, int width, const char *script);
int pages_occurrences(const char *text, const char *part);
