/* A library that is linked to the driver. */
int cuInit(unsigned flags), cuStreamSynchronize(void *stream);

__attribute__((visibility("default"))) int plugin_work(int count) {
    int failed = cuInit(0);
    for (int i = 0; i < count; i++) failed += cuStreamSynchronize(0);
    return failed;
}
