/* Becomes itself fifty times, with a CUDA call each time. */
#include "cuda.h"

int main(int argc, char **argv) {
    char left[16];
    int times = argc > 1 ? atoi(argv[1]) : 49;
    cuda_open();
    cuda_waits(1);
    if (!times) return say("the last\n"), 7;
    snprintf(left, sizeof left, "%d", times - 1);
    execl("/proc/self/exe", argv[0], left, NULL);
    return 90;
}
