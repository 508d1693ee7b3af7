/* What programs do while one of their threads is inside dlopen, in a constructor that does not return.
 *
 * argv[1]: "watchdog", "Watchdog" and "aborts" (a signal's handler ends the process by _exit, _Exit or abort), "exits"
 * (a vfork child that ends), "execs" (one that becomes another program), "failed" (one that cannot), "spawns", "forks"
 * (a child that makes CUDA calls), "calls" (the first CUDA calls), "more" (further ones), "child" (what is spawned),
 * and "initializer" (the constructor itself waits for a thread that makes the first CUDA calls). */
#include "cuda.h"
#include <semaphore.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/time.h>

static sem_t inside;
static int is_initializer;
static void *call(void *none) { return cuda_calls(3), none; }

/* Called by the constructor of libslow.so. */
__attribute__((visibility("default"))) void loading(void) {
    pthread_t thread;
    if (is_initializer) {
        need(pthread_create(&thread, NULL, call, NULL) == 0, "pthread_create");
        pthread_join(thread, NULL);
        return;
    }
    sem_post(&inside);
    for (;;) pause();
}

static void *load(void *none) { return dlopen("libslow.so", RTLD_NOW), none; }
static void bark(int number) { _exit(7); }
static void Bark(int number) { _Exit(8); }
static void die(int number) { abort(); }

int main(int argc, char **argv) {
    extern char **environ;
    pthread_t thread;
    pid_t child = 0;
    int code = 0;
    sem_init(&inside, 0, 0);
    if (IS("child")) return cuda_open(), cuda_calls(1), 5;
    cuda_open();
    if (IS("initializer")) return is_initializer = 1, load(NULL), say("initialized\n"), 3;
    if (!IS("calls")) cuda_calls(2);
    sigset_t alarms;
    sigemptyset(&alarms), sigaddset(&alarms, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarms, NULL);
    need(pthread_create(&thread, NULL, load, NULL) == 0, "pthread_create");
    pthread_sigmask(SIG_UNBLOCK, &alarms, NULL);
    while (sem_wait(&inside)) continue;
    if (IS("watchdog") || IS("Watchdog") || IS("aborts")) {
        signal(SIGALRM, IS("watchdog") ? bark : IS("aborts") ? die : Bark);
        setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {.tv_usec = 20000}}, NULL);
        for (;;) pause();
    }
    if (IS("exits")) {
        if ((child = vfork()) == 0) _exit(6);
    } else if (IS("execs")) {
        if ((child = vfork()) == 0) execl("/bin/sh", "sh", "-c", "exit 6", NULL), _exit(90);
    } else if (IS("failed")) {
        if ((child = vfork()) == 0) execl("/nowhere", "nowhere", NULL), _exit(127);
    } else if (IS("spawns")) {
        char *arguments[] = {argv[0], "child", NULL};
        need(posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ) == 0, "spawn");
    } else if (IS("forks")) {
        if ((child = fork()) == 0) cuda_calls(2), _exit(6);
    } else {
        cuda_calls(3);
    }
    if (child) code = child_code(child);
    say("the child ended with %d\n", code);
    syscall(SYS_exit_group, 11); /* exit would wait for the loader, and _exit is what "watchdog" tries */
}
