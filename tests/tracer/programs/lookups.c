/* Says what the dynamic linker answers, to questions with and without an answer, and what it says went wrong. */
#include "cuda.h"
#include <link.h>

/* Without the file that is named before: it is the recorder's where the recorder looked. */
static const char *error(void) {
    const char *why = dlerror(), *what = why ? strstr(why, "undefined symbol") : NULL;
    return what ? what : why ? why : "";
}

static const char *base(const char *path) { return path && strrchr(path, '/') ? strrchr(path, '/') + 1 : path; }

static void ask(const char *what, void *handle, const char *name) {
    Dl_info found;
    void *at = dlsym(handle, name);
    const char *why = error();
    say("%s %s: %s %s\n", what, name, at ? (dladdr(at, &found) ? base(found.dli_fname) : "?") : "none", why);
}

int main(void) {
    ask("next", RTLD_NEXT, "malloc");
    ask("default", RTLD_DEFAULT, "getenv");
    ask("default", RTLD_DEFAULT, "cuStreamSynchronize");
    ask("next", RTLD_NEXT, "cuLaunchKernel");
    ask("default", RTLD_DEFAULT, "cuGetProcAddress");
    void *self = dlopen(NULL, RTLD_NOW), *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    need(driver != NULL, "libcuda.so.1");
    ask("self", self, "cuInit");
    ask("self", self, "cuStreamSynchronize");
    ask("default", RTLD_DEFAULT, "cuStreamSynchronize");
    ask("driver", driver, "cuNoSuchCall");
    ask("driver", driver, "device_nothing");
    ask("driver", driver, "");
    void *versioned = dlvsym(RTLD_DEFAULT, "cuStreamSynchronize", "NONE_1.0");
    const char *why = dlerror();
    say("a version: %s %s\n", versioned ? "found" : "none", why ? why : "");
    dlsym(driver, "one that is missing");
    cuda_find(driver); /* each success leaves the error */
    say("still: %s\n", dlerror());
    dlsym(driver, "another");
    cuda_calls(2);
    say("still: %s\n", (why = dlerror()) ? why : "nothing");
    return dlopen("libnowhere.so", RTLD_NOW) || !(why = dlerror()) || (say("%s\n", why), dlclose(driver));
}
