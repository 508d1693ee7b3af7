/* Ends in one of many ways, after CUDA calls; some of what it printed is still in the C library's buffer. */
#include "cuda.h"

static void handled(void) { say("a handler\n"), cuda_waits(1); }
static void leave(void) { _exit(23); }
static void end(int number) { _exit(24); }
static void end_properly(int number) { exit(25); }
static void *exits(void *none) { return exit(21), none; }
static void *last(void *none) { return usleep(20000), cuda_calls(2), say("the last thread\n"), none; }
static void *calls(void *none) {
    for (;;) cuda_calls(1);
}

static void *lasts(void *none) {
    for (int i = 0; i < 100; i++) usleep(4000), cuda_calls(1); /* so long that the recorder's thread exists */
    return say("the last thread\n"), none;
}

int main(int argc, char **argv) {
    pthread_t thread;
    cuda_open();
    cuda_calls(3);
    atexit(handled);
    at_quick_exit(handled);
    printf("in the buffer\n");
    if (IS("returns")) return 20;
    if (IS("thread")) return pthread_create(&thread, NULL, exits, NULL), pause();
    if (IS("main")) pthread_create(&thread, NULL, last, NULL), pthread_exit(NULL);
    if (IS("lasting")) pthread_create(&thread, NULL, lasts, NULL), pthread_exit(NULL);
    if (IS("long")) return lasts(NULL), signal(SIGTERM, end_properly), raise(SIGTERM);
    if (IS("woken")) {
        sigset_t two;
        sigemptyset(&two), sigaddset(&two, SIGTERM);
        return lasts(NULL), sigprocmask(SIG_BLOCK, &two, NULL), kill(getpid(), SIGTERM), sigwait(&two, &argc), argc;
    }
    if (IS("children")) {
        for (int i = 0; i < 100; i++) {
            usleep(4000), cuda_calls(1);
            fflush(stdout);
            pid_t child = i % 10 ? 0 : fork();
            if (i % 10 == 0 && !child) _exit(usleep(1000));
            if (child && child_code(child)) return 90;
        }
        return 31;
    }
    if (IS("busy")) return pthread_create(&thread, NULL, calls, NULL), usleep(5000), 22;
    if (IS("abort")) abort();
    if (IS("aborts")) signal(SIGABRT, end), abort();
    if (IS("quick")) quick_exit(26);
    if (IS("_exit")) _exit(27);
    if (IS("_Exit")) _Exit(28);
    if (IS("large")) _exit(0x1234);
    if (IS("handler")) return atexit(leave), 29;
    if (IS("term")) raise(SIGTERM);
    if (IS("kill")) raise(SIGKILL);
    if (IS("fault")) *(volatile int *)NULL = 1;
    if (IS("caught")) signal(SIGSEGV, end), *(volatile int *)NULL = 1;
    if (IS("signal")) signal(SIGTERM, end_properly), raise(SIGTERM);
    if (IS("fork")) {
        fflush(stdout);
        pid_t child = fork();
        return child ? child_code(child) : (cuda_calls(2), exit(30), 0);
    }
    return 91;
}
