/* Calls that end the life of memory, which only the races library wraps; as in calls.h. */
#ifndef INTERTOKEN_RACES_MEMORY_H
#define INTERTOKEN_RACES_MEMORY_H

#define MEMORY_CALLS(X)                                                                                               \
    X(cuMemFreeHost, "cuMemFreeHost", 2000, 0, P(void *p), P(p), NULL, NULL, 0, 0, OWN)                               \
    X(cuMemHostUnregister, "cuMemHostUnregister", 4000, 0, P(void *p), P(p), NULL, NULL, 0, 0, OWN)                   \
    X(cuMemFree_v2, "cuMemFree", 3020, 0, P(DevicePointer d), P(d), NULL, NULL, 0, 0, OWN)

#endif
