/* Asks for every symbol of the driver and NVML in the ways that it is told, calls what it finds, and prints a line for
 * each: way, name, whose symbol it is, what calling it gave and how often that reached the driver, which arguments
 * arrived there whole and in their lower half, and what was said (dlerror, or code and status). What it asks for is in
 * lists.h, which the test writes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lists.h"

#define V(i) (((long)(i) << 32) | (i))
#define LENGTH(list) (sizeof(list) / sizeof *(list))
#define UNTOUCHED ((void *)1)

typedef int first_form(const char *, void **, int, unsigned long long);
typedef int second_form(const char *, void **, int, unsigned long long, int *);

static void *libraries[2];
static struct { long *arguments; unsigned *wanted, *calls; } witnesses[2];

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct name *)a)->name, ((const struct name *)b)->name);
}

/* The number of a symbol that can be called with anything, or 0. */
static unsigned number_of(const char *name) {
    struct name wanted = {name, 0};
    const struct name *found = bsearch(&wanted, names, LENGTH(names), sizeof *names, by_name);
    return found ? found->number : 0;
}

static int library_of(const char *symbol) { return strncmp(symbol, "nvml", 4) == 0; }

/* Whose symbol a pointer is, by the dynamic linker's own tables; dladdr is nobody's hook. */
static const char *owner(void *at, const char **symbol) {
    static char text[300];
    Dl_info info;
    *symbol = NULL;
    if (!at) return "-";
    if (at == UNTOUCHED) return "untouched";
    if (!dladdr(at, &info)) return "nobody";
    const char *file = strrchr(info.dli_fname, '/');
    int exact = info.dli_sname && info.dli_saddr == at;
    if (exact) *symbol = info.dli_sname;
    snprintf(text, sizeof text, "%s:%s", file ? file + 1 : info.dli_fname, exact ? info.dli_sname : "?");
    return text;
}

/* One answer. What is called is `at`, or where that is NULL the linked function of that row. */
static void tell(const char *way, const char *name, const char *whose, entry *at, int row, const char *symbol,
                 const char *said) {
    printf("%s\t%s\t%s\t", way, name, whose);
    unsigned whole = 0, low = 0, wanted = symbol ? number_of(symbol) : 0;
    if (wanted) {
        int library = library_of(symbol);
        long *got = witnesses[library].arguments;
        memset(got, 0, ARGUMENTS * sizeof *got);
        *witnesses[library].wanted = wanted;
        *witnesses[library].calls = 0;
#ifdef LINKED
        extern unsigned call_linked(int);
        unsigned number = at ? at(VALUES) : call_linked(row);
#else
        unsigned number = at(VALUES);
#endif
        for (int i = 0; i < ARGUMENTS; i++) {
            whole |= (unsigned)(got[i] == V(i + 1)) << i;
            low |= (unsigned)((unsigned)got[i] == (unsigned)V(i + 1)) << i;
        }
        printf("%u x %u\t%x\t%x\t%s\n", number, *witnesses[library].calls, whole, low, said);
    } else {
        printf("-\t0\t0\t%s\n", said);
    }
}

static void look(const char *way, void *where, const char *version) {
    for (size_t i = 0; i < LENGTH(names); i++) {
        const char *name = names[i].name, *symbol;
        dlerror();
        void *at = version ? dlvsym(where, name, version) : dlsym(where, name);
        const char *error = dlerror();
        /* Before that stands the name of the file that asked. For what it would have found itself, the shim asks. */
        const char *what = error ? strstr(error, "undefined symbol: ") : "-";
        char *said = strdup(what ? what : error);
        const char *whose = owner(at, &symbol);
        tell(way, name, whose, (entry *)at, 0, symbol, said);
        free(said);
    }
}

