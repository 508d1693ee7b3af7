/* Runs up against a limit before its first CUDA call.
 *
 * argv[1]: "files" (no number left for another file), "none" (RLIMIT_NOFILE 0), "memory" (RLIMIT_AS: a few hundred KiB
 * left), "locked" (all memory locked, none more allowed), "processes" (no further thread), "stack" (a small one). */
#include "cuda.h"
#include <sys/mman.h>
#include <sys/resource.h>

static void limit(int what, unsigned long most) {
    need(setrlimit((__rlimit_resource_t)what, &(struct rlimit){most, most}) == 0, "setrlimit");
}

static unsigned long mapped(void) {
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    need(file && fscanf(file, "%lu", &pages) == 1, "statm");
    return fclose(file), pages * 4096;
}

int main(int argc, char **argv) {
    int count = 0;
    cuda_open();
    if (IS("files")) {
        limit(RLIMIT_NOFILE, 64);
        while (open("/dev/null", O_RDONLY) >= 0) count++;
        say("%s after %d\n", errno == EMFILE ? "full" : strerror(errno), count);
    }
    if (IS("none")) limit(RLIMIT_NOFILE, 0);
    if (IS("memory")) limit(RLIMIT_AS, mapped() + 300000);
    if (IS("locked")) mlockall(MCL_CURRENT | MCL_FUTURE), limit(RLIMIT_MEMLOCK, 0);
    if (IS("processes")) limit(RLIMIT_NPROC, 1);
    if (IS("stack")) limit(RLIMIT_STACK, 65536);
    cuda_calls(3);
    if (IS("files")) {
        close(63);
        int own = open("own", O_RDWR | O_CREAT, 0644);
        cuda_kernel("other");
        cuda_calls(2);
        say("%d\n", own);
        for (int file = 3; file < 64; file++) close(file);
    }
    cuda_kernel("last");
    cuda_calls(2);
    return say("within the limits\n"), 5;
}
