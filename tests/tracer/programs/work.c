/* Decodes, and that is all. argv[1]: how many tokens. */
#include "cuda.h"

int main(int argc, char **argv) {
    cuda_open();
    cuda_calls(argc > 1 ? atoi(argv[1]) : 5);
    printf("decoded\n");
    fprintf(stderr, "and said so\n");
    return 0;
}