static void ask(const char *way, first_form *first, second_form *second) {
    if (!first && !second) return; /* not in this release */
    for (size_t i = 0; i < LENGTH(questions); i++) {
        for (unsigned flags = 0; flags <= 2; flags++) {
            void *at = UNTOUCHED;
            int status = -1, code;
            const char *name = questions[i].name, *symbol;
            if (second) code = second(name, &at, questions[i].version, flags, &status);
            else code = first(name, &at, questions[i].version, flags);
            char question[200], said[40];
            snprintf(question, sizeof question, "%s@%d/%u", name, questions[i].version, flags);
            snprintf(said, sizeof said, "%d %d", code, status);
            const char *whose = owner(at, &symbol);
            tell(way, question, whose, (entry *)at, 0, symbol, said);
        }
    }
}

/* What nobody should ask, and what cudart does. */
static void ask_badly(first_form *first, second_form *second) {
    static const struct { const char *name; int version; unsigned long long flags; } bad[] = {
        {"", 0, 0}, {"", 12000, 0}, {NULL, 12000, 0}, {"cuNothing", 11040, 0}, {"cuMemAlloc_v2", 11040, 0},
        {"cuMemAlloc", -1, 0}, {"cuMemAlloc", 0, 0}, {"cuMemAlloc", 1 << 30, 0}, {"cuMemAlloc", 11040, 3},
        {"cuMemAlloc", 11040, 4}, {"cuLaunchKernel", 11040, 1ull << 32 | 2}, {"cuLaunchKernel", 11040, 2},
        {"nvmlInit", 11040, 0}, {"dlsym", 11040, 0}, {"cuGetProcAddress", 11040, 0}, {"cuGetProcAddress", -1, 0},
    };
    for (size_t i = 0; i < LENGTH(bad); i++) {
        for (int how = 0; how < 5; how++) {
            void *at = UNTOUCHED;
            int status = -1, code;
            const char *symbol;
            if (how < 2 ? !first : !second) continue;
            switch (how) {
            case 0: code = first(bad[i].name, &at, bad[i].version, bad[i].flags); break;
            case 1: code = first(bad[i].name, NULL, bad[i].version, bad[i].flags); break;
            case 2: code = second(bad[i].name, &at, bad[i].version, bad[i].flags, &status); break;
            case 3: code = second(bad[i].name, &at, bad[i].version, bad[i].flags, NULL); break;
            case 4: code = second(bad[i].name, NULL, bad[i].version, bad[i].flags, &status); break;
            }
            char question[200], said[40];
            snprintf(question, sizeof question, "%zu %s %d", i, bad[i].name ? bad[i].name : "NULL", how);
            snprintf(said, sizeof said, "%d %d", code, status);
            const char *whose = owner(at, &symbol);
            tell("edge", question, whose, (entry *)at, 0, symbol, said);
        }
    }
}

#ifdef LINKED
extern int cuGetProcAddress(const char *, void **, int, unsigned long long);
extern int cuGetProcAddress_v2(const char *, void **, int, unsigned long long, int *);
extern void *const links[];

static void call_rows(int shim) {
    for (size_t i = 0; i < LENGTH(rows); i++) {
        char whose[200];
        /* Without the shim, and without such a symbol, the call would end the program. */
        if (!shim && !dlsym(libraries[library_of(rows[i])], rows[i])) continue;
        snprintf(whose, sizeof whose, "plt:%s", rows[i]);
        tell("plt", rows[i], whose, NULL, (int)i, rows[i], "-");
    }
}

static void follow_links(void) {
    for (size_t i = 0; i < LENGTH(rows); i++) {
        const char *symbol, *whose = owner(links[i], &symbol);
        tell("link", rows[i], whose, (entry *)links[i], 0, symbol, "-");
    }
}

static int first_linked(const char *name, void **at, int version, unsigned long long flags) {
    return cuGetProcAddress(name, at, version, flags);
}

static int second_linked(const char *name, void **at, int version, unsigned long long flags, int *status) {
    return cuGetProcAddress_v2(name, at, version, flags, status);
}
#endif

