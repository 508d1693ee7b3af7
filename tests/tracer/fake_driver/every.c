/* Makes every recorded call once, but those that need a kernel, a graph or a stream (decode.c and scenes.c have them).
 *
 * argv[1]: how it gets them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "../../../tracer/recorders/native/calls.h"

typedef long (*Any)(long, long, long, long, long, long, long, long, long, long, long, long);
typedef Result (*Get)(const char *, void **, int, uint64_t, int *);

enum { PLAIN, BESIDE, WAIT, ASK, ASK_EVENT, END, END_WAIT, END_ALL, END_OTHER, FORGET, LAUNCH, OWN };
static const struct {
    const char *name, *symbol;
    int since, own, how;
} table[] = {
#define CALL(id, symbol, since, own, params, args, stream, object, bytes, kind, how) {#id, symbol, since, own, how},
    CALLS
#undef CALL
};

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "dlsym";
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return 2;
    Get first = (Get)dlsym(driver, "cuGetProcAddress"), asked = first;
    Get second = (Get)dlsym(driver, "cuGetProcAddress_v2");
    Get own = (Get)dlsym(driver, "cuGetProcAddress_v2_ptsz");
    void *again = NULL;
    if (first("cuGetProcAddress", &again, 12000, 0, NULL) == SUCCESS && strcmp(how, "again") == 0) asked = (Get)again;
    if (strcmp(how, "proc2") == 0) asked = second;
    for (int i = 0; i < CALL_COUNT; i++) {
        void *found = NULL;
        int status, version = strcmp(how, "later") == 0 ? 99000 : table[i].since;
        if (table[i].how > END_OTHER) continue;
        if (strcmp(how, "dlsym") == 0) found = dlsym(driver, table[i].name);
        else if (strcmp(how, "own") == 0 && table[i].own) own(table[i].symbol, &found, table[i].since, 0, &status);
        else asked(table[i].symbol, &found, version, table[i].own ? PER_THREAD_DEFAULT_STREAM : 0, &status);
        if (!found) return printf("no %s\n", table[i].name), 3;
        ((Any)found)(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
        puts(table[i].name);
    }
    return 0;
}
