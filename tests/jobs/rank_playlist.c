/* Plays a playlist of training runs on the ranks it is started on. */
#include <stddef.h>

#include "tests/jobs/playlist.h"

int main(int argc, char **argv)
{
    return playlist_main(argc, argv, NULL);
}
