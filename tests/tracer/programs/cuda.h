/* The few CUDA calls that these programs make, of either driver without a GPU, and what most of them need beside. */
#ifndef PROGRAMS_CUDA_H
#define PROGRAMS_CUDA_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct {
    void *library, *kernel;
    int (*init)(unsigned), (*synchronize)(void *), (*get_function)(void **, void *, const char *);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                  void **);
} cuda;

/* End with a code of its own if something fails that has nothing to do with a recorder. */
__attribute__((unused)) static void need(int is_so, const char *what) {
    if (is_so) return;
    dprintf(2, "%s: %s\n", what, strerror(errno));
    _exit(99);
}

/* Write at once, and nothing else: no buffer, no question what kind of file it is. */
__attribute__((unused)) static void say(const char *format, ...) {
    char text[1024];
    va_list values;
    va_start(values, format);
    int length = vsnprintf(text, sizeof text, format, values);
    va_end(values);
    if (write(1, text, (size_t)length) != length) _exit(98);
}

__attribute__((unused)) static void cuda_find(void *library) {
    cuda.library = library;
    *(void **)&cuda.init = dlsym(library, "cuInit");
    *(void **)&cuda.synchronize = dlsym(library, "cuStreamSynchronize");
    *(void **)&cuda.launch = dlsym(library, "cuLaunchKernel");
    *(void **)&cuda.get_function = dlsym(library, "cuModuleGetFunction"); /* one of the two drivers has none */
    need(cuda.init && cuda.synchronize && cuda.launch, "the driver's functions");
}

/* Load the driver; makes no call that is recorded. */
__attribute__((unused)) static void cuda_open(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    need(library != NULL, "libcuda.so.1");
    cuda_find(library);
    need(cuda.init(0) == 0, "cuInit");
}

/* Make a number of calls: each is one cuStreamSynchronize, which the tests count. */
__attribute__((unused)) static void cuda_waits(int count) {
    for (int i = 0; i < count; i++)
        if (cuda.synchronize(NULL)) _exit(97);
}

/* Look up a kernel, whose name is recorded, too. */
__attribute__((unused)) static void cuda_kernel(const char *name) {
    void *found = (void *)name;
    if (cuda.get_function && cuda.get_function(&found, NULL, name)) _exit(96);
    cuda.kernel = found;
}

/* The same with a launch before each. */
__attribute__((unused)) static void cuda_calls(int count) {
    if (!cuda.kernel) cuda_kernel("eager");
    for (int i = 0; i < count; i++) {
        if (cuda.launch(cuda.kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL)) _exit(95);
        cuda_waits(1);
    }
}

/* How a child ended, as the exit code of who waited. */
__attribute__((unused)) static int child_code(pid_t child) {
    int status = 0;
    while (waitpid(child, &status, 0) < 0) need(errno == EINTR, "waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Whether the program's mode, its first argument, is this one. */
#define IS(mode) (argc > 1 && strcmp(argv[1], mode) == 0)

#endif
