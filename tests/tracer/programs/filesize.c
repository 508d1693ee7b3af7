/* Runs with a limit of the size of files, whose signal (SIGXFSZ) ends a process.
 *
 * argv[1]: "keeps" (to it), "exceeds" (and dies), "counts" (the signals), "ignores" (them; its own writes fail).
 * argv[2]: the limit in bytes, set before the first CUDA call; none: whoever started it has set one. */
#include "cuda.h"
#include <sys/resource.h>

static volatile sig_atomic_t signals;
static void count(int number) { signals++; }

/* Write more than the limit into a file. */
static void exceed(rlim_t most) {
    int file = open("large", O_RDWR | O_CREAT, 0644);
    errno = 0;
    ssize_t written = pwrite(file, "more", 4, (off_t)most);
    say("%zd %s\n", written, strerror(errno));
    close(file);
}

int main(int argc, char **argv) {
    struct rlimit limit;
    cuda_open();
    getrlimit(RLIMIT_FSIZE, &limit);
    if (argc > 2) limit.rlim_cur = limit.rlim_max = strtoull(argv[2], NULL, 10);
    need(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
    if (IS("counts")) signal(SIGXFSZ, count);
    if (IS("ignores")) signal(SIGXFSZ, SIG_IGN);
    cuda_calls(3);
    if (!IS("keeps")) exceed(limit.rlim_cur);
    cuda_kernel("other");
    cuda_calls(3);
    if (IS("counts")) exceed(limit.rlim_cur);
    say("%d signals\n", (int)signals);
    return 6;
}
