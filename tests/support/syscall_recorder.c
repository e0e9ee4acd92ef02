/* Records what a process really asks of its disk: preload it (LD_PRELOAD) and read the trace with syscall_recorder.py.
 *
 * Every call on a path below SYSCALL_RECORDER_ROOT leaves two entries in the file SYSCALL_RECORDER_TRACE: one before it
 * begins, with its arguments and the bytes it writes, and one after it has returned, with its result. An entry is one
 * write to a descriptor in append mode, so its place in the trace is its place in the order of the whole run, across
 * threads and forked processes. A thread makes one call at a time: begin and end are paired by thread.
 *
 * From inside the process, syscall_recorder_hold("log-") lets no fdatasync of a file with such a name begin until
 * syscall_recorder_hold(NULL), but for as many as syscall_recorder_pass() is called; syscall_recorder_syncs() says how
 * many have come to be held. This works without a trace too.
 *
 * An entry: struct entry, then path, target and data, without terminators, in the byte order of the machine. A process
 * that is killed, or ends while another thread writes an entry, leaves the front part of that entry: the kernel cuts a
 * write short for a thread that must die. Each entry begins with a mark, by which the reader finds the next whole one.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum call { WRITE = 1, SYNC, TRUNCATE, ALLOCATE, RENAME, UNLINK, CREATE };
enum phase { BEGIN = 1, END };

#define MARK 0x8f1d6be35ac2974eULL

struct entry {
    uint64_t mark;
    uint32_t phase;
    uint32_t call;
    uint64_t thread;
    uint64_t inode;
    int64_t position; /* of a write; the size that TRUNCATE or ALLOCATE asks for */
    int64_t result;
    uint32_t path_bytes;
    uint32_t target_bytes;
    uint64_t data_bytes;
};

#define CHUNKS_MAX 1024
#define ANYWHERE (-1) /* the position of a write that goes where the descriptor stands */

static char root[PATH_MAX];
static size_t root_bytes;
static int trace = -1;

__attribute__((constructor)) static void start(void) {
    const char *below = getenv("SYSCALL_RECORDER_ROOT");
    const char *path = getenv("SYSCALL_RECORDER_TRACE");
    if (below == NULL || realpath(below, root) == NULL) {
        return;
    }
    root_bytes = strlen(root);
    if (path != NULL) {
        trace = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    }
}

static int is_below_root(const char *path) {
    return root_bytes > 0 && strncmp(path, root, root_bytes) == 0 && (path[root_bytes] == '/' || path[root_bytes] == 0);
}

/* The present name of a descriptor's file; 0 when it is not one of those we record. */
static int names(int fd, char *path) {
    char link[64];
    if (root_bytes == 0) {
        return 0;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    if (size <= 0) {
        return 0;
    }
    path[size] = 0;
    return is_below_root(path);
}

/* The path of a name in an open folder; 0 when it is not one of those we record. */
static int placed(int folder, const char *name, char *path) {
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
        return is_below_root(path);
    }
    if (folder == AT_FDCWD || !names(folder, path)) {
        return 0;
    }
    size_t size = strlen(path);
    return snprintf(path + size, PATH_MAX - size, "/%s", name) < (int)(PATH_MAX - size);
}

static uint64_t inode_of(int fd) {
    struct stat found;
    return fstat(fd, &found) == 0 ? found.st_ino : 0;
}

static uint64_t inode_at(const char *path) {
    struct stat found;
    return lstat(path, &found) == 0 ? found.st_ino : 0;
}

static void append(struct entry *entry, const char *path, const char *target, const struct iovec *chunks, int count) {
    struct iovec parts[CHUNKS_MAX + 3];
    int saved = errno;
    if (trace < 0) {
        return;
    }
    entry->mark = MARK;
    entry->thread = (uint64_t)syscall(SYS_gettid);
    entry->path_bytes = path == NULL ? 0 : (uint32_t)strlen(path);
    entry->target_bytes = target == NULL ? 0 : (uint32_t)strlen(target);
    parts[0] = (struct iovec){entry, sizeof *entry};
    parts[1] = (struct iovec){(void *)path, entry->path_bytes};
    parts[2] = (struct iovec){(void *)target, entry->target_bytes};
    size_t whole = sizeof *entry + entry->path_bytes + entry->target_bytes;
    for (int number = 0; number < count; number++) {
        parts[3 + number] = chunks[number];
        entry->data_bytes += chunks[number].iov_len;
        whole += chunks[number].iov_len;
    }
    if (count > CHUNKS_MAX - 3 || syscall(SYS_writev, trace, parts, 3 + count) != (ssize_t)whole) {
        abort(); /* a trace with a hole would prove nothing */
    }
    errno = saved;
}

