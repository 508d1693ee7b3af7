/* Gets signals all the while.
 *
 * argv[1]: "ticks" (thousands a second, whose handler makes CUDA calls), "first" (one during the first CUDA call, at
 * each of many moments, whose handler makes one), "jumps" (one whose handler leaves the call by siglongjmp),
 * "alternate" (the handler that makes the first CUDA call has a stack of its own). */
#include "cuda.h"
#include <setjmp.h>
#include <sys/time.h>

enum { MOMENTS = 40, STEP_US = 25 };
static sigjmp_buf again;
static volatile sig_atomic_t signals, jumps;

static void call(int number) { signals++, cuda_waits(1); }
static void call_all(int number) { signals++, cuda_calls(2); }
static void jump(int number) {
    if (!jumps++) siglongjmp(again, 1);
}

static void in(int us, int every) {
    struct itimerval timer = {.it_value = {.tv_usec = us}, .it_interval = {.tv_usec = every}};
    setitimer(ITIMER_REAL, &timer, NULL);
}

/* The first calls of a child, with a signal in the midst of them. */
static int first(int moment, void (*handler)(int)) {
    pid_t child = fork();
    if (child) return child_code(child);
    alarm(0);
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = handler}, NULL);
    if (!sigsetjmp(again, 1)) in(1 + moment * STEP_US, 0);
    cuda_calls(3);
    while (!signals && !jumps) usleep(100);
    cuda_calls(1);
    _exit(5);
}

int main(int argc, char **argv) {
    cuda_open();
    if (IS("alternate")) {
        static char stack[32768] __attribute__((aligned(64)));
        sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL);
        sigaction(SIGUSR1, &(struct sigaction){.sa_handler = call_all, .sa_flags = SA_ONSTACK}, NULL);
        raise(SIGUSR1);
        return say("%d\n", (int)signals), 0;
    }
    if (IS("ticks")) {
        sigaction(SIGALRM, &(struct sigaction){.sa_handler = call, .sa_flags = SA_RESTART}, NULL);
        in(1, 200);
        while (signals < 800) cuda_calls(1);
        in(0, 0);
        return say("ticked\n"), 0;
    }
    cuda_kernel("eager"); /* which takes memory, and no signal may leave malloc by a jump */
    for (int moment = 0; moment < MOMENTS; moment++) {
        int code = first(moment, IS("jumps") ? jump : call);
        if (code != 5) return say("%d at %d us\n", code, moment * STEP_US), 1;
    }
    return say("went on\n"), 0;
}
