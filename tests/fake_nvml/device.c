/* Sessions, enumeration, sizes, compute mode, MIG mode. */
#include "state.h"
#include <stdio.h>
#include <string.h>

enum { V2_MEMORY = 0x02000028, RESERVED_MIB = 600 };
typedef struct { uint64_t total, free, used; } Memory1;
typedef struct { uint32_t version; uint64_t total, reserved, free, used; } Memory2;

int nvmlInitWithFlags(unsigned flags) { (void)flags; ENTER(ALL_GPUS); return open_session(); }
int nvmlShutdown(void) { ENTER(ALL_GPUS); close_session(); return OK; }

const char *nvmlErrorString(int code) {
    switch (code) {
    case OK: return "The operation was successful";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID: return "Invalid Argument";
    case UNSUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case TOO_SMALL: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case LOST: return "GPU is lost";
    case RESET_REQUIRED: return "GPU requires reset";
    case IN_USE: return "In use by another client";
    case INSUFFICIENT: return "Insufficient Resources";
    case BAD_VERSION: return "Argument Version Mismatch";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    ENTER(ALL_GPUS);
    snprintf(out, size, "%s", state()->driver);
    return OK;
}

int nvmlSystemGetCudaDriverVersion_v2(int *out) { ENTER(ALL_GPUS); *out = state()->cuda; return OK; }

/* Indices are of the GPUs that are there. */
static int at_index(unsigned index) {
    for (unsigned i = 0; i < state()->gpu_count; i++)
        if (!state()->gpus[i].absent && !index--) return i;
    return -1;
}
int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER(ALL_GPUS);
    for (*count = 0; at_index(*count) >= 0; ) ++*count;
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle *out) {
    ENTER(ALL_GPUS);
    int gpu = at_index(index);
    if (gpu < 0) return INVALID;
    int code = verdict(__func__, gpu);
    if (!code) *out = handle(DEVICE, gpu, 0, 0, 1);
    return code;
}
static Handle with_mig_uuid(int gpu, const char *uuid) {
    for (int i = 0; i < INSTANCES; i++)
        for (int c = 0; c < COMPUTES; c++) {
            Compute *compute = &state()->gpus[gpu].instances[i].computes[c];
            if (compute->used && !strcmp(compute->uuid, uuid)) return handle(MIG_DEVICE, gpu, i, c, compute->serial);
        }
    return 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Handle *out) {
    ENTER(ALL_GPUS);
    for (int i = 0; i < (int)state()->gpu_count; i++) {
        if (state()->gpus[i].absent) continue;
        Handle mig = with_mig_uuid(i, uuid);
        if (!mig && strcmp(state()->gpus[i].uuid, uuid)) continue;
        int code = verdict(__func__, i);
        if (!code) *out = mig ? mig : handle(DEVICE, i, 0, 0, 1);
        return code;
    }
    return NOT_FOUND;
}
int nvmlDeviceGetUUID(Handle h, char *out, unsigned size) {
    ENTER(gpu_index(h));
    if (tag_of(h) == MIG_DEVICE && !serial_fits(h)) return INVALID;
    snprintf(out, size, "%s", tag_of(h) == DEVICE ? gpu_of(h)->uuid : compute_of(h)->uuid);
    return OK;
}
int nvmlDeviceGetName(Handle h, char *out, unsigned size) {
    ENTER_DEVICE(h);
    snprintf(out, size, "%s", products[gpu->product].name);
    return OK;
}
int nvmlDeviceGetMinorNumber(Handle h, unsigned *out) {
    ENTER_DEVICE(h);
    if (products[gpu->product].integrated) return UNSUPPORTED;
    *out = gpu->minor;
    return OK;
}
int nvmlDeviceGetArchitecture(Handle h, unsigned *out) {
    ENTER_DEVICE(h);
    *out = products[gpu->product].architecture;
    return OK;
}
int nvmlDeviceGetCudaComputeCapability(Handle h, int *major, int *minor) {
    ENTER_DEVICE(h);
    *major = products[gpu->product].major;
    *minor = 0;
    return OK;
}
int nvmlDeviceGetMemoryInfo(Handle h, Memory1 *out) {
    ENTER_DEVICE(h);
    uint64_t total = (uint64_t)products[gpu->product].mib << 20;
    *out = (Memory1){total, total, 0};
    return OK;
}
int nvmlDeviceGetMemoryInfo_v2(Handle h, Memory2 *out) {
    ENTER_DEVICE(h);
    if (out->version != V2_MEMORY) return BAD_VERSION;
    out->total = (uint64_t)products[gpu->product].mib << 20;
    /* Not a whole number of MiB, as on real GPUs. */
    out->reserved = ((uint64_t)RESERVED_MIB << 20) + 1;
    out->used = 0;
    out->free = out->total - out->reserved;
    return OK;
}

int nvmlDeviceGetComputeMode(Handle h, unsigned *mode) { ENTER_DEVICE(h); *mode = gpu->mode; return OK; }
int nvmlDeviceSetComputeMode(Handle h, unsigned mode) {
    ENTER_DEVICE(h);
    if (gpu->mig) return UNSUPPORTED;
    if (mode > 3) return INVALID;
    gpu->mode = mode;
    return OK;
}

int nvmlDeviceGetMigMode(Handle h, unsigned *current, unsigned *pending) {
    ENTER_DEVICE(h);
    if (!capable(gpu)) return UNSUPPORTED;
    *current = gpu->mig;
    *pending = gpu->pending;
    return OK;
}
static int has_instances(const Gpu *gpu) {
    for (int i = 0; i < INSTANCES; i++) if (gpu->instances[i].used) return 1;
    return 0;
}
/* The call succeeds; whether the mode changed is in the status, and what waits for a reset in the pending mode. */
int nvmlDeviceSetMigMode(Handle h, unsigned mode, unsigned *status) {
    ENTER_DEVICE(h);
    if (!capable(gpu)) return UNSUPPORTED;
    if (mode > 1) return INVALID;
    gpu->pending = mode;
    *status = gpu->process_count || has_instances(gpu) ? IN_USE : gpu->resettable ? OK : RESET_REQUIRED;
    if (*status == OK && gpu->mig != mode) { gpu->mig = mode; gpu->mode = 0; }
    return OK;
}
