/* The shared state: mapped, locked, and what a handle means in it. */
#include "state.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static State *mapped;
static char mapped_from[512];
static int descriptor = -1;
static unsigned sessions;
static uint64_t opened_at;
static pthread_mutex_t threads = PTHREAD_MUTEX_INITIALIZER;

State *state(void) {
    const char *path = getenv("FAKE_NVML_STATE");
    if (!path) { fprintf(stderr, "fake libnvidia-ml: FAKE_NVML_STATE is not set\n"); abort(); }
    if (mapped && !strcmp(path, mapped_from)) return mapped;
    if (mapped) { munmap(mapped, sizeof(State)); close(descriptor); sessions = 0; }
    descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (descriptor < 0 || ftruncate(descriptor, sizeof(State))) { perror(path); abort(); }
    mapped = mmap(NULL, sizeof(State), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (mapped == MAP_FAILED) { perror(path); abort(); }
    snprintf(mapped_from, sizeof mapped_from, "%s", path);
    return mapped;
}

/* A record lock belongs to a process and ends with it, however that ends; a mutex parts the threads of one. */
static void record_lock(short type) {
    struct flock whole = {.l_type = type, .l_whence = SEEK_SET};
    while (fcntl(descriptor, F_SETLKW, &whole)) continue;
}
int lock(void) { pthread_mutex_lock(&threads); state(); record_lock(F_WRLCK); return 1; }
void unlock(int *held) { (void)held; record_lock(F_UNLCK); pthread_mutex_unlock(&threads); }

/* The code that a call must fail with. Rules: exact function or "*", one GPU or all; left < 0 means always. */
static int ruled(const char *function, int gpu) {
    State *s = state();
    for (uint64_t i = 0; i < s->rule_count; i++) {
        Rule *r = &s->rules[i];
        if (strcmp(r->function, "*") ? strcmp(r->function, function) : gpu < 0) continue;
        if ((r->gpu != ALL_GPUS && r->gpu != gpu) || !r->left) continue;
        if (r->left > 0) r->left--;
        return r->code;
    }
    return OK;
}
int verdict(const char *function, int gpu) {
    int opening = !strncmp(function, "nvmlInit", 8);
    if (!sessions && !opening) return UNINITIALIZED;
    int code = ruled(function, gpu);
    if (code) return code;
    if (gpu >= 0 && (gpu >= (int)state()->gpu_count)) return INVALID;
    return gpu >= 0 && state()->gpus[gpu].back_since > opened_at ? LOST : OK;
}
int open_session(void) { if (!sessions++) opened_at = state()->session; return OK; }
void close_session(void) { if (sessions) sessions--; }

/* tag | gpu | instance | compute | serial, never zero. */
Handle handle(int tag, int gpu, int instance, int compute, uint32_t serial) {
    return (Handle)tag << 56 | (Handle)gpu << 48 | (Handle)instance << 40 | (Handle)compute << 32 | serial;
}
int tag_of(Handle h) { return h >> 56; }
int gpu_index(Handle h) { return (h >> 48) & 0xff; }
int instance_index(Handle h) { return (h >> 40) & 0xff; }
int compute_index(Handle h) { return (h >> 32) & 0xff; }
Gpu *gpu_of(Handle h) { return &state()->gpus[gpu_index(h)]; }
Instance *instance_of(Handle h) { return &gpu_of(h)->instances[instance_index(h)]; }
Compute *compute_of(Handle h) { return &instance_of(h)->computes[compute_index(h)]; }
int serial_fits(Handle h) {
    if (tag_of(h) == INSTANCE) return instance_of(h)->used && instance_of(h)->serial == (uint32_t)h;
    return compute_of(h)->used && compute_of(h)->serial == (uint32_t)h;
}
void forget_instances(Gpu *gpu) { memset(gpu->instances, 0, sizeof gpu->instances); }
int capable(const Gpu *gpu) { return products[gpu->product].profiles[0].name != NULL; }
const Profile *profile_with_id(const Gpu *gpu, uint32_t id) {
    const Profile *rows = products[gpu->product].profiles;
    for (int i = 0; i < ROWS && rows[i].name; i++) if (rows[i].id == id) return &rows[i];
    return NULL;
}
