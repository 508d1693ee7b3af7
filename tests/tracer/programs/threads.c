/* A thousand short threads: each makes a CUDA call, and another as it ends, when its own variables are destroyed. */
#include "cuda.h"

static pthread_key_t key;
static _Atomic int destroyed;

static void destroy(void *times) {
    cuda_waits(1);
    destroyed++;
    if (times == (void *)2) pthread_setspecific(key, (void *)1); /* so it is called once more */
}

static void *work(void *number) {
    pthread_setspecific(key, (void *)((long)number % 2 + 1));
    cuda_waits(1);
    return NULL;
}

int main(void) {
    cuda_open();
    pthread_key_create(&key, destroy);
    for (long i = 0; i < 1000; i += 8) {
        pthread_t threads[8];
        for (int j = 0; j < 8; j++) need(pthread_create(&threads[j], NULL, work, (void *)(i + j)) == 0, "a thread");
        for (int j = 0; j < 8; j++) pthread_join(threads[j], NULL);
    }
    return say("%d destroyed\n", destroyed), 0;
}
