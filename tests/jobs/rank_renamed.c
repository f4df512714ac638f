/* Plays a playlist in a job whose ranks have the reverse numbers of those that the launcher gave them: what MPI is
 * asked of all ranks, it is asked of a communicator in that order. */
#include <mpi.h>
#include <stdbool.h>

#include "memory/log.h"
#include "tests/jobs/playlist.h"

static MPI_Comm world = MPI_COMM_NULL;
static bool asked; /* parallel/comm has asked for its rank here */

static MPI_Comm renamed(MPI_Comm c)
{
    if (c == MPI_COMM_WORLD && world == MPI_COMM_NULL) {
        int rank;
        PMPI_Comm_rank(c, &rank);
        PMPI_Comm_split(c, 0, -rank, &world);
    }
    return c == MPI_COMM_WORLD ? world : c;
}

int MPI_Comm_set_errhandler(MPI_Comm c, MPI_Errhandler h)
{
    return PMPI_Comm_set_errhandler(renamed(c), h);
}

int MPI_Comm_rank(MPI_Comm c, int *rank)
{
    asked = true;
    return PMPI_Comm_rank(renamed(c), rank);
}

int MPI_Comm_size(MPI_Comm c, int *size)
{
    return PMPI_Comm_size(renamed(c), size);
}

int MPI_Comm_group(MPI_Comm c, MPI_Group *group)
{
    return PMPI_Comm_group(renamed(c), group);
}

int MPI_Comm_create_group(MPI_Comm c, MPI_Group group, int tag, MPI_Comm *out)
{
    return PMPI_Comm_create_group(renamed(c), group, tag, out);
}

int MPI_Comm_split_type(MPI_Comm c, int type, int key, MPI_Info info, MPI_Comm *out)
{
    return PMPI_Comm_split_type(renamed(c), type, key, info, out);
}

/* Before each run: a job whose calls came past these functions would compare a run with itself. */
static void must_be_renamed(const char *word)
{
    const bool before = asked;
    int given = 0, now = 0;
    PMPI_Comm_rank(MPI_COMM_WORLD, &given);
    MPI_Comm_rank(MPI_COMM_WORLD, &now);
    MUST(!word && before && now != given, "rank %d keeps its number", given);
}

int main(int argc, char **argv)
{
    return playlist_main(argc, argv, must_be_renamed);
}
