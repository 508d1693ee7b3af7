/* Makes children that no handler of fork hears of, each of which makes CUDA calls.
 *
 * argv[1]: "clone" (the system call), "Fork" (_Fork of the C library), "shares" (a child with this process's memory, as
 * sanitizers make it). */
#include "cuda.h"
#include <sched.h>
#include <sys/syscall.h>

static int child(void *none) { return cuda_waits(3), 4; }

static pid_t clone_away(void) {
    pid_t made = (pid_t)syscall(SYS_clone, (long)SIGCHLD, NULL, NULL, NULL, NULL);
    if (made == 0) syscall(SYS_exit_group, child(NULL));
    return made;
}

int main(int argc, char **argv) {
    static char stack[1 << 18] __attribute__((aligned(64)));
    cuda_open();
    cuda_waits(5);
    for (int i = 0; i < 2; i++) {
        pid_t made = -1;
        if (IS("clone")) made = clone_away();
        if (IS("shares")) made = clone(child, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);
        if (IS("Fork")) {
            pid_t (*make)(void) = (pid_t(*)(void))dlsym(RTLD_DEFAULT, "_Fork"); /* since glibc 2.34 */
            made = make ? make() : clone_away();
            if (made == 0) _exit(child(NULL));
        }
        need(made > 0, "a child");
        say("a child ended with %d\n", child_code(made));
        cuda_waits(5);
    }
    return 0;
}
