/* Makes its first CUDA calls where there is little stack.
 *
 * argv[1]: "thread" (one with the smallest stack that there can be) or "coroutine" (with 16 KiB). */
#include "cuda.h"
#include <limits.h>
#include <sys/mman.h>
#include <ucontext.h>

static ucontext_t outside, inside;
static void *work(void *none) { return cuda_calls(3), none; }
static void run(void) { cuda_calls(3); }

int main(int argc, char **argv) {
    enum { SIZE = 16384 };
    cuda_open();
    if (IS("thread")) {
        pthread_t thread;
        pthread_attr_t how;
        pthread_attr_init(&how);
        need(pthread_attr_setstacksize(&how, PTHREAD_STACK_MIN) == 0, "the stack's size");
        need(pthread_create(&thread, &how, work, NULL) == 0, "pthread_create");
        pthread_join(thread, NULL);
    } else {
        char *stack = mmap(NULL, SIZE + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        mprotect(stack, 4096, PROT_NONE);
        getcontext(&inside);
        inside.uc_stack.ss_sp = stack + 4096, inside.uc_stack.ss_size = SIZE, inside.uc_link = &outside;
        makecontext(&inside, run, 0);
        swapcontext(&outside, &inside);
    }
    return say("enough\n"), 0;
}