static void begin(enum call call, const char *path, const char *target, uint64_t inode, int64_t position,
                  const struct iovec *chunks, int count) {
    struct entry entry = {.phase = BEGIN, .call = call, .inode = inode, .position = position};
    append(&entry, path, target, chunks, count);
}

static int64_t end(enum call call, int64_t result) {
    struct entry entry = {.phase = END, .call = call, .result = result < 0 ? -(int64_t)errno : result};
    append(&entry, NULL, NULL, NULL, 0);
    return result;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* --- writes ------------------------------------------------------------------------------------------------------- */

#define RECORDED_WRITE(fd, position, chunks, count, real)                                                              \
    char path[PATH_MAX];                                                                                               \
    if (!names(fd, path)) {                                                                                            \
        return real;                                                                                                   \
    }                                                                                                                  \
    begin(WRITE, path, NULL, inode_of(fd), position, chunks, count);                                                   \
    return (ssize_t)end(WRITE, real)

ssize_t write(int fd, const void *data, size_t size) {
    struct iovec one = {(void *)data, size};
    RECORDED_WRITE(fd, ANYWHERE, &one, 1, REAL(write)(fd, data, size));
}

ssize_t writev(int fd, const struct iovec *chunks, int count) {
    RECORDED_WRITE(fd, ANYWHERE, chunks, count, REAL(writev)(fd, chunks, count));
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t position) {
    struct iovec one = {(void *)data, size};
    RECORDED_WRITE(fd, position, &one, 1, REAL(pwrite)(fd, data, size, position));
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t position) {
    struct iovec one = {(void *)data, size};
    RECORDED_WRITE(fd, position, &one, 1, REAL(pwrite64)(fd, data, size, position));
}

ssize_t pwritev(int fd, const struct iovec *chunks, int count, off_t position) {
    RECORDED_WRITE(fd, position, chunks, count, REAL(pwritev)(fd, chunks, count, position));
}

ssize_t pwritev64(int fd, const struct iovec *chunks, int count, off64_t position) {
    RECORDED_WRITE(fd, position, chunks, count, REAL(pwritev64)(fd, chunks, count, position));
}

ssize_t pwritev2(int fd, const struct iovec *chunks, int count, off_t position, int flags) {
    RECORDED_WRITE(fd, position, chunks, count, REAL(pwritev2)(fd, chunks, count, position, flags));
}

ssize_t pwritev64v2(int fd, const struct iovec *chunks, int count, off64_t position, int flags) {
    RECORDED_WRITE(fd, position, chunks, count, REAL(pwritev64v2)(fd, chunks, count, position, flags));
}

/* --- syncs and sizes ---------------------------------------------------------------------------------------------- */

#define RECORDED(call, fd, position, real)                                                                             \
    char path[PATH_MAX];                                                                                               \
    if (!names(fd, path)) {                                                                                            \
        return real;                                                                                                   \
    }                                                                                                                  \
    begin(call, path, NULL, inode_of(fd), position, NULL, 0);                                                          \
    return (int)end(call, real)

static char held_names[64];
static atomic_int holding;
static atomic_int passes;
static atomic_int syncs;

void syscall_recorder_hold(const char *names) {
    holding = 0;
    passes = 0;
    if (names != NULL) {
        snprintf(held_names, sizeof held_names, "/%s", names);
        holding = 1;
    }
}

void syscall_recorder_pass(void) { passes++; }

int syscall_recorder_syncs(void) { return syncs; }

static int may_pass(void) {
    int left = passes;
    return !holding || (left > 0 && atomic_compare_exchange_strong(&passes, &left, left - 1));
}

static int when_it_may(int (*sync)(int), int fd, const char *path) {
    struct timespec moment = {0, 100000};
    const char *name = strrchr(path, '/');
    if (holding && name != NULL && strncmp(name, held_names, strlen(held_names)) == 0) {
        syncs++;
        while (!may_pass()) {
            nanosleep(&moment, NULL);
        }
    }
    return sync(fd);
}

int fdatasync(int fd) { RECORDED(SYNC, fd, 0, when_it_may(REAL(fdatasync), fd, path)); }

int fsync(int fd) { RECORDED(SYNC, fd, 0, REAL(fsync)(fd)); }

int ftruncate(int fd, off_t size) { RECORDED(TRUNCATE, fd, size, REAL(ftruncate)(fd, size)); }

int ftruncate64(int fd, off64_t size) { RECORDED(TRUNCATE, fd, size, REAL(ftruncate64)(fd, size)); }

/* These two give the error number as their result, which the trace shows as it is. */
int posix_fallocate(int fd, off_t position, off_t size) {
    RECORDED(ALLOCATE, fd, position + size, REAL(posix_fallocate)(fd, position, size));
}

int posix_fallocate64(int fd, off64_t position, off64_t size) {
    RECORDED(ALLOCATE, fd, position + size, REAL(posix_fallocate64)(fd, position, size));
}

/* --- names -------------------------------------------------------------------------------------------------------- */

int rename(const char *old, const char *new) {
    if (!is_below_root(old)) {
        return REAL(rename)(old, new);
    }
    begin(RENAME, old, new, inode_at(old), 0, NULL, 0);
    return (int)end(RENAME, REAL(rename)(old, new));
}

int unlink(const char *path) {
    if (!is_below_root(path)) {
        return REAL(unlink)(path);
    }
    begin(UNLINK, path, NULL, inode_at(path), 0, NULL, 0);
    return (int)end(UNLINK, REAL(unlink)(path));
}

int unlinkat(int folder, const char *name, int flags) {
    char path[PATH_MAX];
    if ((flags & AT_REMOVEDIR) || !placed(folder, name, path)) {
        return REAL(unlinkat)(folder, name, flags);
    }
    begin(UNLINK, path, NULL, inode_at(path), 0, NULL, 0);
    return (int)end(UNLINK, REAL(unlinkat)(folder, name, flags));
}

/* Only an open that makes a new name is of interest. Its inode is not known before it returns: it is the result. */
#define RECORDED_OPEN(path, flags, real)                                                                               \
    if (!((flags) & O_CREAT) || !is_below_root(path) || inode_at(path) != 0) {                                         \
        return real;                                                                                                   \
    }                                                                                                                  \
    begin(CREATE, path, NULL, 0, 0, NULL, 0);                                                                          \
    int fd = real;                                                                                                     \
    end(CREATE, fd < 0 ? -1 : (int64_t)inode_of(fd));                                                                  \
    return fd

static mode_t mode_of(int flags, va_list rest) { return flags & O_CREAT ? va_arg(rest, mode_t) : 0; }

#define MODE_AFTER(last)                                                                                               \
    va_list rest;                                                                                                      \
    va_start(rest, last);                                                                                              \
    mode_t mode = mode_of(last, rest);                                                                                 \
    va_end(rest)

int open(const char *path, int flags, ...) {
    MODE_AFTER(flags);
    RECORDED_OPEN(path, flags, REAL(open)(path, flags, mode));
}

int open64(const char *path, int flags, ...) {
    MODE_AFTER(flags);
    RECORDED_OPEN(path, flags, REAL(open64)(path, flags, mode));
}

int openat(int folder, const char *name, int flags, ...) {
    char path[PATH_MAX];
    MODE_AFTER(flags);
    if (!placed(folder, name, path)) {
        return REAL(openat)(folder, name, flags, mode);
    }
    RECORDED_OPEN(path, flags, REAL(openat)(folder, name, flags, mode));
}

int openat64(int folder, const char *name, int flags, ...) {
    char path[PATH_MAX];
    MODE_AFTER(flags);
    if (!placed(folder, name, path)) {
        return REAL(openat64)(folder, name, flags, mode);
    }
    RECORDED_OPEN(path, flags, REAL(openat64)(folder, name, flags, mode));
}
