/* Calls what another library interposes: linked to it (LINKED), or looked up in it. */
#include <dlfcn.h>
#include <stdio.h>

#ifdef LINKED
int cuCtxSynchronize(void);
int main(void) { return printf("rc %d\n", cuCtxSynchronize()) < 0; }
#else
int main(int argc, char **argv) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    void *hook = dlopen(argv[1], RTLD_NOW);
    int (*call)(void) = (int (*)(void))dlsym(hook, "cuCtxSynchronize");
    int (*direct)(void) = (int (*)(void))dlsym(driver, "cuCtxSynchronize");
    printf("rc %d\n", call());
    printf("rc %d\n", direct());
    return 0;
}
#endif
