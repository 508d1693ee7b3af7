/* Calls the driver with arguments that it refuses: pointers that point nowhere. FAKE_FAILS says which call it refuses. */
#include "cuda.h"
#include <stdint.h>

int main(void) {
    cuda_open();
    int (*batch)(void *, void *, size_t *, size_t, void *, void *, size_t, void *);
    int (*shaped)(const void *);
    *(void **)&batch = dlsym(cuda.library, "cuMemcpyBatchAsync_v2");
    *(void **)&shaped = dlsym(cuda.library, "cuMemcpy3D_v2");
    if (!batch || !shaped) return cuda_calls(1), say("it has no such calls\n"), 700 % 256;
    int code = strcmp(getenv("FAKE_FAILS"), "cuMemcpy3D_v2") ? batch(NULL, NULL, (size_t *)8, 4, NULL, NULL, 0, NULL)
                                                              : shaped((void *)8);
    cuda_calls(1);
    return say("refused with %d\n", code), code % 256;
}
