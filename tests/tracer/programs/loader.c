/* Loads the driver as ffmpeg's nv-codec-headers do: a struct of functions, found one by one, and given back at the end.
 *
 * argv[1]: "again" (three times), "moved" (it is loaded elsewhere each time), "kept" (the functions are
 * found once more while another handle keeps the driver), "fork" (a child does so). */
#include "unloaded.h"

typedef struct {
    void *library;
    int (*cuInit)(unsigned), (*cuStreamSynchronize)(void *), (*cuStreamQuery)(void *), (*cuCtxSynchronize)(void);
} Functions;

static int load(Functions **into) {
    Functions *f = calloc(1, sizeof *f);
    if (!(f->library = dlopen("libcuda.so.1", RTLD_LAZY))) return free(f), -1;
#define LOAD(name)                                                                                                    \
    if (!(*(void **)&f->name = dlsym(f->library, #name))) return dlclose(f->library), free(f), -1;
    LOAD(cuInit) LOAD(cuStreamSynchronize) LOAD(cuStreamQuery) LOAD(cuCtxSynchronize)
    return *into = f, 0;
}

static void unload(Functions **from) {
    dlclose((*from)->library);
    free(*from);
    *from = NULL;
}

static void encode(int frames) {
    Functions *f = NULL;
    need(load(&f) == 0, "the driver");
    need(f->cuInit(0) == 0, "cuInit");
    for (int i = 0; i < frames; i++)
        need(f->cuStreamSynchronize(NULL) + f->cuStreamQuery(NULL) + f->cuCtxSynchronize() == 0, "a call");
    unload(&f);
}

int main(int argc, char **argv) {
    void *kept = IS("kept") ? dlopen("libcuda.so.1", RTLD_NOW) : NULL;
    for (int round = 0; round < 3; round++) {
        void *handle = IS("moved") ? dlopen("libcuda.so.1", RTLD_NOW) : NULL;
        char *at = handle ? address_of(handle) : NULL;
        encode(4);
        if (handle) dlclose(handle), take_addresses(at);
        say("round %d\n", round);
    }
    if (IS("fork")) {
        pid_t child = fork();
        if (child == 0) encode(2), exit(5);
        say("the child ended with %d\n", child_code(child));
    }
    if (kept) dlclose(kept);
    return 0;
}