int main(int argc, char **argv) {
    int linked = strcmp(argv[1], "linked") == 0, shim = getenv("LD_PRELOAD") != NULL;
    static const char *const files[] = {"libcuda.so.1", "libnvidia-ml.so.1"};
    if (!linked) {
        look("before", RTLD_DEFAULT, NULL);
        if (dlopen(files[0], RTLD_LAZY | RTLD_NOLOAD)) return 3; /* nobody asked for it */
    }
    for (int i = 0; i < 2; i++) {
        libraries[i] = dlopen(files[i], RTLD_NOW | (strcmp(argv[1], "global") == 0 ? RTLD_GLOBAL : RTLD_LOCAL));
        if (!libraries[i]) return fprintf(stderr, "%s\n", dlerror()), 4;
        witnesses[i].arguments = dlsym(libraries[i], "routing_arguments");
        witnesses[i].wanted = dlsym(libraries[i], "routing_wanted");
        witnesses[i].calls = dlsym(libraries[i], "routing_calls");
        if (!witnesses[i].arguments || !witnesses[i].wanted || !witnesses[i].calls) return 5;
    }
    for (int i = 2; i < argc; i++) {
        const char *way = argv[i];
        first_form *first = NULL;
        second_form *second = NULL;
        if (strstr(way, " dlsym") || strcmp(way, "edge") == 0) {
            first = (first_form *)dlsym(libraries[0], "cuGetProcAddress");
            second = (second_form *)dlsym(libraries[0], "cuGetProcAddress_v2");
        }
        if (strcmp(way, "dlsym libcuda") == 0) look(way, libraries[0], NULL);
        else if (strcmp(way, "dlsym libnvidia-ml") == 0) look(way, libraries[1], NULL);
        else if (strcmp(way, "dlsym default") == 0) look(way, RTLD_DEFAULT, NULL);
        else if (strcmp(way, "dlsym next") == 0) look(way, RTLD_NEXT, NULL);
        else if (strcmp(way, "dlsym program") == 0) look(way, dlopen(NULL, RTLD_NOW), NULL);
        else if (strcmp(way, "dlvsym libcuda") == 0) look(way, libraries[0], VERSION);
        else if (strcmp(way, "dlvsym libnvidia-ml") == 0) look(way, libraries[1], VERSION);
        else if (strcmp(way, "dlvsym default") == 0) look(way, RTLD_DEFAULT, VERSION);
        else if (strcmp(way, "dlvsym libcuda, another version") == 0) look(way, libraries[0], "anything");
        else if (strcmp(way, "cuGetProcAddress dlsym") == 0) ask(way, first, NULL);
        else if (strcmp(way, "cuGetProcAddress_v2 dlsym") == 0) ask(way, NULL, second);
        else if (strcmp(way, "cuGetProcAddress_v2 itself") == 0) {
            first = (first_form *)dlsym(libraries[0], "cuGetProcAddress");
            if (first("cuGetProcAddress", (void **)&second, 12000, 0) == 0) ask(way, NULL, second);
        } else if (strcmp(way, "edge") == 0) ask_badly(first, second);
#ifdef LINKED
        else if (strcmp(way, "plt") == 0) call_rows(shim);
        else if (strcmp(way, "link") == 0) follow_links();
        else if (strcmp(way, "cuGetProcAddress plt") == 0) ask(way, first_linked, NULL);
        else if (strcmp(way, "cuGetProcAddress_v2 plt") == 0) {
            if (dlsym(libraries[0], "cuGetProcAddress_v2")) ask(way, NULL, second_linked);
            else if (shim && cuGetProcAddress_v2("cuInit", NULL, 2000, 0, NULL) != 801) return 6;
        }
#endif
        else return fprintf(stderr, "%s: no such way\n", way), 7;
    }
    return fflush(stdout) ? 8 : 0;
}
