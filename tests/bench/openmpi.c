/* The peer of `make bench`: an all-reduce of Open MPI, timed exactly as ours is (see src/bin/bench.rs):
 * batches of back-to-back in-place f32 sums after a barrier; a batch's time is the slowest rank's.
 * usage: openmpi BYTES MILLISECONDS_PER_BATCH FOLDER | openmpi window BYTES SECONDS STRIDE
 * The first writes each rank's pid to FOLDER/theirs-RANK once it is ready, then prints a line per batch until it is killed: the moment of
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

/* Durations by their length: 16 steps for each doubling. */
static long counts[16 * 64];
static long long longest;

static long long now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void add(long long ns) {
    int log = 63 - __builtin_clzll(ns | 1);
    counts[ns < 16 ? ns : 16 * (log - 3) + (ns >> (log - 4)) - 16]++;
    if (ns > longest) longest = ns;
}

/* The duration, in microseconds, that this share of all do not exceed. */
static double quantile(double share, long operations) {
    long seen = 0, at = 0;
    for (; at < 16 * 64 - 1; at++)
        if ((seen += counts[at]) >= share * operations) break;
    return (at < 16 ? at : (16 + at % 16) << (at / 16 - 1)) / 1e3;
}

/* One window: calls back to back until rank 0 finds that the time is over. */
static void window(double seconds, long stride) {
    int rank;
    long operations = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 0; i < 2; i++)
        MPI_Allreduce(MPI_IN_PLACE, data, elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    long long began = now();
    for (float over = 0; over == 0;) {
        for (long i = 0; i < stride; i++) {
            long long before = now();
            MPI_Allreduce(MPI_IN_PLACE, data, elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            add(now() - before);
        }
        operations += stride;
        over = rank == 0 && (now() - began) / 1e9 >= seconds;
        MPI_Allreduce(MPI_IN_PLACE, &over, 1, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
    }
    double took = (now() - began) / 1e9;
    if (rank == 0)
        printf("{\"operations\":%ld,\"seconds\":%.6f,\"p50\":%.3f,\"p99\":%.3f,\"max\":%.3f}\n", operations, took,
               quantile(0.5, operations), quantile(0.99, operations), longest / 1e3);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int is_window = argc == 5 && !strcmp(argv[1], "window");
    if (is_window) argv++;
    else if (argc != 4) MPI_Abort(MPI_COMM_WORLD, 2);
    size_t bytes = strtoull(argv[1], NULL, 10);
    double seconds = atof(argv[2]) / 1e3;
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    elements = (int)(bytes / sizeof *data);
    if (posix_memalign((void **)&data, 2 << 20, bytes + 64)) MPI_Abort(MPI_COMM_WORLD, 1);
    memset(data, 0, bytes);
    if (is_window) {
        window(atof(argv[2]), atol(argv[3]));
        MPI_Finalize();
        return 0;
    }
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
