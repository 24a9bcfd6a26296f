/* A libnvidia-ml.so.1 without GPUs: what gpulet.nvidia.nvml calls, with the real structures and error codes.
 *
 * GPU 0: A100 (MIG mode changes only by a reset), GPU 1: H100, GPU 2: P100 (too old for MPS limits).
 * FAKE_NVML_ERRORS="function=code,function=code" makes calls fail; it is read at every call.
 * fake_reset() forgets all state; fake_set_mig(gpu, current, pending) is what an administrator's reset would do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, IN_USE = 19, INSUFFICIENT = 23, BAD_VERSION = 25 };
enum { GPUS = 3, PROFILES = 0x12, INSTANCES = 8, V2_PROFILE = 0x02000098, V2_COMPUTE = 0x02000088, V2_MEMORY = 0x02000028 };

typedef struct { unsigned start, size; } Placement;
typedef struct { unsigned id, p2p, slices, count, sms, ce, dec, enc, jpeg, ofa; unsigned long long mib; } Profile1;
typedef struct { unsigned version, id, p2p, slices, count, sms, ce, dec, enc, jpeg, ofa; unsigned long long mib; char name[96]; } Profile2;
typedef struct { unsigned version, id, slices, count, sms, ce, dec, enc, jpeg, ofa; char name[96]; } Compute2;
typedef struct { unsigned long long total, free, used; } Memory1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
typedef struct Gpu Gpu;
/* A handle of a device is a Gpu or an Instance (its MIG device): both begin with the tag. */
typedef struct { char tag; Gpu *gpu; unsigned id, profile; Placement at; int used, computed; char uuid[48]; } Instance;
struct Gpu { char tag; const char *name, *uuid; unsigned arch, major, mig, pending, mode; Instance instances[INSTANCES]; };
typedef struct { Gpu *device; unsigned id, profile; Placement at; } InstanceInfo;
typedef struct { Instance *device; Instance *instance; unsigned id, profile; Placement at; } ComputeInfo;

static const struct { int number; unsigned id, slices, count; unsigned long long mib; const char *name; unsigned size; int starts[8]; } table[] = {
    {0x0, 19, 1, 7, 9984, "MIG 1g.10gb", 1, {0, 1, 2, 3, 4, 5, 6, -1}},
    {0x1, 14, 2, 3, 20096, "MIG 2g.20gb", 2, {0, 2, 4, -1}},
    {0x2, 9, 3, 2, 40448, "MIG 3g.40gb", 4, {0, 4, -1}},
    {0x3, 5, 4, 1, 40448, "MIG 4g.40gb", 4, {0, -1}},
    {0x4, 0, 7, 1, 81152, "MIG 7g.80gb", 8, {0, -1}},
    {0x7, 20, 1, 1, 9984, "MIG 1g.10gb+me", 1, {0, 1, 2, 3, 4, 5, 6, -1}},
    {0x9, 15, 1, 4, 20096, "MIG 1g.20gb", 2, {0, 2, 4, 6, -1}},
};
enum { ROWS = sizeof table / sizeof *table };
static Gpu gpus[GPUS];
static unsigned made;

static int failing(const char *function) {
    const char *errors = getenv("FAKE_NVML_ERRORS");
    size_t length = strlen(function);
    while (errors && *errors) {
        if (!strncmp(errors, function, length) && errors[length] == '=') return atoi(errors + length + 1);
        errors = strchr(errors, ',');
        if (errors) errors++;
    }
    return 0;
}
#define MAY_FAIL do { int code = failing(__func__); if (code) return code; } while (0)

void fake_reset(void) {
    memset(gpus, 0, sizeof gpus);
    gpus[0] = (Gpu){.tag = 'G', .name = "NVIDIA A100-SXM4-80GB", .uuid = "GPU-aaaa", .arch = 7, .major = 8};
    gpus[1] = (Gpu){.tag = 'G', .name = "NVIDIA H100 80GB HBM3", .uuid = "GPU-hhhh", .arch = 9, .major = 9};
    gpus[2] = (Gpu){.tag = 'G', .name = "Tesla P100", .uuid = "GPU-pppp", .arch = 4, .major = 6};
}
void fake_set_mig(int gpu, unsigned current, unsigned pending) { gpus[gpu].mig = current; gpus[gpu].pending = pending; }
int fake_gpu_instances(int gpu) { int n = 0; for (int i = 0; i < INSTANCES; i++) n += gpus[gpu].instances[i].used; return n; }

