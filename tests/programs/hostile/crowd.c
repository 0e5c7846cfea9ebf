/* Runs a program many times, some at a time; fails if any fails. usage: crowd PROGRAM COUNT AT-ONCE */
#include "hostile.h"

int main(int argc, char **argv) {
    MUST(argc == 4);
    int left = atoi(argv[2]), room = atoi(argv[3]), running = 0, wrong = 0, status;
    int nothing = open("/dev/null", O_WRONLY | O_CLOEXEC);
    while (left || running) {
        if (left && room) {
            pid_t pid = fork();
            if (!pid) {
                dup2(nothing, 1);
                execl(argv[1], argv[1], NULL);
                _exit(98);
            }
            left--, room--, running++;
            continue;
        }
        MUST(wait(&status) > 0);
        if (status) fprintf(stderr, "one ended with %x\n", status);
        wrong += status != 0;
        room++, running--;
    }
    return wrong ? 1 : 0;
}
