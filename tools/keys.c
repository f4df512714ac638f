/* phalanx keys: an island's pair of keys. */
#include <stdio.h>

#include "engine/islands/islands.h"
#include "memory/log.h"
#include "tools/options.h"
#include "tools/tools.h"

int keys_main(int argc, char **argv)
{
    const options_command command = {
        .name = "keys",
        .operands = "FOLDER",
        .summary =
            "Makes an island's keys in FOLDER: island.secret, which stays there, and island.public, which goes to\n"
            "the other islands, as FOLDER/peers/NAME.public of theirs. outer.keys names the folder.",
        .least = 1,
        .most = 1,
    };
    int operands, code = options_parse(&command, &operands, argc, argv);
    if (code != OPTIONS_GO_ON)
        return code;
    status s = islands_make_keys(argv[1]);
    if (s != STATUS_OK)
        log_error("%s", status_message());
    else
        log_info("made %s/island.secret and %s/island.public; other islands' public keys go to %s/peers/NAME.public",
                 argv[1], argv[1], argv[1]);
    return (int)s;
}
