/* How late this machine wakes a thread: one that sleeps for a millisecond at a time, until the standard input ends. Prints
 * one line, in microseconds: "late SLEEPS P50 P99 P999 MOST". A figure of a case that depends on threads being there in
 * time means little without it. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { MOST_US = 100000, SLEEP_NS = 1000000 };
static uint32_t late[MOST_US]; /* how many sleeps were so many microseconds late */
static volatile int is_over;

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void *sleeper(void *nothing) {
    while (!is_over) {
        int64_t until = now_ns() + SLEEP_NS;
        struct timespec length = {0, SLEEP_NS};
        nanosleep(&length, NULL);
        int64_t us = (now_ns() - until) / 1000;
        late[us < 0 ? 0 : us < MOST_US ? us : MOST_US - 1]++;
    }
    return nothing;
}

static int quantile(uint64_t all, double part) {
    uint64_t seen = 0;
    for (int us = 0; us < MOST_US; us++)
        if ((seen += late[us]) >= all * part && seen) return us;
    return MOST_US - 1;
}

int main(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, sleeper, NULL)) return 1;
    char byte;
    while (read(0, &byte, 1) > 0) continue;
    is_over = 1;
    pthread_join(thread, NULL);
    uint64_t all = 0;
    for (int us = 0; us < MOST_US; us++) all += late[us];
    printf("late %llu %d %d %d %d\n", (unsigned long long)all, quantile(all, 0.5), quantile(all, 0.99), quantile(all, 0.999),
           quantile(all, 1));
    return 0;
}
