/* A decode loop whose calls come from three functions, of which two are static and so in no dynamic symbol table. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef int Result;
typedef void *Stream;
#define APART __attribute__((noinline, noclone))

static Result (*copy)(uint64_t, const void *, size_t, Stream);
static Result (*synchronize)(Stream);
static volatile int done;

static APART void copy_inputs(void) {
    static char inputs[16];
    done += copy(0, inputs, sizeof inputs, NULL) + 1;
}

static APART void wait_for_logits(void) { done += synchronize(NULL) + 1; }

APART void decode(int tokens) {
    for (int token = 0; token < tokens; token++) {
        copy_inputs();
        wait_for_logits();
        done += synchronize(NULL) + 1; /* a second site of the same call */
    }
}

int main(int argc, char **argv) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return puts(dlerror()), 2;
    copy = (Result(*)(uint64_t, const void *, size_t, Stream))dlsym(driver, "cuMemcpyHtoDAsync_v2");
    synchronize = (Result(*)(Stream))dlsym(driver, "cuStreamSynchronize");
    decode(argc > 1 ? atoi(argv[1]) : 3);
    return 0;
}
