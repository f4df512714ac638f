/* libFuzzer on the configuration: any bytes are refused in one line, or read to something that writes and reads back to
 * itself. The first byte says how many lines at the end are overrides. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "engine/config/config.h"
#include "memory/scope.h"

enum { MOST_OVERRIDES = 4 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (!bytes)
        return 0;
    int wanted = data[0] % (MOST_OVERRIDES + 1), overrides = 0;
    char *text = must_alloc(bytes), *override[MOST_OVERRIDES];
    size_t length = bytes - 1;
    memcpy(text, data + 1, length);
    text[length] = 0;
    while (overrides < wanted) {
        char *line = memrchr(text, '\n', length);
        if (!line)
            break;
        *line = 0;
        override[overrides++] = line + 1;
        length = (size_t)(line - text);
    }
    config c, again;
    if (config_parse(&c, "fuzz", text, length, overrides, override) == STATUS_OK) {
        AUTO_FREE char *written = config_text(&c);
        MUST(config_parse(&again, "written", written, strlen(written), 0, NULL) == STATUS_OK, "%s in\n%s",
             status_message(), written);
        AUTO_FREE char *rewritten = config_text(&again);
        MUST(strcmp(written, rewritten) == 0, "not the same again:\n%s\n%s", written, rewritten);
        config_free(&again);
        config_free(&c);
    } else {
        MUST(!strchr(status_message(), '\n'), "a message of several lines: %s", status_message());
    }
    free(text);
    return 0;
}
