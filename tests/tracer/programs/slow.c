/* A library that takes its time to load: its constructor does what the program says. */
void loading(void) __attribute__((weak));
__attribute__((constructor)) static void begin(void) {
    if (loading) loading();
}
