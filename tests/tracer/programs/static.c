/* Is linked statically: nothing is preloaded into it. */
#include <stdio.h>

int main(void) { return puts("static"), 6; }
