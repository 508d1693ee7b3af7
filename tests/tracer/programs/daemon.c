/* Becomes a daemon: two forks, a session of its own, no open files; what it has to say is in the file `log`.
 *
 * argv[1]: "first" (before it loads the driver) or "later" (after CUDA calls). */
#include "cuda.h"
#include <sys/stat.h>

static void fork_away(void) {
    pid_t child = fork();
    need(child >= 0, "fork");
    if (child) _exit(0);
}

int main(int argc, char **argv) {
    if (IS("later")) cuda_open(), cuda_calls(2);
    fork_away();
    need(setsid() > 0, "setsid");
    fork_away();
    umask(027);
    for (int file = 0; file < 1024; file++) close(file);
    int in = open("/dev/null", O_RDONLY), out = open("/dev/null", O_WRONLY), error = dup(out);
    if (IS("first")) cuda_open();
    cuda_calls(3);
    int log = open("log", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dprintf(log, "files %d %d %d %d\n", in, out, error, log);
    cuda_calls(3);
    dprintf(log, "the daemon ends\n");
    return 4;
}
