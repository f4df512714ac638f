#include "tests/tools/pages.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "memory/log.h"
#include "tests/jobs/launch.h"
#include "tests/jobs/workfolder.h"

json_t *pages_data(char **text, const char *path)
{
    int64_t bytes;
    *text = (char *)workfolder_read(path, &bytes);
    assert_true(bytes < 1000000);
    char *from = strstr(*text, "id=\"data\">");
    assert_non_null(from);
    from += strlen("id=\"data\">");
    char *end = strstr(from, "</script>");
    json_error_t error;
    json_t *data = json_loadb(from, (size_t)(end - from), 0, &error);
    if (!data)
        fail_msg("the page's data: %s", error.text);
    return data;
}

int pages_occurrences(const char *text, const char *part)
{
    int n = 0;
    while ((text = strstr(text, part))) {
        n++;
        text += strlen(part);
    }
    return n;
}

char *pages_built(const char *top, const char *path, int width)
{
    launch_result r = launch_run(300,
                                 "chromium --headless --no-sandbox --disable-gpu --user-data-dir=%s/browser --dump-dom "
                                 "--window-size=%d,900 file://%s",
                                 top, width, path);
    assert_int_equal(r.status, 0);
    char *main_part = strstr(r.out, "<main"), *end = main_part ? strstr(main_part, "</main>") : NULL;
    if (!end)
        fail_msg("the browser has built nothing: %s", r.err);
    *end = 0; /* the script comes behind */
    char *text = must_strdup(main_part);
    launch_free(&r);
    return text;
}

bool pages_browser(void)
{
    launch_result r = launch_run(20, "command -v chromium");
    bool there = r.status == 0;
    launch_free(&r);
    return there;
}
