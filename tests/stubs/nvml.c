/* A libnvidia-ml.so.1 for tests: what kvpressure asks of NVML, answered from a scenario (scenario.h).
 *
 *   count N                               gpu.N.uuid|name TEXT            gpu.N.memory TOTAL RESERVED USED
 *   gpu.N.samples PERCENT...              gpu.N.sample_period_us N        gpu.N.rates PERCENT
 *   gpu.N.sample_buffer N (what the driver says when asked for its size)
 *   gpu.N.mig 0|1                         gpu.N.mig.I.uuid|name|memory    gpu.N.mig.I.gpu_instance ID
 *   gpu.N.mig.I.call.nvmlDeviceGetMemoryInfo_v2 (as in scenario.h, for one instance)
 *   gpu.N.gpm SM TENSOR DRAM              gpu.N.gpm.INSTANCE SM TENSOR DRAM
 *
 * What a scenario does not say is NVML_ERROR_NOT_SUPPORTED.
 */
#include "scenario.h"

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { WHOLE = 63, BUFFER = 100, DEFAULT_PERIOD_US = 166667 };

typedef void *Device;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
typedef struct { unsigned gpu, memory; } Rates;
typedef struct { unsigned long long time_us; union { double d; unsigned u; unsigned long long ull; } value; } Sample;
typedef struct { int gpu, instance; } GpmSample;
typedef struct { unsigned id, result; double value; char *info[3]; } GpmMetric;
typedef struct { unsigned version, count; GpmSample *one, *two; GpmMetric metrics[]; } GpmRequest;
typedef struct { unsigned version, supported; } GpmSupport;

/* A handle is 1 + 64 * gpu + instance, the whole card being instance 63. */
static Device handle(int gpu, int instance) { return (Device)(uintptr_t)(1 + 64 * gpu + instance); }
static int gpu_of(Device device) { return (int)(((uintptr_t)device - 1) / 64); }
static int instance_of(Device device) { return (int)(((uintptr_t)device - 1) % 64); }

#define BEHAVE(gpu)                                    \
    do {                                               \
        int code = scenario_behave(__func__, (gpu));   \
        if (code)                                      \
            return code;                               \
    } while (0)

static const char *get(Device device, const char *what)
{
    if (instance_of(device) == WHOLE)
        return scenario_get("gpu.%d.%s", gpu_of(device), what);
    return scenario_get("gpu.%d.mig.%d.%s", gpu_of(device), instance_of(device), what);
}

static int text(Device device, const char *what, char *out, unsigned size)
{
    const char *value = get(device, what);
    if (value == NULL)
        return NOT_SUPPORTED;
    return snprintf(out, size, "%s", value) < (int)size ? OK : INSUFFICIENT_SIZE;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; BEHAVE(-1); return OK; }
int nvmlShutdown(void) { BEHAVE(-1); return OK; }
const char *nvmlErrorString(int code) { (void)code; return "an error of the stub"; }

int nvmlSystemGetDriverVersion(char *out, unsigned size)
{
    BEHAVE(-1);
    snprintf(out, size, "580.95.05");
    return OK;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    BEHAVE(-1);
    *count = (unsigned)scenario_number(scenario_get("count"), 0);
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *out)
{
    BEHAVE((int)index);
    *out = handle((int)index, WHOLE);
    return OK;
}

int nvmlDeviceGetUUID(Device device, char *out, unsigned size) { BEHAVE(gpu_of(device)); return text(device, "uuid", out, size); }
int nvmlDeviceGetName(Device device, char *out, unsigned size) { BEHAVE(gpu_of(device)); return text(device, "name", out, size); }

