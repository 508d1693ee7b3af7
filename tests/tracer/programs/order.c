/* Says in which order it begins and ends, with CUDA calls in constructors, destructors and exit handlers. */
#include "cuda.h"

#define SAYS(name) static void name(void) { say(#name "\n"), cuda_waits(1); }
SAYS(first_handler) SAYS(last_handler) SAYS(quick_handler)
static void on_exit_handler(int code, void *text) { say("%s %d\n", (char *)text, code), cuda_waits(1); }

static void preinit(int argc, char **argv, char **environment) { say("preinit of %d\n", argc); }
__attribute__((section(".preinit_array"), used)) static void (*preinits[])(int, char **, char **) = {preinit};
__attribute__((constructor(101))) static void early(void) { say("early\n"), cuda_open(), cuda_waits(1); }
__attribute__((constructor)) static void constructor(void) { say("constructor\n"), atexit(first_handler); }
__attribute__((destructor)) static void destructor(void) { say("destructor\n"), cuda_waits(1); }
__attribute__((destructor(101))) static void late(void) { say("late\n"), cuda_waits(1); }

int main(void) {
    atexit(last_handler);
    on_exit(on_exit_handler, "on_exit");
    at_quick_exit(quick_handler);
    cuda_calls(2);
    return 12;
}
