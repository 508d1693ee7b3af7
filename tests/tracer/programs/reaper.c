/* Runs a program, waits for it and for everything that it left behind, and kills all of it at a deadline.
 *
 * reaper SECONDS REPORT NAME=VALUE ... -- FILE ARGV0 ARGUMENT ...
 * The report is a line: the program's wait status (-1: something still ran at the deadline), and the time in ns. The
 * program gets the given environment alone; the reaper itself has nothing preloaded.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t is_late;
static void late(int number) { is_late = number; }

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* Kill the children; those of theirs then are this process's. */
static void kill_children(void) {
    DIR *list = opendir("/proc");
    for (struct dirent *each; list && (each = readdir(list));) {
        char path[300], text[512] = "", *end;
        int parent = 0;
        snprintf(path, sizeof path, "/proc/%s/stat", each->d_name);
        int file = each->d_name[0] >= '0' && each->d_name[0] <= '9' ? open(path, O_RDONLY) : -1;
        if (file < 0) continue;
        if (read(file, text, sizeof text - 1) > 0 && (end = strrchr(text, ')'))) sscanf(end, ") %*c %d", &parent);
        close(file);
        if (parent == getpid()) kill(atoi(each->d_name), SIGKILL);
    }
    if (list) closedir(list);
}

int main(int argc, char **argv) {
    int first = 3, status = -1, each, kept = -1;
    while (first < argc && strcmp(argv[first], "--")) first++;
    if (first + 1 >= argc) return 2;
    char *file = argv[first + 1];
    argv[first] = NULL; /* the end of the environment */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = late}, NULL);
    long long begun = now();
    pid_t program = fork();
    if (program == 0) {
        execve(file, argv + first + 2, argv + 3);
        dprintf(2, "%s: %s\n", file, strerror(errno));
        _exit(94);
    }
    alarm((unsigned)atoi(argv[1]));
    for (pid_t ended; (ended = wait(&each)) > 0 || (ended < 0 && errno == EINTR && !is_late);)
        if (ended == program) kept = each;
    status = is_late ? -1 : kept;
    long long took = now() - begun;
    while (is_late && (kill_children(), waitpid(-1, NULL, WNOHANG)) >= 0) usleep(1000);
    FILE *report = fopen(argv[2], "w");
    return !report || fprintf(report, "%d %lld\n", status, took) < 0 || fclose(report);
}
