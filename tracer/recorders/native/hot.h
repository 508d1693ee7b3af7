/* What every recorded call runs and reads lies together: between two calls the program's own work evicts it from the
 * caches, and then each cache line and each page costs more than all its instructions. */
#ifndef INTERTOKEN_HOT_H
#define INTERTOKEN_HOT_H

#define HOT __attribute__((section(".text.hot.recording")))
#define HOT_DATA __attribute__((section(".data.recording")))
#define COLD __attribute__((cold, noinline))

#endif
