/* Loads a plugin that is linked to the driver, and drops both again, three times.
 *
 * argv[1]: "drops", "moved" (the driver is loaded elsewhere each time), "deep" (RTLD_DEEPBIND), or "apart" (loaded into
 * a namespace of its own). */
#include "unloaded.h"

int main(int argc, char **argv) {
    for (int round = 0; round < 3; round++) {
        void *plugin = IS("apart") ? dlmopen(LM_ID_NEWLM, "libplugin.so", RTLD_NOW)
                                   : dlopen("libplugin.so", RTLD_NOW | (IS("deep") ? RTLD_DEEPBIND : 0));
        int (*work)(int) = plugin ? (int (*)(int))dlsym(plugin, "plugin_work") : NULL;
        need(work != NULL, "libplugin.so");
        void *driver = IS("moved") ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) : NULL;
        char *at = driver ? address_of(driver) : NULL;
        say("round %d: %d\n", round, work(4));
        need(dlclose(plugin) == 0, "dlclose");
        if (driver) dlclose(driver), take_addresses(at);
    }
    return 0;
}
