/* The pages that phalanx makes, as tests see them. What is missing fails the test. */
#ifndef PHALANX_TESTS_TOOLS_PAGES_H
#define PHALANX_TESTS_TOOLS_PAGES_H

#include <jansson.h>
#include <stdbool.h>

/* The data of a page, the caller's; *text is the page itself, likewise. */
json_t *pages_data(char **text, const char *path);
bool pages_browser(void);
/* The document as a browser has built it, `width` pixels wide, with a profile in the folder `top`; the caller's. */
char *pages_built(const char *top, const char *path, int width);
int pages_occurrences(const char *text, const char *part);

#endif
