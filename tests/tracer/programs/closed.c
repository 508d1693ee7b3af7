/* Is started without the files 0, 1 and 2, as some services are.
 *
 * argv[1]: "opens" (what it opens then gets these numbers) or "stray" (threads write to 1 and 2 all the while, which
 * fails with EBADF; returns how often it did not). */
#include "cuda.h"

static _Atomic int is_over, written;

static void *write_on(void *none) {
    while (!is_over)
        for (int file = 1; file < 3; file++) written += write(file, "stray\n", 6) > 0;
    return none;
}

int main(int argc, char **argv) {
    if (argc < 3) { /* starts itself so */
        close(0), close(1), close(2);
        execl("/proc/self/exe", argv[0], argv[1], "closed", NULL);
        return 97;
    }
    if (IS("opens")) {
        int first = open("first", O_WRONLY | O_CREAT, 0644);
        cuda_open();
        cuda_calls(2);
        int second = open("second", O_WRONLY | O_CREAT, 0644), third = open("third", O_WRONLY | O_CREAT, 0644);
        cuda_kernel("other");
        cuda_calls(2);
        printf("to 1: %d %d %d\n", first, second, third);
        fprintf(stderr, "to 2\n");
        return 0;
    }
    cuda_open();
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) need(pthread_create(&threads[i], NULL, write_on, NULL) == 0, "pthread_create");
    usleep(2000);
    for (int i = 0; i < 2000; i++) {
        char name[16];
        snprintf(name, sizeof name, "kernel%d", i);
        cuda_kernel(name);
        cuda_calls(1);
    }
    is_over = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    return written > 100 ? 100 : written;
}
