/* MIG: profiles, placements, GPU instances, compute instances, MIG devices. */
#include "state.h"
#include <stdio.h>

enum { LAST_PROFILE = 0x12, V2_PROFILE = 0x02000098, V2_COMPUTE = 0x02000088, SHARED_ENGINES = 0 };
typedef struct { uint32_t id, p2p, slices, count, sms, ce, dec, enc, jpeg, ofa; uint64_t mib; } Profile1;
typedef struct {
    uint32_t version, id, p2p, slices, count, sms, ce, dec, enc, jpeg, ofa;
    uint64_t mib;
    char name[96];
} Profile2;
typedef struct { uint32_t version, id, slices, count, sms, ce, dec, enc, jpeg, ofa; char name[96]; } Compute2;
typedef struct { Handle device; uint32_t id, profile; Placement at; } InstanceInfo;
typedef struct { Handle device, instance; uint32_t id, profile; Placement at; } ComputeInfo;

/* NVML's numbers of compute instance profiles, with their slices. */
static const struct { uint32_t number, slices; } compute_profiles[] = {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 7}};
enum { COMPUTE_PROFILES = sizeof compute_profiles / sizeof *compute_profiles };

static const Profile *rows(const Gpu *gpu) { return products[gpu->product].profiles; }
static const Profile *numbered(const Gpu *gpu, unsigned number) {
    for (int i = 0; i < ROWS && rows(gpu)[i].name; i++) if (rows(gpu)[i].number == number) return &rows(gpu)[i];
    return NULL;
}

int nvmlDeviceGetGpuInstanceProfileInfo(Handle h, unsigned number, Profile1 *out) {
    ENTER_DEVICE(h);
    if (number >= LAST_PROFILE) return INVALID;
    const Profile *p = numbered(gpu, number);
    if (!p || (!gpu->mig && !gpu->profiles_while_off)) return UNSUPPORTED;
    *out = (Profile1){.id = p->id, .slices = p->slices, .count = p->count, .sms = p->sms, .mib = p->mib};
    return OK;
}
int nvmlDeviceGetGpuInstanceProfileInfoV(Handle h, unsigned number, Profile2 *out) {
    ENTER_DEVICE(h);
    if (out->version != V2_PROFILE) return BAD_VERSION;
    if (number >= LAST_PROFILE) return INVALID;
    const Profile *p = numbered(gpu, number);
    if (!p || !gpu->mig) return UNSUPPORTED;
    *out = (Profile2){.version = V2_PROFILE, .id = p->id, .slices = p->slices, .count = p->count, .sms = p->sms, .mib = p->mib};
    snprintf(out->name, sizeof out->name, "%s", p->name);
    return OK;
}
int nvmlDeviceGetGpuInstancePossiblePlacements_v2(Handle h, unsigned id, Placement *out, unsigned *count) {
    ENTER_DEVICE(h);
    const Profile *p = profile_with_id(gpu, id);
    if (!p) return capable(gpu) ? INVALID : UNSUPPORTED;
    for (*count = 0; p->starts[*count] >= 0; ++*count)
        if (out) out[*count] = (Placement){p->starts[*count], p->size};
    return OK;
}

static int is_possible(const Profile *p, const Placement *at) {
    for (int i = 0; p->starts[i] >= 0; i++) if ((uint32_t)p->starts[i] == at->start) return at->size == p->size;
    return 0;
}
static const Profile *row_of(const Gpu *gpu, const Instance *x) { return &rows(gpu)[x->row]; }
static int fits(const Gpu *gpu, const Profile *p, const Placement *at) {
    unsigned slices = p->slices, same = 1;
    for (int i = 0; i < INSTANCES; i++) {
        const Instance *x = &gpu->instances[i];
        if (!x->used) continue;
        if (at->start < x->at.start + x->at.size && x->at.start < at->start + at->size) return 0;
        slices += row_of(gpu, x)->slices;
        same += row_of(gpu, x) == p;
    }
    return slices <= products[gpu->product].compute_slices && same <= p->count;
}
int nvmlDeviceCreateGpuInstanceWithPlacement(Handle h, unsigned id, const Placement *at, Handle *out) {
    ENTER_DEVICE(h);
    if (!gpu->mig) return UNSUPPORTED;
    const Profile *p = profile_with_id(gpu, id);
    if (!p || !is_possible(p, at)) return INVALID;
    if (!fits(gpu, p, at)) return INSUFFICIENT;
    for (int i = 0; i < INSTANCES; i++) {
        Instance *x = &gpu->instances[i];
        if (x->used) continue;
        *x = (Instance){.used = 1, .serial = ++state()->serial, .row = p - rows(gpu), .at = *at};
        *out = handle(INSTANCE, gpu_index(h), i, 0, x->serial);
        return OK;
    }
    return INSUFFICIENT;
}
int nvmlDeviceGetGpuInstances(Handle h, unsigned id, Handle *out, unsigned *count) {
    ENTER_DEVICE(h);
    if (!gpu->mig) return UNSUPPORTED;
    *count = 0;
    for (int i = 0; i < INSTANCES; i++) {
        Instance *x = &gpu->instances[i];
        if (x->used && row_of(gpu, x)->id == id) out[(*count)++] = handle(INSTANCE, gpu_index(h), i, 0, x->serial);
    }
    return OK;
}

