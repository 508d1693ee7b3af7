/* Forks while its threads make CUDA calls; each child makes some of its own.
 *
 * argv[1]: "calls" (all threads have made calls before) or "first" (the threads make their first at that moment). */
#include "cuda.h"

enum { CHILDREN = 30, THREADS = 3 };
static _Atomic int is_over;

static void *work(void *none) {
    while (!is_over) cuda_waits(1);
    return none;
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS];
    int sum = 0;
    cuda_open();
    if (IS("calls")) cuda_calls(2);
    for (int i = 0; i < THREADS; i++) need(pthread_create(&threads[i], NULL, work, NULL) == 0, "pthread_create");
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = fork();
        if (child == 0) cuda_waits(2), _exit(2);
        sum += child_code(child);
    }
    is_over = 1;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    return say("%d\n", sum), 0;
}
