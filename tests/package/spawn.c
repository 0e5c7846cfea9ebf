/* usage: spawn ROUNDS LIBRARY
   What preloading a library adds to the life of a program that does nothing: /bin/true without and with it, by turns.
   Prints what the quicker quarter of either took at most, and the difference, in microseconds: what else the machine does
   only ever adds. */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

static double run(char *setting) {
    char *arguments[] = {"/bin/true", NULL}, *environment[] = {setting, NULL};
    struct timespec start, end;
    pid_t child;
    int status;
    clock_gettime(CLOCK_MONOTONIC, &start);
    if (posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environment) || waitpid(child, &status, 0) != child ||
        status) {
        fprintf(stderr, "/bin/true did not run with %s\n", setting);
        exit(1);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (end.tv_sec - start.tv_sec) * 1e6 + (end.tv_nsec - start.tv_nsec) / 1e3;
}

static int by_size(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return difference < 0 ? -1 : difference > 0;
}

int main(int count, char **arguments) {
    int rounds = count == 3 ? atoi(arguments[1]) : 0;
    double *without = calloc(rounds + 1, sizeof *without), *with = calloc(rounds + 1, sizeof *with);
    char preload[4096];
    if (rounds < 1 || !without || !with) return 2;
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", arguments[2]);
    for (int i = 0; i < rounds; i++) {
        without[i] = run("NOTHING=");
        with[i] = run(preload);
    }
    qsort(without, rounds, sizeof *without, by_size);
    qsort(with, rounds, sizeof *with, by_size);
    printf("%.0f %.0f %.0f\n", without[rounds / 4], with[rounds / 4], with[rounds / 4] - without[rounds / 4]);
    return 0;
}