#define ENTER_INSTANCE(h) \
    ENTER(gpu_index(h)); \
    if (tag_of(h) != INSTANCE || !serial_fits(h)) return INVALID; \
    Gpu *gpu = gpu_of(h); \
    Instance *x = instance_of(h)
/* Ids begin at 1, as those of real GPU instances that do not take the whole GPU. */
static unsigned instance_id(Handle h) { return instance_index(h) + 1; }

int nvmlGpuInstanceGetInfo(Handle h, InstanceInfo *out) {
    ENTER_INSTANCE(h);
    *out = (InstanceInfo){handle(DEVICE, gpu_index(h), 0, 0, 1), instance_id(h), row_of(gpu, x)->id, x->at};
    return OK;
}
int nvmlGpuInstanceDestroy(Handle h) {
    ENTER_INSTANCE(h);
    (void)gpu;
    for (int c = 0; c < COMPUTES; c++) if (x->computes[c].used) return IN_USE;
    x->used = 0;
    return OK;
}

static unsigned slices_of(unsigned number) {
    for (int i = 0; i < COMPUTE_PROFILES; i++)
        if (compute_profiles[i].number == number) return compute_profiles[i].slices;
    return 0;
}
static int offers(const Gpu *gpu, const Instance *x, unsigned number) {
    unsigned whole = row_of(gpu, x)->slices, slices = slices_of(number);
    /* 4g takes compute instances of 1, 2 and 4 slices. */
    return slices && slices <= whole && !(whole == 4 && slices == 3);
}
int nvmlGpuInstanceGetComputeInstanceProfileInfoV(Handle h, unsigned number, unsigned engines, Compute2 *out) {
    ENTER_INSTANCE(h);
    if (out->version != V2_COMPUTE) return BAD_VERSION;
    if (engines != SHARED_ENGINES) return INVALID;
    if (!offers(gpu, x, number)) return UNSUPPORTED;
    unsigned slices = slices_of(number);
    *out = (Compute2){.version = V2_COMPUTE, .id = number, .slices = slices, .count = row_of(gpu, x)->slices / slices};
    return OK;
}
int nvmlGpuInstanceCreateComputeInstance(Handle h, unsigned number, Handle *out) {
    ENTER_INSTANCE(h);
    if (!offers(gpu, x, number)) return UNSUPPORTED;
    unsigned slices = slices_of(number);
    int room = -1;
    for (int c = COMPUTES; c-- > 0; ) {
        if (x->computes[c].used) slices += slices_of(x->computes[c].profile);
        else room = c;
    }
    if (room < 0 || slices > row_of(gpu, x)->slices) return INSUFFICIENT;
    Compute *made = &x->computes[room];
    *made = (Compute){.used = 1, .serial = ++state()->serial, .profile = number};
    snprintf(made->uuid, sizeof made->uuid, "MIG-%08x-0000-4000-8000-%012x", made->serial, gpu_index(h));
    *out = handle(COMPUTE, gpu_index(h), instance_index(h), room, made->serial);
    return OK;
}
int nvmlGpuInstanceGetComputeInstances(Handle h, unsigned number, Handle *out, unsigned *count) {
    ENTER_INSTANCE(h);
    (void)gpu;
    *count = 0;
    for (int c = 0; c < COMPUTES; c++) {
        Compute *made = &x->computes[c];
        if (made->used && made->profile == number)
            out[(*count)++] = handle(COMPUTE, gpu_index(h), instance_index(h), c, made->serial);
    }
    return OK;
}

#define ENTER_COMPUTE(h) \
    ENTER(gpu_index(h)); \
    if (tag_of(h) != COMPUTE || !serial_fits(h)) return INVALID; \
    Compute *made = compute_of(h)

int nvmlComputeInstanceGetInfo_v2(Handle h, ComputeInfo *out) {
    ENTER_COMPUTE(h);
    int gpu = gpu_index(h), instance = instance_index(h), compute = compute_index(h);
    Handle device = handle(MIG_DEVICE, gpu, instance, compute, made->serial);
    Handle parent = handle(INSTANCE, gpu, instance, 0, instance_of(h)->serial);
    *out = (ComputeInfo){device, parent, compute, made->profile, {0, slices_of(made->profile)}};
    return OK;
}
/* MIG devices: what CUDA and NVML's other calls take for a compute instance. */
#define ENTER_MIG_DEVICE(h) \
    ENTER(gpu_index(h)); \
    if (tag_of(h) != MIG_DEVICE || !serial_fits(h)) return INVALID

int nvmlDeviceGetGpuInstanceId(Handle h, unsigned *id) { ENTER_MIG_DEVICE(h); *id = instance_id(h); return OK; }
int nvmlDeviceGetComputeInstanceId(Handle h, unsigned *id) { ENTER_MIG_DEVICE(h); *id = compute_index(h); return OK; }
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Handle h, Handle *out) {
    ENTER_MIG_DEVICE(h);
    *out = handle(DEVICE, gpu_index(h), 0, 0, 1);
    return OK;
}
int nvmlComputeInstanceDestroy(Handle h) {
    ENTER_COMPUTE(h);
    Gpu *gpu = gpu_of(h);
    for (unsigned i = 0; i < gpu->process_count; i++) {
        Process *p = &gpu->processes[i];
        if (p->instance == instance_id(h) && p->compute == (unsigned)compute_index(h)) return IN_USE;
    }
    made->used = 0;
    return OK;
}
