/* Says what is left of a thread's own state after its first CUDA calls, and after the next.
 *
 * argv[1]: "errno", "flags" (of the floating point unit), "traps" (they raise SIGFPE), "rounding", "signals" (masks and
 * handlers), "files" (open ones, and threads). */
#include "cuda.h"
#include <dirent.h>
#include <fenv.h>

/* Without the two signals that the C library keeps for itself (32 and 33): it handles one of them since the first thread,
 * and the driver has threads. */
static void say_signals(void) {
    char line[256], *mask;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if ((!strncmp(line, "Sig", 3) || !strncmp(line, "Shd", 3)) && strncmp(line, "SigQ", 4)) {
            mask = strchr(line, '\t') + 1;
            say("%.7s %llx\n", line, strtoull(mask, NULL, 16) & ~(3ull << 31));
        }
    fclose(file);
}

static void say_entries(const char *folder) {
    DIR *list = opendir(folder);
    for (struct dirent *each; (each = readdir(list));)
        say("%s ", each->d_name[0] == '.' ? "-" : strstr(folder, "task") ? "thread" : each->d_name);
    say("\n"), closedir(list);
}

int main(int argc, char **argv) {
    cuda_open();
    sigset_t some;
    sigemptyset(&some), sigaddset(&some, SIGUSR1), sigaddset(&some, SIGXFSZ);
    if (IS("signals")) sigprocmask(SIG_BLOCK, &some, NULL), signal(SIGPIPE, SIG_IGN);
    if (IS("rounding")) fesetround(FE_UPWARD);
    if (IS("traps")) feenableexcept(FE_ALL_EXCEPT);
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "kernel%d", i);
        if (IS("flags")) feclearexcept(FE_ALL_EXCEPT);
        errno = ENOTTY;
        cuda_kernel(name);
        cuda_calls(2);
        if (IS("errno")) say("%s\n", errno == ENOTTY ? "as before" : strerror(errno));
        if (IS("flags")) say("%x\n", fetestexcept(FE_ALL_EXCEPT));
        if (IS("rounding")) say("%d\n", fegetround() == FE_UPWARD);
        if (IS("signals")) say_signals();
        if (IS("files")) say_entries("/proc/self/fd"), say_entries("/proc/self/task");
    }
    return say("the same\n"), 0;
}
