/* A disk that fails twice, for a process that loads this library first. When it is armed, the next fdatasync of the log's
 * sync thread does not come back before a write has failed beside it; then it fails too. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_int armed, syncing, write_failed;

void failing_disk_arm(void) { armed = 1; }
void failing_disk_await_sync(void) {
    while (!syncing) usleep(1000);
}

int fdatasync(int fd) {
    char thread[17] = {0};
    prctl(PR_GET_NAME, thread);
    if (strcmp(thread, "icestream-sync") == 0 && atomic_exchange(&armed, 0)) {
        syncing = 1;
        while (!write_failed) usleep(1000);
        errno = EIO;
        return -1;
    }
    int (*next)(int) = dlsym(RTLD_NEXT, "fdatasync");
    return next(fd);
}

static int fails(void) {
    if (!syncing || atomic_exchange(&write_failed, 1)) return 0;
    errno = ENOSPC;
    return 1;
}

typedef ssize_t (*writev_at)(int, const struct iovec *, int, off_t);

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t position) {
    return fails() ? -1 : ((writev_at)dlsym(RTLD_NEXT, "pwritev"))(fd, parts, count, position);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t position) {
    return fails() ? -1 : ((writev_at)dlsym(RTLD_NEXT, "pwritev64"))(fd, parts, count, position);
}
