/*
 * Uses CUDA where programs begin and end: in constructors and destructors of every priority, in exit handlers, when threads
 * end. Compiled twice: as the program, and with -DLIBRARY as libedge, which it is linked to. $EDGES says where CUDA is used,
 * as letters:
 *   c constructor of the library, C of the program (three priorities each)      d, D destructors likewise
 *   a exit handler registered before main's first use of CUDA, A after it
 *   t thread-specific data destroyed at the end of a thread, T a thread_local destroyed at the end of a thread and of main
 *   m main itself      x exit handler that another exit handler registers
 */
#include "hostile.h"

static int wanted(char letter) {
    const char *edges = getenv("EDGES");
    return edges && strchr(edges, letter);
}

static void touch(const char *where) {
    size_t bytes;
    OK(cuInit(0));
    OK(cuDeviceTotalMem_v2(&bytes, 0));
    printf("%s\n", where);
    fflush(stdout);
}

#ifdef LIBRARY
#define WHO "library"
#define MADE 'c'
#define ENDED 'd'
#else
#define WHO "program"
#define MADE 'C'
#define ENDED 'D'
#endif

__attribute__((constructor(101))) static void made_first(void) {
    if (wanted(MADE)) touch(WHO ": first constructor");
}
__attribute__((constructor(500))) static void made_second(void) {
    if (wanted(MADE)) touch(WHO ": second constructor");
}
__attribute__((constructor)) static void made_last(void) {
    if (wanted(MADE)) touch(WHO ": last constructor");
}
__attribute__((destructor)) static void ended_first(void) {
    if (wanted(ENDED)) touch(WHO ": first destructor");
}
__attribute__((destructor(500))) static void ended_second(void) {
    if (wanted(ENDED)) touch(WHO ": second destructor");
}
__attribute__((destructor(101))) static void ended_last(void) {
    if (wanted(ENDED)) touch(WHO ": last destructor");
}

#ifdef LIBRARY
void library_is_needed(void) {}
#else
void library_is_needed(void);

/* What C++ compiles a thread_local with a destructor to. */
extern int __cxa_thread_atexit_impl(void (*)(void *), void *, void *);
extern void *__dso_handle;

static pthread_key_t key;
static void at_exit_before(void) { touch("exit handler registered before"); }
static void at_exit_after(void) { touch("exit handler registered after"); }
static void at_exit_late(void) { touch("exit handler registered by an exit handler"); }
static void at_exit_nested(void) { atexit(at_exit_late); }
static void key_gone(void *round) {
    touch("thread-specific data");
    /* Destructors run again for what they leave behind, after the shim's own may have run. */
    if ((intptr_t)round > 1) pthread_setspecific(key, (void *)((intptr_t)round - 1));
}
static void local_gone(void *unused) {
    (void)unused;
    touch("thread_local");
}

static void *thread(void *unused) {
    (void)unused;
    if (wanted('T')) __cxa_thread_atexit_impl(local_gone, NULL, &__dso_handle);
    if (wanted('t')) pthread_setspecific(key, (void *)(intptr_t)3);
    return NULL;
}

int main(void) {
    library_is_needed();
    MUST(!pthread_key_create(&key, key_gone));
    if (wanted('a')) atexit(at_exit_before);
    if (wanted('m')) touch("main");
    if (wanted('A')) atexit(at_exit_after);
    if (wanted('x')) atexit(at_exit_nested);
    if (wanted('T')) __cxa_thread_atexit_impl(local_gone, NULL, &__dso_handle);
    for (int i = 0; i < 3; i++) {
        pthread_t other;
        MUST(!pthread_create(&other, NULL, thread, NULL));
        pthread_join(other, NULL);
    }
    return 7;
}
#endif
