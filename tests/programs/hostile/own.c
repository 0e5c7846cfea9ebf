/*
 * A program with functions of its own under the driver's names, linked to a library that uses the driver (ways.c as libvia):
 * the library gets the program's, as by the rules of linking it must. It counts them and prints what it saw. With -DALONE there is no such library, so that it can be linked statically.
 */
#include <stdio.h>

static int allocations;

/* The shape is the driver's, so that the library can live with it; the behaviour is not. */
int cuMemAlloc_v2(unsigned long long *at, unsigned long bytes) {
    allocations++;
    *at = bytes;
    return 0;
}

int cuMemFree_v2(unsigned long long at) {
    allocations--;
    return at == 1000 ? 0 : 1;
}

#ifndef ALONE
void via(const char *way);
#endif

int main(void) {
    unsigned long long at = 0;
    int code = cuMemAlloc_v2(&at, 7);
    printf("own: %d %d\n", code, (int)at);
#ifndef ALONE
    via("plt");
#endif
    printf("%d left\n", allocations);
    return 0;
}