static int memory(Device device, unsigned long long *total, unsigned long long *reserved, unsigned long long *used)
{
    const char *value = get(device, "memory");
    return value != NULL && sscanf(value, "%llu %llu %llu", total, reserved, used) == 3 ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetMemoryInfo_v2(Device device, Memory2 *out)
{
    BEHAVE(gpu_of(device));
    int code = scenario_act(get(device, "call.nvmlDeviceGetMemoryInfo_v2"));
    if (code == 0)
        code = memory(device, &out->total, &out->reserved, &out->used);
    out->free = out->total - out->reserved - out->used;
    return code;
}

/* Version 1 counts what the driver reserves as used. */
int nvmlDeviceGetMemoryInfo(Device device, Memory *out)
{
    unsigned long long reserved = 0;
    BEHAVE(gpu_of(device));
    int code = memory(device, &out->total, &reserved, &out->used);
    out->used += reserved;
    out->free = out->total - out->used;
    return code;
}

int nvmlDeviceGetUtilizationRates(Device device, Rates *out)
{
    BEHAVE(gpu_of(device));
    const char *value = get(device, "rates");
    if (value == NULL || instance_of(device) != WHOLE)
        return NOT_SUPPORTED;
    out->gpu = (unsigned)scenario_number(value, 0);
    return OK;
}

/* Sample number n was taken at n periods since 1970; the scenario's values repeat. */
int nvmlDeviceGetSamples(Device device, int kind, unsigned long long last_seen_us, int *value_type, unsigned *count, Sample *out)
{
    BEHAVE(gpu_of(device));
    (void)kind;
    const char *values = get(device, "samples");
    if (values == NULL || instance_of(device) != WHOLE)
        return NOT_SUPPORTED;
    unsigned long long series[64], length = 0;
    for (char *end; length < 64 && (series[length] = strtoull(values, &end, 10), end != values); values = end)
        length++;
    if (out == NULL) {
        *count = (unsigned)scenario_number(get(device, "sample_buffer"), BUFFER);
        return OK;
    }
    if (*count == 0)
        return INVALID_ARGUMENT;
    unsigned long long period = scenario_number(get(device, "sample_period_us"), DEFAULT_PERIOD_US);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned long long newest = ((unsigned long long)now.tv_sec * 1000000 + now.tv_nsec / 1000) / period;
    unsigned filled = 0;
    for (unsigned long long n = newest - BUFFER + 1; n <= newest && filled < *count && length > 0; n++)
        if (n * period > last_seen_us)
            out[filled++] = (Sample){.time_us = n * period, .value.ull = series[n % length]};
    *count = filled;
    *value_type = 1;
    return filled ? OK : NOT_FOUND;
}

int nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending)
{
    BEHAVE(gpu_of(device));
    const char *value = get(device, "mig");
    *current = *pending = (unsigned)scenario_number(value, 0);
    return value == NULL ? NOT_SUPPORTED : OK;
}

int nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *count) { BEHAVE(gpu_of(device)); *count = 7; return OK; }

int nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *out)
{
    BEHAVE(gpu_of(device));
    *out = handle(gpu_of(device), (int)index);
    return get(*out, "uuid") == NULL ? NOT_FOUND : OK;
}

int nvmlDeviceGetGpuInstanceId(Device device, unsigned *id)
{
    BEHAVE(gpu_of(device));
    const char *value = get(device, "gpu_instance");
    *id = (unsigned)scenario_number(value, 0);
    return value == NULL ? NOT_SUPPORTED : OK;
}

int nvmlGpmQueryDeviceSupport(Device device, GpmSupport *out)
{
    BEHAVE(gpu_of(device));
    out->supported = scenario_get("gpu.%d.gpm", gpu_of(device)) != NULL;
    return OK;
}

int nvmlGpmSampleAlloc(GpmSample **out) { BEHAVE(-1); *out = calloc(1, sizeof **out); return OK; }
int nvmlGpmSampleFree(GpmSample *sample) { free(sample); return OK; }

int nvmlGpmSampleGet(Device device, GpmSample *sample)
{
    BEHAVE(gpu_of(device));
    *sample = (GpmSample){gpu_of(device), -1};
    return OK;
}

int nvmlGpmMigSampleGet(Device device, unsigned instance, GpmSample *sample)
{
    BEHAVE(gpu_of(device));
    *sample = (GpmSample){gpu_of(device), (int)instance};
    return OK;
}

int nvmlGpmMetricsGet(GpmRequest *request)
{
    double sm, tensor, dram;
    int gpu = request->two->gpu, instance = request->two->instance;
    BEHAVE(gpu);
    const char *value = instance < 0 ? scenario_get("gpu.%d.gpm", gpu) : scenario_get("gpu.%d.gpm.%d", gpu, instance);
    if (value == NULL || sscanf(value, "%lf %lf %lf", &sm, &tensor, &dram) != 3)
        return NOT_SUPPORTED;
    for (unsigned slot = 0; slot < request->count; slot++) {
        GpmMetric *metric = &request->metrics[slot];
        metric->value = metric->id == 2 ? sm : metric->id == 5 ? tensor : dram;
        metric->result = metric->id == 2 || metric->id == 5 || metric->id == 10 ? OK : NOT_SUPPORTED;
    }
    return OK;
}
