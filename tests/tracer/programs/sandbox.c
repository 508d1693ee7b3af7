/* Forbids itself what it no longer needs, as browsers and media servers do once they run.
 *
 * argv[1]: "kills" (whoever opens or makes a file), "refuses" (such calls fail with EPERM), "strict" (all but a few
 * calls kill); argv[2]: "before" (the first CUDA call) or "after" some, then new kernels are launched. */
#include "cuda.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static const int files[] = {
#ifdef SYS_open
    SYS_open, SYS_creat, SYS_unlink, SYS_stat, SYS_lstat, SYS_readlink, SYS_mkdir, SYS_rename,
#endif
    SYS_openat, SYS_openat2, SYS_fallocate, SYS_ftruncate, SYS_statfs, SYS_fstatfs, SYS_getdents64, SYS_unlinkat,
    SYS_newfstatat, SYS_readlinkat, SYS_fchmodat, SYS_memfd_create, SYS_socket, SYS_execve, SYS_ptrace,
};
static const int few[] = {
    SYS_read, SYS_write, SYS_close, SYS_futex, SYS_brk, SYS_mmap, SYS_munmap, SYS_mprotect, SYS_madvise, SYS_exit,
    SYS_exit_group, SYS_rt_sigreturn, SYS_rt_sigprocmask, SYS_clock_gettime, SYS_clock_nanosleep, SYS_nanosleep,
    SYS_gettid, SYS_getpid, SYS_prctl, SYS_ioctl,
};

static void forbid(const int *calls, int count, unsigned of_these, unsigned of_others) {
    struct sock_filter filter[64];
    int length = 0;
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < count; i++) {
        filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[i], 0, 1);
        filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, of_these);
    }
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, of_others);
    struct sock_fprog all = {(unsigned short)length, filter};
    need(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
    need(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all) == 0, "seccomp");
}

int main(int argc, char **argv) {
    enum { COUNT = sizeof files / sizeof *files, FEW = sizeof few / sizeof *few };
    cuda_open();
    if (argc > 2 && strcmp(argv[2], "after") == 0) cuda_calls(2);
    if (IS("kills")) forbid(files, COUNT, SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ALLOW);
    if (IS("refuses")) forbid(files, COUNT, SECCOMP_RET_ERRNO | EPERM, SECCOMP_RET_ALLOW);
    if (IS("strict")) forbid(few, FEW, SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS);
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "kernel%d", i);
        cuda_kernel(name);
        cuda_calls(2);
    }
    say("in the sandbox\n");
    _exit(9);
}
