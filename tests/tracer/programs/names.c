/* Has a name that nobody expects: that of its file, of argv[0], or its title ("title NAME", by prctl; "argv NAME", by
 * writing over its arguments). */
#include "cuda.h"
#include <sys/prctl.h>

int main(int argc, char **argv) {
    cuda_open();
    if (argc > 2 && strcmp(argv[1], "title") == 0) prctl(PR_SET_NAME, argv[2]);
    if (argc > 2 && strcmp(argv[1], "argv") == 0) {
        char name[256];
        snprintf(name, sizeof name, "%s", argv[2]);
        char *end = argv[argc - 1] + strlen(argv[argc - 1]);
        memset(argv[0], 'x', (size_t)(end - argv[0]));
        memcpy(argv[0], name, strnlen(name, (size_t)(end - argv[0])));
    }
    cuda_calls(2);
    return 8;
}
