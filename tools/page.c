#include "tools/page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/files/output.h"
#include "memory/log.h"
#include "memory/scope.h"

/* Times need 13 digits. A `</` in the data would end the script that holds it. */
status page_write(const char *path, const char *frame, const char *mark, const json_t *data)
{
    const char *place = strstr(frame, mark);
    MUST(place, "no place for the data");
    AUTO_FREE char *text = json_dumps(data, JSON_COMPACT | JSON_REAL_PRECISION(13)), *page = NULL;
    size_t bytes;
    FILE *out = open_memstream(&page, &bytes);
    MUST(out, "out of host memory");
    fwrite(frame, 1, (size_t)(place - frame), out);
    for (const char *c = text; *c; c++)
        fputs(c[0] == '<' ? "\\u003c" : (char[2]){*c, 0}, out);
    fputs(place + strlen(mark), out);
    fclose(out);
    return output_write(path, page, (int64_t)bytes);
}
