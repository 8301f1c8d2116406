/* The peer of `make bench`: an all-reduce of Open MPI, timed exactly as ours is (see src/bin/bench.rs):
 * batches of back-to-back in-place f32 sums after a barrier; a batch's time is the slowest rank's.
 * usage: openmpi BYTES MILLISECONDS_PER_BATCH FOLDER
 * Writes each rank's pid to FOLDER/theirs-RANK once it is ready, then prints a line per batch until it is killed: the moment of
 * its end on the monotonic clock in nanoseconds, and microseconds per operation. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static float *data;
static int elements;

static double batch(long times) {
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime();
    for (long i = 0; i < times; i++)
        MPI_Allreduce(MPI_IN_PLACE, data, elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    double took = MPI_Wtime() - began, slowest;
    MPI_Allreduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    if (argc != 4) MPI_Abort(MPI_COMM_WORLD, 2);
    size_t bytes = strtoull(argv[1], NULL, 10);
    double seconds = atof(argv[2]) / 1e3;
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    elements = (int)(bytes / sizeof *data);
    if (posix_memalign((void **)&data, 2 << 20, bytes + 64)) MPI_Abort(MPI_COMM_WORLD, 1);
    memset(data, 0, bytes);
    long times = 1;
    while (batch(times) < seconds / 4) times *= 2;
    double one = batch(times) / times;
    times = (long)(seconds / one);
    if (times < 1) times = 1;
    MPI_Bcast(&times, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    char path[4096];
    snprintf(path, sizeof path, "%s/theirs-%d", argv[3], rank);
    FILE *ready = fopen(path, "w");
    if (!ready) MPI_Abort(MPI_COMM_WORLD, 1);
    fprintf(ready, "%d\n", (int)getpid());
    fclose(ready);
    for (;;) {
        double took = batch(times);
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (rank == 0) {
            printf("%lld %.4f\n", now.tv_sec * 1000000000LL + now.tv_nsec, took / times * 1e6);
            fflush(stdout);
        }
    }
}
