/* A small program that may be setuid: says whose it is. With an argument it starts that program, as a shell would. */
#include "cuda.h"
#include <sys/auxv.h>

int main(int argc, char **argv) {
    if (argc < 2) return say("secure %ld, user %d\n", getauxval(AT_SECURE), (int)geteuid()), 3;
    cuda_open();
    cuda_calls(2);
    pid_t child = fork();
    if (child == 0) execl(argv[1], argv[1], NULL), _exit(127);
    int code = child_code(child);
    cuda_calls(2);
    return code;
}
