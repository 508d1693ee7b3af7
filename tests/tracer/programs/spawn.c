/* Starts children as most programs do: posix_spawn, vfork and exec, system and popen.
 *
 * argv[1]: "spawns", "vforks", "exits" (vfork children that do nothing), "system", or "child". */
#include "cuda.h"
#include <spawn.h>

extern char **environ;

static pid_t spawn(char *program) {
    pid_t child = -1;
    sigset_t none;
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    posix_spawn_file_actions_addclosefrom_np(&files, 3);
    posix_spawnattr_init(&how);
    posix_spawnattr_setsigmask(&how, (sigemptyset(&none), &none));
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
    char *arguments[] = {program, "child", NULL};
    need(posix_spawn(&child, "/proc/self/exe", &files, &how, arguments, environ) == 0, "spawn");
    return child;
}

int main(int argc, char **argv) {
    int code = 0;
    cuda_open();
    cuda_calls(1);
    if (IS("child")) return say("a child\n"), 5;
    for (int i = 0; i < 5; i++) {
        pid_t child = 0;
        if (IS("spawns")) child = spawn(argv[0]);
        else if (IS("vforks") && !(child = vfork())) execl("/proc/self/exe", argv[0], "child", NULL), _exit(127);
        else if (IS("exits") && !(child = vfork())) _exit(5);
        if (child) code += child_code(child);
        cuda_calls(1);
    }
    if (IS("system")) {
        char line[64] = "";
        code = WEXITSTATUS(system("exit 7"));
        FILE *other = popen("echo popen; exit 3", "r");
        need(other && fgets(line, sizeof line, other), "popen");
        say("%s", line);
        code += WEXITSTATUS(pclose(other));
    }
    return code;
}
