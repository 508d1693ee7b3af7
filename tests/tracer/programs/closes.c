/* Closes all files but 0, 1 and 2 between CUDA calls, and opens its own, which then have the freed numbers. */
#include "cuda.h"
#include <sys/syscall.h>

int main(void) {
    cuda_open();
    for (int i = 0; i < 20; i++) {
        char name[16];
        need(syscall(SYS_close_range, 3u, ~0u, 0u) == 0, "close_range");
        snprintf(name, sizeof name, "own%d", i);
        int own = open(name, O_RDWR | O_CREAT, 0644), other = open("/dev/null", O_RDWR);
        cuda_kernel(name);
        cuda_calls(1);
        dprintf(own, "%s has %d, /dev/null %d\n", name, own, other);
        cuda_calls(1);
    }
    return say("closed\n"), 0;
}
