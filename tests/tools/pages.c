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

/* The document around a page's frame, into which `script` has put what it has found: a window is at least 500 pixels
 * wide, a frame as wide as one says. The page may say nothing on the console. */
static char *through_browser(const char *top, const char *path, int width, const char *script)
{
    int64_t bytes;
    char *page = (char *)workfolder_read(path, &bytes), *end = strstr(page, "</body>"),
         *probed = workfolder_path(top, "probed.html"), *frame = workfolder_path(top, "frame.html");
    assert_non_null(end);
    FILE *f = fopen(probed, "w");
    assert_non_null(f);
    fprintf(f, "%.*s<script>{%s}</script>%s", (int)(end - page), page, script, end);
    assert_int_equal(fclose(f), 0);
    f = fopen(frame, "w");
    assert_non_null(f);
    fprintf(f,
            "<!doctype html><body style=\"margin:0\"><iframe src=\"probed.html\" "
            "style=\"border:0;width:%dpx;height:900px\">"
            "</iframe></body>",
            width);
    assert_int_equal(fclose(f), 0);
    launch_result r = launch_run(300,
                                 "chromium --headless --no-sandbox --disable-gpu --user-data-dir=%s/browser --dump-dom "
                                 "--enable-logging=stderr --allow-file-access-from-files --hide-scrollbars "
                                 "--window-size=%d,900 file://%s",
                                 top, width, frame);
    assert_int_equal(r.status, 0);
    char *said = strstr(r.err, "CONSOLE"), *text = must_strdup(r.out);
    if (said)
        fail_msg("on the console: %s", said);
    launch_free(&r);
    free(frame);
    free(probed);
    free(page);
    return text;
}

char *pages_built(const char *top, const char *path, int width)
{
    char *all =
             through_browser(top, path, width, "parent.document.body.append(parent.document.importNode(page, true));"),
         *main_part = strstr(all, "<main"), *end = main_part ? strstr(main_part, "</main>") : NULL;
    if (!end)
        fail_msg("the browser has built nothing: %.200s", all);
    *end = 0;
    char *text = must_strdup(main_part);
    free(all);
    return text;
}

/* Text of an element as a document has it, in place. */
static void unescape(char *text)
{
    static const char *const forms[] = {"&amp;", "&lt;", "&gt;"};
    char *out = text;
    for (char *in = text; *in;) {
        int k = 0;
        while (k < 3 && strncmp(in, forms[k], strlen(forms[k])) != 0)
            k++;
        *out++ = k < 3 ? "&<>"[k] : *in;
        in += k < 3 ? strlen(forms[k]) : 1;
    }
    *out = 0;
}

json_t *pages_probe(const char *top, const char *path, int width, const char *script)
{
    char *whole =
             must_format("const out = {};\n%s\nconst probe = parent.document.createElement('pre'); probe.id = 'probe'; "
                         "probe.textContent = JSON.stringify(out); parent.document.body.append(probe);",
                         script),
         *text = through_browser(top, path, width, whole), *from = strstr(text, "<pre id=\"probe\">");
    if (!from)
        fail_msg("the script has failed: %.200s", text);
    from += strlen("<pre id=\"probe\">");
    *strstr(from, "</pre>") = 0;
    unescape(from);
    json_error_t error;
    json_t *out = json_loads(from, 0, &error);
    if (!out)
        fail_msg("%s: %.200s", error.text, from);
    free(text);
    free(whole);
    return out;
}

bool pages_browser(void)
{
    launch_result r = launch_run(20, "command -v chromium");
    bool there = r.status == 0;
    launch_free(&r);
    return there;
}
