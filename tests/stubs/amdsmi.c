/* A libamd_smi.so for tests: what kvpressure asks of amdsmi, answered from a scenario (scenario.h).
 *
 *   count N                          gpu.N.address DOMAIN BUS DEVICE FUNCTION     gpu.N.name|mode TEXT
 *   gpu.N.partition ID               gpu.N.vram TOTAL USED (bytes)                gpu.N.vram_mib TOTAL USED
 *   gpu.N.vram_type NUMBER           gpu.N.activity PERCENT                       gpu.N.xcp.ROW PERCENT...
 *
 * What a scenario does not say is AMDSMI_STATUS_NOT_SUPPORTED, or all bits one inside the metrics table. The structs and
 * every other symbol that the binding binds are generated from the binding's own source (build.py).
 */
#include "amdsmi_structs.h"
#include "scenario.h"

enum { OK = 0, NOT_SUPPORTED = 2, ROWS = 8, ENGINES = 8 };

typedef void *Processor;

static int gpu_of(Processor processor) { return (int)(uintptr_t)processor - 1; }

#define BEHAVE(gpu)                                    \
    do {                                               \
        int code = scenario_behave(__func__, (gpu));   \
        if (code)                                      \
            return code;                               \
    } while (0)

#define GET(processor, what) scenario_get("gpu.%d." what, gpu_of(processor))

int amdsmi_init(uint64_t flags)
{
    (void)flags;
    BEHAVE(-1);
    puts("a line that the library prints");
    fflush(stdout);
    return OK;
}

int amdsmi_shut_down(void) { BEHAVE(-1); return OK; }

int amdsmi_get_socket_handles(uint32_t *count, void **sockets)
{
    BEHAVE(-1);
    *count = 1;
    if (sockets != NULL)
        sockets[0] = (void *)1;
    return OK;
}

int amdsmi_get_processor_handles(void *socket, uint32_t *count, Processor *processors)
{
    (void)socket;
    BEHAVE(-1);
    *count = (uint32_t)scenario_number(scenario_get("count"), 0);
    for (uint32_t index = 0; processors != NULL && index < *count; index++)
        processors[index] = (Processor)(uintptr_t)(index + 1);
    return OK;
}

int amdsmi_get_gpu_device_bdf(Processor processor, uint64_t *out)
{
    unsigned long long domain = 0, bus = 0, device = 0, function = 0;
    BEHAVE(gpu_of(processor));
    const char *address = GET(processor, "address");
    if (address == NULL || sscanf(address, "%llu %llu %llu %llu", &domain, &bus, &device, &function) != 4)
        return NOT_SUPPORTED;
    *out = domain << 16 | bus << 8 | device << 3 | function;
    return OK;
}

int amdsmi_get_gpu_kfd_info(Processor processor, struct amdsmi_kfd_info_t *out)
{
    BEHAVE(gpu_of(processor));
    memset(out, 0xff, sizeof *out);
    const char *partition = GET(processor, "partition");
    out->current_partition_id = (uint32_t)scenario_number(partition, 0);
    return partition == NULL ? NOT_SUPPORTED : OK;
}

int amdsmi_get_gpu_compute_partition(Processor processor, char *out, uint32_t size)
{
    BEHAVE(gpu_of(processor));
    const char *mode = GET(processor, "mode");
    if (mode != NULL)
        snprintf(out, size, "%s", mode);
    return mode == NULL ? NOT_SUPPORTED : OK;
}

int amdsmi_get_gpu_asic_info(Processor processor, struct amdsmi_asic_info_t *out)
{
    BEHAVE(gpu_of(processor));
    memset(out, 0, sizeof *out);
    const char *name = GET(processor, "name");
    if (name != NULL)
        snprintf(out->market_name, sizeof out->market_name, "%s", name);
    return name == NULL ? NOT_SUPPORTED : OK;
}

int amdsmi_get_gpu_driver_info(Processor processor, struct amdsmi_driver_info_t *out)
{
    BEHAVE(gpu_of(processor));
    memset(out, 0, sizeof *out);
    strcpy(out->driver_version, "6.14.14");
    return OK;
}

int amdsmi_get_gpu_vram_info(Processor processor, struct amdsmi_vram_info_t *out)
{
    BEHAVE(gpu_of(processor));
    memset(out, 0, sizeof *out);
    const char *type = GET(processor, "vram_type");
    out->vram_type = (uint32_t)scenario_number(type, 0);
    return type == NULL ? NOT_SUPPORTED : OK;
}

static int vram(Processor processor, unsigned long long *total, unsigned long long *used)
{
    const char *value = GET(processor, "vram");
    return value != NULL && sscanf(value, "%llu %llu", total, used) == 2 ? OK : NOT_SUPPORTED;
}

int amdsmi_get_gpu_memory_total(Processor processor, int type, uint64_t *out)
{
    unsigned long long total = 0, used = 0;
    (void)type;
    BEHAVE(gpu_of(processor));
    int code = vram(processor, &total, &used);
    *out = total;
    return code;
}

int amdsmi_get_gpu_memory_usage(Processor processor, int type, uint64_t *out)
{
    unsigned long long total = 0, used = 0;
    (void)type;
    BEHAVE(gpu_of(processor));
    int code = vram(processor, &total, &used);
    *out = used;
    return code;
}

int amdsmi_get_gpu_vram_usage(Processor processor, struct amdsmi_vram_usage_t *out)
{
    BEHAVE(gpu_of(processor));
    const char *value = GET(processor, "vram_mib");
    if (value == NULL || sscanf(value, "%u %u", &out->vram_total, &out->vram_used) != 2)
        return NOT_SUPPORTED;
    return OK;
}

int amdsmi_get_gpu_activity(Processor processor, struct amdsmi_engine_usage_t *out)
{
    BEHAVE(gpu_of(processor));
    const char *value = GET(processor, "activity");
    out->gfx_activity = (uint32_t)scenario_number(value, 0);
    out->umc_activity = out->mm_activity = 0xffff;
    return value == NULL ? NOT_SUPPORTED : OK;
}

/* Only the first partition of a card sees the table; it has a row per partition and a column per engine. */
int amdsmi_get_gpu_metrics_info(Processor processor, struct amdsmi_gpu_metrics_t *out)
{
    BEHAVE(gpu_of(processor));
    memset(out, 0xff, sizeof *out);
    if (scenario_number(GET(processor, "partition"), 0) != 0)
        return OK;
    for (int row = 0; row < ROWS; row++) {
        const char *values = scenario_get("gpu.%d.xcp.%d", gpu_of(processor), row);
        char *end;
        for (int engine = 0; values != NULL && engine < ENGINES; engine++, values = end) {
            unsigned long long busy = strtoull(values, &end, 10);
            if (end == values)
                break;
            out->xcp_stats[row].gfx_busy_inst[engine] = (uint32_t)busy;
        }
    }
    return OK;
}
