/* Plays a playlist of training runs on the ranks it is started on. */
#include "tests/playlist.h"

int main(int argc, char **argv)
{
    return playlist_main(argc, argv);
}
