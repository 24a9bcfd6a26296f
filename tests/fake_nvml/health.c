/* Errors, clocks, recovery, processes and events. */
#include "state.h"
#include <stdlib.h>
#include <unistd.h>

enum { UNCORRECTED = 1, AMPERE = 7, RECOVERY_FIELD = 230, UINT = 1, POLL_US = 5000, XID = 8 };
typedef struct {
    uint32_t field, scope;
    int64_t time, latency;
    uint32_t type, code;
    union { uint32_t u32; uint64_t u64; } value;
} Field;
typedef struct { uint32_t pid; uint64_t bytes; uint32_t instance, compute; } ProcessInfo;
typedef struct { Handle device; uint64_t type, data; uint32_t instance, compute; } EventData;
typedef struct { uint64_t types[GPUS], seen; } EventSet;

int nvmlDeviceGetTotalEccErrors(Handle h, unsigned kind, unsigned counter, uint64_t *out) {
    ENTER_DEVICE(h);
    (void)counter;
    *out = kind == UNCORRECTED ? gpu->ecc : 0;
    return OK;
}
int nvmlDeviceGetRemappedRows(Handle h, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    ENTER_DEVICE(h);
    if (products[gpu->product].architecture < AMPERE) return UNSUPPORTED;
    *corrected = 0;
    *uncorrected = gpu->remap_pending || gpu->remap_failed;
    *pending = gpu->remap_pending;
    *failed = gpu->remap_failed;
    return OK;
}
int nvmlDeviceGetRetiredPagesPendingStatus(Handle h, unsigned *pending) {
    ENTER_DEVICE(h);
    if (products[gpu->product].architecture >= AMPERE) return UNSUPPORTED;
    *pending = gpu->retired_pending;
    return OK;
}
int nvmlDeviceGetCurrentClocksEventReasons(Handle h, uint64_t *out) { ENTER_DEVICE(h); *out = gpu->clocks; return OK; }
int nvmlDeviceGetFieldValues(Handle h, int count, Field *fields) {
    ENTER_DEVICE(h);
    for (int i = 0; i < count; i++) {
        fields[i].code = fields[i].field == RECOVERY_FIELD && gpu->tells_recovery ? OK : UNSUPPORTED;
        fields[i].type = UINT;
        fields[i].value.u64 = 0;
        fields[i].value.u32 = gpu->recovery;
    }
    return OK;
}

/* Of a GPU, or of one MIG device. */
static int list(Handle h, uint32_t kind, unsigned *count, ProcessInfo *out) {
    Gpu *gpu = gpu_of(h);
    unsigned found = 0, room = out ? *count : 0;
    for (unsigned i = 0; i < gpu->process_count; i++) {
        Process *p = &gpu->processes[i];
        if (p->kind != kind) continue;
        if (tag_of(h) == MIG_DEVICE && p->instance != (uint32_t)instance_index(h) + 1) continue;
        if (found < room) out[found] = (ProcessInfo){p->pid, p->mib == UINT64_MAX ? p->mib : p->mib << 20, p->instance, p->compute};
        found++;
    }
    *count = found;
    return found > room ? TOO_SMALL : OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Handle h, unsigned *count, ProcessInfo *out) {
    ENTER(gpu_index(h));
    return list(h, 'C', count, out);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(Handle h, unsigned *count, ProcessInfo *out) {
    ENTER(gpu_index(h));
    return list(h, 'G', count, out);
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(Handle h, unsigned *count, ProcessInfo *out) {
    ENTER(gpu_index(h));
    return list(h, 'M', count, out);
}

/* Event sets are the process's own; an event is seen once by each set that asked for its kind before it happened. */
int nvmlEventSetCreate(EventSet **out) {
    ENTER(ALL_GPUS);
    *out = calloc(1, sizeof **out);
    (*out)->seen = state()->event_count;
    return OK;
}
int nvmlEventSetFree(EventSet *set) { ENTER(ALL_GPUS); free(set); return OK; }
int nvmlDeviceRegisterEvents(Handle h, uint64_t types, EventSet *set) {
    ENTER_DEVICE(h);
    if (products[gpu->product].integrated) return UNSUPPORTED;
    set->types[gpu_index(h)] |= types;
    return OK;
}
static int next_event(EventSet *set, EventData *out) {
    State *s = state();
    while (set->seen < s->event_count) {
        Event *e = &s->events[set->seen++ % EVENTS];
        if (!(set->types[e->gpu] & e->type)) continue;
        *out = (EventData){handle(DEVICE, e->gpu, 0, 0, 1), e->type, e->data, e->instance, NO_INSTANCE};
        return OK;
    }
    return TIMEOUT;
}
static int look(EventSet *set, EventData *out, const char *function) {
    int held __attribute__((cleanup(unlock))) = lock();
    int code = verdict(function, ALL_GPUS);
    return code ? code : next_event(set, out);
}
int nvmlEventSetWait_v2(EventSet *set, EventData *out, unsigned timeout_ms) {
    for (int64_t left_us = (int64_t)timeout_ms * 1000; ; left_us -= POLL_US) {
        int code = look(set, out, __func__);
        if (code != TIMEOUT || left_us <= 0) return code;
        usleep(POLL_US);
    }
}