static int capable(Gpu *g) { return g->arch >= 7; }
static int row_of(unsigned id) { for (int i = 0; i < ROWS; i++) if (table[i].id == id) return i; return -1; }
static int row_numbered(int number) { for (int i = 0; i < ROWS; i++) if (table[i].number == number) return i; return -1; }

int nvmlInitWithFlags(unsigned flags) { (void)flags; MAY_FAIL; if (!gpus[0].tag) fake_reset(); return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { static char text[32]; snprintf(text, sizeof text, "error %d", code); return text; }
int nvmlDeviceGetCount_v2(unsigned *n) { MAY_FAIL; *n = GPUS; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, Gpu **g) { MAY_FAIL; if (i >= GPUS) return INVALID; *g = &gpus[i]; return OK; }
int nvmlDeviceGetHandleByUUID(const char *uuid, Gpu **g) {
    MAY_FAIL;
    for (int i = 0; i < GPUS; i++) if (!strcmp(gpus[i].uuid, uuid)) { *g = &gpus[i]; return OK; }
    return NOT_FOUND;
}
int nvmlDeviceGetUUID(void *device, char *out, unsigned size) {
    MAY_FAIL;
    snprintf(out, size, "%s", *(char *)device == 'G' ? ((Gpu *)device)->uuid : ((Instance *)device)->uuid);
    return OK;
}
int nvmlDeviceGetName(Gpu *g, char *out, unsigned size) { MAY_FAIL; snprintf(out, size, "%s", g->name); return OK; }
int nvmlDeviceGetArchitecture(Gpu *g, unsigned *a) { MAY_FAIL; *a = g->arch; return OK; }
int nvmlDeviceGetCudaComputeCapability(Gpu *g, int *major, int *minor) { MAY_FAIL; *major = g->major; *minor = 0; return OK; }
int nvmlDeviceGetMemoryInfo(Gpu *g, Memory1 *m) { (void)g; MAY_FAIL; *m = (Memory1){81559ULL << 20, 81559ULL << 20, 0}; return OK; }
int nvmlDeviceGetMemoryInfo_v2(Gpu *g, Memory2 *m) {
    (void)g; MAY_FAIL;
    if (m->version != V2_MEMORY) return BAD_VERSION;
    m->total = 81559ULL << 20; m->reserved = (600ULL << 20) + 1; m->used = 0; m->free = m->total - m->reserved;
    return OK;
}
int nvmlDeviceGetComputeMode(Gpu *g, unsigned *mode) { MAY_FAIL; *mode = g->mode; return OK; }
int nvmlDeviceSetComputeMode(Gpu *g, unsigned mode) { MAY_FAIL; if (g->mig) return UNSUPPORTED; g->mode = mode; return OK; }
int nvmlDeviceGetMigMode(Gpu *g, unsigned *current, unsigned *pending) {
    MAY_FAIL;
    if (!capable(g)) return UNSUPPORTED;
    *current = g->mig; *pending = g->pending;
    return OK;
}
int nvmlDeviceSetMigMode(Gpu *g, unsigned mode, unsigned *status) {
    /* The call itself succeeds, its status says whether the mode changed. */
    *status = failing(__func__);
    if (!*status) { g->mig = g->pending = mode; g->mode = 0; }
    return OK;
}
int nvmlDeviceGetGpuInstanceProfileInfo(Gpu *g, unsigned number, Profile1 *p) {
    MAY_FAIL;
    int row = row_numbered(number);
    if (!capable(g)) return UNSUPPORTED;
    if (row < 0) return number < PROFILES ? UNSUPPORTED : INVALID;
    *p = (Profile1){.id = table[row].id, .slices = table[row].slices, .count = table[row].count, .mib = table[row].mib};
    return OK;
}
int nvmlDeviceGetGpuInstanceProfileInfoV(Gpu *g, unsigned number, Profile2 *p) {
    MAY_FAIL;
    if (p->version != V2_PROFILE) return BAD_VERSION;
    int row = row_numbered(number);
    if (!g->mig || row < 0) return UNSUPPORTED;
    *p = (Profile2){.version = V2_PROFILE, .id = table[row].id, .slices = table[row].slices, .count = table[row].count, .mib = table[row].mib};
    snprintf(p->name, sizeof p->name, "%s", table[row].name);
    return OK;
}
int nvmlDeviceGetGpuInstancePossiblePlacements_v2(Gpu *g, unsigned id, Placement *out, unsigned *count) {
    (void)g; MAY_FAIL;
    int row = row_of(id), n = 0;
    if (row < 0) return INVALID;
    for (; table[row].starts[n] >= 0; n++) if (out) out[n] = (Placement){table[row].starts[n], table[row].size};
    *count = n;
    return OK;
}
int nvmlDeviceCreateGpuInstanceWithPlacement(Gpu *g, unsigned id, const Placement *at, Instance **out) {
    MAY_FAIL;
    if (!g->mig) return UNSUPPORTED;
    Instance *room = NULL;
    for (int i = 0; i < INSTANCES; i++) {
        Instance *x = &g->instances[i];
        if (!x->used) { room = room ? room : x; continue; }
        if (at->start < x->at.start + x->at.size && x->at.start < at->start + at->size) return INSUFFICIENT;
    }
    if (!room) return INSUFFICIENT;
    *room = (Instance){.tag = 'M', .gpu = g, .id = room - g->instances, .profile = id, .at = *at, .used = 1};
    *out = room;
    return OK;
}
int nvmlDeviceGetGpuInstances(Gpu *g, unsigned id, Instance **out, unsigned *count) {
    MAY_FAIL;
    if (!g->mig) return UNSUPPORTED;
    *count = 0;
    for (int i = 0; i < INSTANCES; i++)
        if (g->instances[i].used && g->instances[i].profile == id) out[(*count)++] = &g->instances[i];
    return OK;
}
int nvmlGpuInstanceGetInfo(Instance *x, InstanceInfo *info) { MAY_FAIL; *info = (InstanceInfo){x->gpu, x->id, x->profile, x->at}; return OK; }
int nvmlGpuInstanceDestroy(Instance *x) {
    static int busy;
    MAY_FAIL;
    if (x->computed) return IN_USE;
    /* As the driver does: in use for a moment after the compute instance is gone. */
    if (getenv("FAKE_NVML_BUSY") && !busy) { busy = 1; return IN_USE; }
    busy = 0; x->used = 0;
    return OK;
}
int nvmlGpuInstanceGetComputeInstanceProfileInfoV(Instance *x, unsigned number, unsigned engine, Compute2 *p) {
    (void)engine; MAY_FAIL;
    if (p->version != V2_COMPUTE) return BAD_VERSION;
    int row = row_of(x->profile);
    /* One slice, and all of the GPU instance's. */
    if (number != 0 && number != (unsigned)(table[row].slices == 7 ? 4 : table[row].slices - 1)) return UNSUPPORTED;
    unsigned slices = number == 0 ? 1 : table[row].slices;
    *p = (Compute2){.version = V2_COMPUTE, .id = number, .slices = slices, .count = table[row].slices / slices};
    return OK;
}
int nvmlGpuInstanceCreateComputeInstance(Instance *x, unsigned profile, Instance **out) {
    MAY_FAIL;
    x->computed = 1 + profile;
    snprintf(x->uuid, sizeof x->uuid, "MIG-%08u-0000-0000-0000-000000000000", ++made);
    *out = x;
    return OK;
}
int nvmlGpuInstanceGetComputeInstances(Instance *x, unsigned profile, Instance **out, unsigned *count) {
    MAY_FAIL;
    *count = 0;
    if (x->computed == (int)(1 + profile)) out[(*count)++] = x;
    return OK;
}
int nvmlComputeInstanceGetInfo_v2(Instance *x, ComputeInfo *info) {
    MAY_FAIL;
    *info = (ComputeInfo){x, x, 0, x->computed - 1, {0, 0}};
    return OK;
}
int nvmlComputeInstanceDestroy(Instance *x) { MAY_FAIL; x->computed = 0; return OK; }
