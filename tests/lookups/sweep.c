/*
 * Asks the driver all questions of a list, in every way in which a program can look up a function by its name.
 *
 * usage: sweep DEPENDENT <QUESTIONS     DEPENDENT is dependent.c, linked to libcuda.so.1 and libnvidia-ml.so.1
 *
 *   dlsym PLACE NAME             PLACE: a library; "dependent"; or "default" or "next", which are asked before the
 *                                driver is loaded, with it loaded locally, by DEPENDENT, and with it loaded globally
 *   dlvsym PLACE NAME VERSION
 *   get NAME VERSION FLAGS       by cuGetProcAddress and cuGetProcAddress_v2; NAME "(empty)" is that
 *
 * A line for each answer: the question, and what recorder.c says of such a look-up. Beyond what that records, it is
 * noted whether dlerror has something to say, which some programs go by, and the pointers to be answered through are set
 * to something before, to see whether it stays. Null names and pointers are not tried: NVIDIA's driver does not look.
 */
#define _GNU_SOURCE
#include "answer.h"
#include <stdint.h>
#include <stdlib.h>

#define ERROR_SET (dlerror() ? "error" : "fine")

typedef int (*get_v1)(const char *, void **, int, uint64_t);
typedef int (*get_v2)(const char *, void **, int, uint64_t, int *);

struct question {
    char how[8], place[64], name[128], version[32];
    int number;
    unsigned flags;
};

static struct question *questions;
static size_t count;

static void read_questions(void) {
    char line[512];
    size_t room = 0;
    while (fgets(line, sizeof line, stdin)) {
        if (count == room) questions = realloc(questions, (room = room ? 2 * room : 4096) * sizeof *questions);
        struct question *q = &questions[count++];
        *q = (struct question){0};
        int fine = !strncmp(line, "dlsym\t", 6) ? sscanf(line, "%7s %63s %127s", q->how, q->place, q->name) == 3
                   : !strncmp(line, "dlvsym\t", 7)
                       ? sscanf(line, "%7s %63s %127s %31s", q->how, q->place, q->name, q->version) == 4
                       : sscanf(line, "%7s %127s %d %u", q->how, q->name, &q->number, &q->flags) == 4;
        if (!fine) {
            fprintf(stderr, "not a question: %s", line);
            exit(2);
        }
    }
}

static void by_symbol(const struct question *q, const char *when, void *handle) {
    char text[512];
    dlerror();
    void *found = q->version[0] ? dlvsym(handle, q->name, q->version) : dlsym(handle, q->name);
    printf("%s\t%s%s\t%s%s%s\t%s", q->how, q->place, when, q->name, q->version[0] ? "\t" : "", q->version, ERROR_SET);
    printf("\t%s\n", answer(found, text, sizeof text));
}

static void all_by_symbol(const char *place, const char *when, void *handle) {
    for (size_t i = 0; i < count; i++)
        if (!strcmp(questions[i].place, place)) by_symbol(&questions[i], when, handle);
}

static void whole_program(const char *when) {
    all_by_symbol("default", when, RTLD_DEFAULT);
    all_by_symbol("next", when, RTLD_NEXT);
}

/* The same from another place, whose scope is another. */
static void from_dependent(void *dependent, const char *place, const char *function) {
    char text[512];
    void *(*ask)(const char *) = (void *(*)(const char *))dlsym(dependent, function);
    for (size_t i = 0; i < count; i++) {
        const struct question *q = &questions[i];
        if (strcmp(q->place, place)) continue;
        dlerror();
        void *found = ask(q->name);
        printf("%s\t%s-dependent\t%s\t%s", q->how, place, q->name, ERROR_SET);
        printf("\t%s\n", answer(found, text, sizeof text));
    }
}

static void *load(const char *name, int mode) {
    void *handle = dlopen(name, RTLD_NOW | mode);
    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    return handle;
}

static void by_version(const struct question *q, get_v1 v1, get_v2 v2) {
    char text[512];
    const char *name = !strcmp(q->name, "(empty)") ? "" : q->name;
    if (v1) {
        void *found = UNTOUCHED;
        dlerror();
        int result = v1(name, &found, q->number, q->flags);
        printf("get1\t%s\t%d\t%u\t%d\t-\t%s", q->name, q->number, q->flags, result, ERROR_SET);
        printf("\t%s\n", answer(found, text, sizeof text));
    }
    for (int with_status = 0; v2 && with_status < 2; with_status++) {
        void *found = UNTOUCHED;
        int status = -77;
        dlerror();
        int result = v2(name, &found, q->number, q->flags, with_status ? &status : NULL);
        printf("get2\t%s\t%d\t%u\t%d\t%d\t%s", q->name, q->number, q->flags, result, status, ERROR_SET);
        printf("\t%s\n", answer(found, text, sizeof text));
    }
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: sweep DEPENDENT <QUESTIONS\n");
        return 2;
    }
    read_questions();
    static char buffer[1 << 16];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    whole_program("-before");
    static const char *libraries[] = {"libcuda.so.1", "libnvidia-ml.so.1"};
    void *driver = NULL;
    for (int i = 0; i < 2; i++) {
        void *handle = load(libraries[i], RTLD_LOCAL);
        if (!i) driver = handle;
        all_by_symbol(libraries[i], "", handle);
    }
    whole_program("-local");
    void *dependent = load(argv[1], RTLD_LOCAL);
    all_by_symbol("dependent", "", dependent);
    from_dependent(dependent, "default", "dependent_asks_default");
    from_dependent(dependent, "next", "dependent_asks_next");

    get_v1 v1 = (get_v1)dlsym(driver, "cuGetProcAddress");
    get_v2 v2 = (get_v2)dlsym(driver, "cuGetProcAddress_v2");
    for (size_t i = 0; i < count; i++)
        if (!strcmp(questions[i].how, "get")) by_version(&questions[i], v1, v2);

    load(libraries[0], RTLD_GLOBAL);
    load(libraries[1], RTLD_GLOBAL);
    whole_program("-global");
    return 0;
}
