/* What a test does to the GPUs: not part of NVML. */
#include "state.h"
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HOPPER = 9, ENTRY = 48 };
#define HERE int held __attribute__((cleanup(unlock))) = lock()

static const struct { const char *name; size_t at; } fields[] = {
#define FIELD(name) {#name, offsetof(Gpu, name)}
    FIELD(mig), FIELD(pending), FIELD(mode), FIELD(resettable), FIELD(profiles_while_off), FIELD(minor), FIELD(absent),
    FIELD(ecc), FIELD(remap_pending), FIELD(remap_failed), FIELD(retired_pending), FIELD(clocks), FIELD(recovery),
    FIELD(tells_recovery),
};
static uint64_t *field(int gpu, const char *name) {
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!strcmp(fields[i].name, name)) return (uint64_t *)((char *)&state()->gpus[gpu] + fields[i].at);
    fprintf(stderr, "fake libnvidia-ml: no field %s\n", name);
    abort();
}
void fake_set(int gpu, const char *name, uint64_t value) { HERE; *field(gpu, name) = value; }
uint64_t fake_get(int gpu, const char *name) { HERE; return *field(gpu, name); }

/* The GPUs of this machine by index; all earlier state is gone. Returns 0, or 1 for an unknown product. */
int fake_machine(const char *const *keys, int count, const char *const *uuids) {
    HERE;
    State *s = state();
    memset(s, 0, sizeof *s);
    snprintf(s->driver, sizeof s->driver, "580.65.06");
    s->cuda = 13000;
    s->gpu_count = count;
    for (int i = 0; i < count; i++) {
        uint32_t product = 0;
        while (products[product].key && strcmp(products[product].key, keys[i])) product++;
        if (!products[product].key) return 1;
        int hopper = products[product].architecture >= HOPPER;
        s->gpus[i] = (Gpu){.product = product, .minor = i, .resettable = 1, .profiles_while_off = hopper, .tells_recovery = 1};
        snprintf(s->gpus[i].uuid, ENTRY, "%s", uuids[i]);
    }
    return 0;
}

void fake_driver(const char *version, uint64_t cuda) {
    HERE;
    snprintf(state()->driver, sizeof state()->driver, "%s", version);
    state()->cuda = cuda;
}

/* Calls of a function ("*": all that concern a GPU) fail with a code, so many times (-1: always). */
void fake_fail(const char *function, int gpu, int code, int times) {
    HERE;
    State *s = state();
    if (s->rule_count == RULES) abort();
    Rule *r = &s->rules[s->rule_count++];
    *r = (Rule){.gpu = gpu, .code = code, .left = times};
    snprintf(r->function, sizeof r->function, "%s", function);
}
/* No call fails any more; the GPUs that did are back for sessions that begin now. */
void fake_heal(void) {
    HERE;
    State *s = state();
    s->session++;
    for (uint64_t i = 0; i < s->rule_count; i++)
        if (s->rules[i].gpu >= 0 && !strcmp(s->rules[i].function, "*")) s->gpus[s->rules[i].gpu].back_since = s->session;
    s->rule_count = 0;
}

void fake_process(int gpu, uint32_t pid, int kind, uint64_t mib, uint32_t instance) {
    HERE;
    Gpu *g = &state()->gpus[gpu];
    if (g->process_count == PROCESSES) abort();
    uint32_t compute = instance == NO_INSTANCE ? NO_INSTANCE : 0;
    g->processes[g->process_count++] = (Process){pid, kind, instance, compute, mib};
}
void fake_no_processes(int gpu) { HERE; state()->gpus[gpu].process_count = 0; }

void fake_event(int gpu, uint64_t type, uint64_t data) {
    HERE;
    State *s = state();
    s->events[s->event_count++ % EVENTS] = (Event){type, data, gpu, NO_INSTANCE};
}

/* A reset without a boot: volatile errors are gone, a pending mode becomes the current one, instances are gone. */
static void reset(Gpu *g) {
    g->mig = g->pending;
    g->ecc = g->remap_pending = g->retired_pending = g->recovery = g->mode = 0;
    g->process_count = 0;
    forget_instances(g);
}
void fake_reset(int gpu) { HERE; reset(&state()->gpus[gpu]); }
/* A boot of the node: nothing persists but Ampere's MIG mode. */
void fake_boot(void) {
    HERE;
    for (uint64_t i = 0; i < state()->gpu_count; i++) {
        Gpu *g = &state()->gpus[i];
        reset(g);
        if (products[g->product].architecture >= HOPPER) g->mig = g->pending = 0;
    }
}
int fake_instances(int gpu) {
    HERE;
    int count = 0;
    for (int i = 0; i < INSTANCES; i++) count += state()->gpus[gpu].instances[i].used;
    return count;
}
