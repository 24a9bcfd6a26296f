/* A libnvidia-ml.so.1 without GPUs. Its whole state lies in the file that FAKE_NVML_STATE names, mapped by every process
 * that uses the library, so that what one process does is seen by all, as with a driver. */
#pragma once
#include <stdint.h>

enum {
    OK = 0, UNINITIALIZED = 1, INVALID = 2, UNSUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, TOO_SMALL = 7,
    DRIVER_NOT_LOADED = 9, TIMEOUT = 10, LOST = 15, RESET_REQUIRED = 16, IN_USE = 19, INSUFFICIENT = 23,
    BAD_VERSION = 25, UNKNOWN = 999,
};
enum { GPUS = 8, INSTANCES = 8, COMPUTES = 7, RULES = 32, PROCESSES = 16, EVENTS = 64, STARTS = 8, ROWS = 8 };
enum { NO_INSTANCE = 0xFFFFFFFF, ALL_GPUS = -1 };

/* What NVML's callers hold: which thing, and which making of it (ids are used again, handles must not be). */
typedef uint64_t Handle;
typedef struct { uint32_t start, size; } Placement;

typedef struct {
    uint32_t number, id, slices, count, sms;
    uint64_t mib;
    const char *name;
    uint32_t size;
    int32_t starts[STARTS];
} Profile;
typedef struct {
    const char *key, *name;
    uint32_t architecture, major, integrated, mib, compute_slices;
    Profile profiles[ROWS];
} Product;

typedef struct { uint32_t used, serial, profile; char uuid[48]; } Compute;
typedef struct { uint32_t used, serial, row; Placement at; Compute computes[COMPUTES]; } Instance;
typedef struct { uint32_t pid, kind, instance, compute; uint64_t mib; } Process;
typedef struct {
    uint32_t product;
    char uuid[48];
    /* Set by fake_set, by name. */
    uint64_t mig, pending, mode, resettable, profiles_while_off, minor, absent;
    uint64_t ecc, remap_pending, remap_failed, retired_pending, clocks, recovery, tells_recovery;
    /* A session that was opened before the GPU came back still sees it as lost. */
    uint64_t back_since;
    uint32_t process_count;
    Instance instances[INSTANCES];
    Process processes[PROCESSES];
} Gpu;
typedef struct { char function[64]; int32_t gpu, code, left; } Rule;
typedef struct { uint64_t type, data; uint32_t gpu, instance; } Event;
typedef struct {
    uint64_t serial, session, gpu_count, rule_count, event_count, cuda;
    char driver[32];
    Gpu gpus[GPUS];
    Rule rules[RULES];
    Event events[EVENTS];
} State;

extern const Product products[];
State *state(void);
int lock(void);
void unlock(int *held);
int verdict(const char *function, int gpu);
int open_session(void);
void close_session(void);

enum { DEVICE = 'D', MIG_DEVICE = 'M', INSTANCE = 'I', COMPUTE = 'C' };
Handle handle(int tag, int gpu, int instance, int compute, uint32_t serial);
int tag_of(Handle h);
int gpu_index(Handle h);
int instance_index(Handle h);
int compute_index(Handle h);
Gpu *gpu_of(Handle h);
Instance *instance_of(Handle h);
Compute *compute_of(Handle h);
int serial_fits(Handle h);
void forget_instances(Gpu *gpu);
const Profile *profile_with_id(const Gpu *gpu, uint32_t id);
int capable(const Gpu *gpu);

/* One call at a time in all processes; a call fails as the rules say. */
#define ENTER(gpu) \
    int held __attribute__((cleanup(unlock))) = lock(); \
    do { int code_ = verdict(__func__, gpu); if (code_) return code_; } while (0)
#define ENTER_DEVICE(h) \
    ENTER(gpu_index(h)); \
    if (tag_of(h) != DEVICE) return INVALID; \
    Gpu *gpu = gpu_of(h)
