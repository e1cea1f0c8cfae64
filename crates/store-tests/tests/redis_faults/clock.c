/* A server's wall clock that a test can step: seconds in the file named by TEST_CLOCK are added to it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *step;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("TEST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *page = mmap(NULL, sizeof *step, PROT_READ, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) abort();
    step = page;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && step && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *step;
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    int failed = syscall(SYS_gettimeofday, now, zone);
    if (!failed && step) now->tv_sec += *step;
    return failed;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
