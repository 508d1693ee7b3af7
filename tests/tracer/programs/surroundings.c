/* Changes what surrounds it before its first CUDA call.
 *
 * argv[1]: "clearenv", "environ" (none at all), "moved" (its variables overwritten in place), "gone" (its folder is
 * removed), "umask" (0777), "undumpable", "nobody" (gives up root), "chroot", "single" (must have one thread only to
 * get a user namespace), "reads" (its locale and time zone). */
#include "cuda.h"
#include <locale.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>

extern char **environ;

int main(int argc, char **argv) {
    cuda_open();
    if (IS("clearenv")) clearenv();
    if (IS("environ")) environ = NULL;
    if (IS("moved"))
        for (char **each = environ; *each; each++) memset(*each, 'x', strlen(*each));
    if (IS("gone") || IS("chroot")) need(mkdir("folder", 0700) == 0 && chdir("folder") == 0, "folder");
    if (IS("gone")) need(rmdir("../folder") == 0, "rmdir");
    if (IS("chroot")) need(chroot(".") == 0, "chroot");
    if (IS("umask")) umask(0777);
    if (IS("undumpable")) prctl(PR_SET_DUMPABLE, 0);
    if (IS("nobody")) need(setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0, "nobody");
    cuda_calls(3);
    if (IS("umask")) {
        struct stat found;
        int own = open("own", O_RDWR | O_CREAT, 0666);
        need(fstat(own, &found) == 0, "own");
        say("mode %o\n", found.st_mode & 0777), fchmod(own, 0600);
    }
    if (IS("gone")) say("%s\n", getcwd((char[256]){0}, 256) ? "a folder" : strerror(errno));
    if (IS("single")) say("%s\n", unshare(CLONE_NEWUSER) ? strerror(errno) : "alone");
    if (IS("reads")) {
        char text[64];
        time_t second = 1000000000;
        say("%s\n", setlocale(LC_ALL, "") ? setlocale(LC_ALL, NULL) : "no locale");
        strftime(text, sizeof text, "%c %Z", localtime(&second));
        say("%s %.1f %s\n", text, strtod("0.5", NULL), strerror(ENOENT));
    }
    cuda_kernel("other");
    cuda_calls(2);
    return say("all the same\n"), 10;
}
