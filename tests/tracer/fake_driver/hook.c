/* A library that interposes a call of the driver, as those do that share a GPU between programs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

int cuCtxSynchronize(void) {
    int (*real)(void) = (int (*)(void))dlsym(RTLD_NEXT, "cuCtxSynchronize");
    if (write(1, "hook ", 5) < 0) abort();
    return real ? real() : 801;
}
