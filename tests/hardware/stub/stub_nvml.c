/* A libnvidia-ml.so.1 for tests: it answers as the file named by STUB_NVML describes. Written from NVML's public
 * interface; it knows nothing of GPUs. Lines of the file:
 *
 *   driver TEXT | cuda NUMBER | count NUMBER          of the system
 *   device                                            the lines below are of the next device
 *   instance PARENT PLACE                             the same for a MIG instance
 *   text KEY VALUE...                                 name, uuid, serial, vbios, busid
 *   set KEY NUMBER...                                 up to eight numbers; what is not set is "not supported"
 *   grow KEY PER_SECOND                               the first number of KEY grows
 *   error KEY CODE                                    KEY is refused with this code
 *   hang KEY PATH                                     KEY does not return while the file exists
 *   lost PATH                                         the device is off the bus while the file exists
 *   xid PATH                                          the file holds a number: an event, taken once
 *   process KIND PID BYTES GI CI SHARE                on the device; BYTES or SHARE -1: not available
 *   missing FUNCTION                                  the library is older: any of our functions refuses as not found
 */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long u64;
enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMED_OUT = 10,
       NO_FUNCTION = 13, LOST = 15, NO_DATA = 21, WRONG_VERSION = 25 };
enum { MOST_ENTRIES = 160, MOST_DEVICES = 40, MOST_PROCESSES = 32 };

typedef struct { char key[48], text[160]; double numbers[8], per_second; int count, error; } Entry;
typedef struct { int kind; unsigned pid, gi, ci; long long bytes; int share; } Process;
typedef struct {
    Entry entries[MOST_ENTRIES]; int entry_count;
    Process processes[MOST_PROCESSES]; int process_count;
    char hang_key[48], hang_path[256], lost_path[256], xid_path[256];
    int parent, place, watched;
} Device;

static Device devices[MOST_DEVICES];
static int device_count, top_count, started, cuda_version;
static char driver_version[64], absent[32][64];
static int absent_count;
static double begun;
static long calls;

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }

static Entry *entry(Device *d, const char *key, int make) {
    for (int i = 0; i < d->entry_count; i++) if (!strcmp(d->entries[i].key, key)) return &d->entries[i];
    if (!make || d->entry_count == MOST_ENTRIES) return NULL;
    Entry *e = &d->entries[d->entry_count++];
    memset(e, 0, sizeof *e); snprintf(e->key, sizeof e->key, "%.47s", key);
    return e;
}

static void read_line(char *line) {
    char word[64], key[64]; int at = 0;
    Device *d = device_count ? &devices[device_count - 1] : NULL;
    if (sscanf(line, "%63s%n", word, &at) != 1) return;
    char *rest = line + at; while (*rest == ' ') rest++;
    rest[strcspn(rest, "\n")] = 0;
    if (!strcmp(word, "driver")) { snprintf(driver_version, sizeof driver_version, "%s", rest); return; }
    if (!strcmp(word, "cuda")) { cuda_version = atoi(rest); return; }
    if (!strcmp(word, "missing")) { snprintf(absent[absent_count++], 64, "%.63s", rest); return; }
    if (!strcmp(word, "device") || !strcmp(word, "instance")) {
        d = &devices[device_count++]; d->parent = -1;
        if (word[0] == 'i') sscanf(rest, "%d %d", &d->parent, &d->place); else top_count++;
        return;
    }
    if (!strcmp(word, "process")) {
        Process *p = &d->processes[d->process_count++]; char kind[16];
        sscanf(rest, "%15s %u %lld %u %u %d", kind, &p->pid, &p->bytes, &p->gi, &p->ci, &p->share);
        p->kind = kind[0];
        return;
    }
    if (!strcmp(word, "lost")) { snprintf(d->lost_path, 256, "%.255s", rest); return; }
    if (!strcmp(word, "xid")) { snprintf(d->xid_path, 256, "%.255s", rest); return; }
    if (sscanf(rest, "%63s%n", key, &at) != 1) return;
    rest += at; while (*rest == ' ') rest++;
    if (!strcmp(word, "hang")) { snprintf(d->hang_key, 48, "%.47s", key); snprintf(d->hang_path, 256, "%.255s", rest); return; }
    Entry *e = entry(d, key, 1);
    if (!strcmp(word, "text")) snprintf(e->text, sizeof e->text, "%.159s", rest);
    else if (!strcmp(word, "grow")) e->per_second = atof(rest);
    else if (!strcmp(word, "error")) e->error = atoi(rest);
    else if (!strcmp(word, "set"))
        for (char *number = strtok(rest, " "); number && e->count < 8; number = strtok(NULL, " "))
            e->numbers[e->count++] = strtod(number, NULL);
}

static int load(void) {
    const char *path = getenv("STUB_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return 9; /* driver not loaded */
    char line[512];
    device_count = top_count = absent_count = 0; memset(devices, 0, sizeof devices);
    while (fgets(line, sizeof line, file)) read_line(line);
    fclose(file); begun = now(); started = 1;
    return OK;
}

static int gone(const char *function) {
    for (int i = 0; i < absent_count; i++) if (!strcmp(absent[i], function)) return 1;
    return 0;
}

static Device *card_of(Device *d) { return d->parent >= 0 ? &devices[d->parent] : d; }

/* Every question passes here: is the device there, does it hang, is the key refused or not known at all. */
static int ask(Device *d, const char *key, Entry **found) {
    calls++;
    if (!started) return UNINITIALIZED;
    if (!d) return INVALID;
    Device *card = card_of(d);
    while (!strcmp(card->hang_key, key) && !access(card->hang_path, F_OK)) usleep(5000);
    if (*card->lost_path && !access(card->lost_path, F_OK)) return LOST;
    Entry *e = entry(d, key, 0);
    if (!e) return UNSUPPORTED;
    if (e->error) return e->error;
    *found = e;
    return OK;
}

static double number(Entry *e, int place) {
    return e->numbers[place] + (place == 0 ? floor(e->per_second * (now() - begun)) : 0);
}

/* -- the system ---------------------------------------------------------------------------------------------------- */

int nvmlInitWithFlags(unsigned flags) { (void)flags; return load(); }
int nvmlInit_v2(void) { return load(); }
int nvmlShutdown(void) { started = 0; return OK; }
const char *nvmlErrorString(int code) {
    switch (code) {
        case OK: return "Success"; case UNINITIALIZED: return "Uninitialized"; case INVALID: return "Invalid Argument";
        case UNSUPPORTED: return "Not Supported"; case 4: return "Insufficient Permissions"; case NOT_FOUND: return "Not Found";
        case 9: return "Driver Not Loaded"; case TIMED_OUT: return "Timeout"; case NO_FUNCTION: return "Function Not Found";
        case LOST: return "GPU is lost"; case 999: return "Unknown Error"; default: return "Error";
    }
}
int nvmlSystemGetDriverVersion(char *out, unsigned size) { snprintf(out, size, "%s", driver_version); return OK; }
int nvmlSystemGetNVMLVersion(char *out, unsigned size) { snprintf(out, size, "%s", driver_version); return OK; }
int nvmlSystemGetCudaDriverVersion(int *out) { *out = cuda_version; return OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { *out = cuda_version; return OK; }
long stub_calls(void) { return calls; }

int nvmlDeviceGetCount_v2(unsigned *out) { *out = top_count; return started ? OK : UNINITIALIZED; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **out) {
    for (int i = 0; i < device_count; i++)
        if (devices[i].parent < 0 && index-- == 0) {
            Entry *e = NULL; int refused = ask(&devices[i], "handle", &e);
            if (refused && refused != UNSUPPORTED) return refused;
            *out = &devices[i];
            return OK;
        }
    return INVALID;
}
int nvmlDeviceGetIndex(Device *d, unsigned *out) {
    unsigned index = 0;
    for (Device *each = devices; each < d; each++) index += each->parent < 0;
    *out = index;
    return OK;
}

/* -- texts and single numbers -------------------------------------------------------------------------------------- */

static int text(Device *d, const char *key, char *out, unsigned size) {
    Entry *e = NULL; int refused = ask(d, key, &e);
    if (!refused) snprintf(out, size, "%s", e->text);
    return refused;
}
#define TEXT(function, key) int function(Device *d, char *out, unsigned size) { return text(d, key, out, size); }
TEXT(nvmlDeviceGetName, "name") TEXT(nvmlDeviceGetUUID, "uuid") TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")

#define ONE(function, key, type) int function(Device *d, type *out) { \
    Entry *e = NULL; if (gone(#function)) return NO_FUNCTION; \
    int refused = ask(d, key, &e); if (!refused) *out = (type)number(e, 0); return refused; }
#define TWO(function, key) int function(Device *d, unsigned *a, unsigned *b) { \
    Entry *e = NULL; if (gone(#function)) return NO_FUNCTION; \
    int refused = ask(d, key, &e); if (!refused) { *a = number(e, 0); *b = number(e, 1); } return refused; }
#define OF(function, prefix, type) int function(Device *d, int which, type *out) { \
    char key[48]; snprintf(key, sizeof key, prefix "%d", which); Entry *e = NULL; if (gone(#function)) return NO_FUNCTION; \
    int refused = ask(d, key, &e); if (!refused) *out = (type)number(e, 0); return refused; }
ONE(nvmlDeviceGetPowerUsage, "power", unsigned) ONE(nvmlDeviceGetTotalEnergyConsumption, "energy", u64)
ONE(nvmlDeviceGetCurrentClocksEventReasons, "reasons", u64) ONE(nvmlDeviceGetCurrentClocksThrottleReasons, "reasons", u64)
ONE(nvmlDeviceGetPerformanceState, "pstate", int) ONE(nvmlDeviceGetPowerState, "pstate", int)
ONE(nvmlDeviceGetCurrPcieLinkGeneration, "gen", unsigned)
ONE(nvmlDeviceGetCurrPcieLinkWidth, "width", unsigned) ONE(nvmlDeviceGetMaxPcieLinkGeneration, "gen_max", unsigned)
ONE(nvmlDeviceGetGpuMaxPcieLinkGeneration, "gen_device_max", unsigned) ONE(nvmlDeviceGetMaxPcieLinkWidth, "width_max", unsigned)
ONE(nvmlDeviceGetPcieReplayCounter, "replays", unsigned) ONE(nvmlDeviceGetEnforcedPowerLimit, "limit", unsigned)
ONE(nvmlDeviceGetPowerManagementLimit, "limit_set", unsigned) ONE(nvmlDeviceGetPowerManagementDefaultLimit, "limit_default", unsigned)
ONE(nvmlDeviceGetNumFans, "fans", unsigned) ONE(nvmlDeviceGetFanSpeed, "fan0", unsigned)
ONE(nvmlDeviceGetComputeMode, "compute_mode", int) ONE(nvmlDeviceGetPersistenceMode, "persistence", int)
ONE(nvmlDeviceGetRetiredPagesPendingStatus, "pages_pending", int) ONE(nvmlDeviceGetArchitecture, "architecture", unsigned)
ONE(nvmlDeviceGetNumaNodeId, "numa", unsigned) ONE(nvmlDeviceGetMaxMigDeviceCount, "mig_most", unsigned)
ONE(nvmlDeviceGetGpuInstanceId, "gi", unsigned) ONE(nvmlDeviceGetComputeInstanceId, "ci", unsigned)
ONE(nvmlDeviceGetNumGpuCores, "cores", unsigned) ONE(nvmlDeviceGetBrand, "brand", int) ONE(nvmlDeviceGetMinorNumber, "minor", unsigned)
ONE(nvmlDeviceGetDisplayActive, "display", int) ONE(nvmlDeviceGetDisplayMode, "display", int)
ONE(nvmlDeviceGetMemoryBusWidth, "bus_width", unsigned)
TWO(nvmlDeviceGetUtilizationRates_, "utilization") TWO(nvmlDeviceGetEncoderUtilization, "encoder")
TWO(nvmlDeviceGetDecoderUtilization, "decoder") TWO(nvmlDeviceGetJpgUtilization, "jpeg") TWO(nvmlDeviceGetOfaUtilization, "ofa")
TWO(nvmlDeviceGetPowerManagementLimitConstraints, "limits") TWO(nvmlDeviceGetEccMode, "ecc") TWO(nvmlDeviceGetMigMode, "mig")
TWO(nvmlDeviceGetCudaComputeCapability, "capability")
OF(nvmlDeviceGetClockInfo, "clock", unsigned) OF(nvmlDeviceGetMaxClockInfo, "clock_max", unsigned)
OF(nvmlDeviceGetApplicationsClock, "clock_app", unsigned) OF(nvmlDeviceGetTemperature, "temperature", unsigned)
OF(nvmlDeviceGetTemperatureThreshold, "threshold", unsigned) OF(nvmlDeviceGetFanSpeed_v2, "fan", unsigned)
OF(nvmlDeviceGetNvLinkState, "link", unsigned) OF(nvmlDeviceGetPcieThroughput, "throughput", unsigned)
int nvmlDeviceGetUtilizationRates(Device *d, unsigned out[2]) { return nvmlDeviceGetUtilizationRates_(d, out, out + 1); }
int nvmlDeviceGetTotalEccErrors(Device *d, int kind, int span, u64 *out) {
    char key[48]; snprintf(key, sizeof key, "ecc%d%d", kind, span); Entry *e = NULL;
    int refused = ask(d, key, &e); if (!refused) *out = number(e, 0); return refused;
}
typedef struct { unsigned version; int value; } Margin;
int nvmlDeviceGetMarginTemperature(Device *d, Margin *out) {
    if (out->version != 0x1000008) return WRONG_VERSION;
    Entry *e = NULL; int refused = ask(d, "margin", &e); if (!refused) out->value = number(e, 0); return refused;
}
typedef struct { unsigned version; int sensor, value; } Sensor;
int nvmlDeviceGetTemperatureV(Device *d, Sensor *out) {
    if (out->version != 0x100000C) return WRONG_VERSION;
    Entry *e = NULL; int refused = ask(d, "temperature0", &e); if (!refused) out->value = number(e, 0); return refused;
}
typedef struct { unsigned version, fan, speed; } Fan;
int nvmlDeviceGetFanSpeedRPM(Device *d, Fan *out) {
    if (out->version != 0x100000C) return WRONG_VERSION;
    Entry *e = NULL; int refused = ask(d, "fan_rpm", &e); if (!refused) out->speed = number(e, 0); return refused;
}
int nvmlDeviceGetRemappedRows(Device *d, unsigned *a, unsigned *b, unsigned *c, unsigned *f) {
    Entry *e = NULL; int refused = ask(d, "rows", &e);
    if (!refused) { *a = number(e, 0); *b = number(e, 1); *c = number(e, 2); *f = number(e, 3); }
    return refused;
}
int nvmlDeviceGetRetiredPages(Device *d, int cause, unsigned *count, u64 *pages) {
    char key[48]; snprintf(key, sizeof key, "pages%d", cause); Entry *e = NULL;
    int refused = ask(d, key, &e); if (refused) return refused;
    unsigned there = number(e, 0);
    if (*count < there) { *count = there; return TOO_SMALL; }
    for (unsigned i = 0; i < there; i++) pages[i] = 4096 * i;
    *count = there;
    return OK;
}

/* -- structures ---------------------------------------------------------------------------------------------------- */

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char busid[32]; } Pci;
int nvmlDeviceGetPciInfo_v3(Device *d, Pci *out) {
    Entry *e = NULL, *bus = NULL; int refused = ask(d, "pci", &e); if (refused) return refused;
    memset(out, 0, sizeof *out); out->id = number(e, 0); out->subsystem = number(e, 1);
    if ((bus = entry(d, "busid", 0))) snprintf(out->busid, 32, "%.31s", bus->text);
    return OK;
}
typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned version; u64 total, reserved, free, used; } MemoryV2;
int nvmlDeviceGetMemoryInfo(Device *d, Memory *out) {
    Entry *e = NULL; int refused = ask(d, "memory", &e); if (refused) return refused;
    u64 total = number(e, 0), reserved = number(e, 1), used = number(e, 2);
    out->total = total; out->used = used + reserved; out->free = total - used - reserved;
    return OK;
}
int nvmlDeviceGetMemoryInfo_v2(Device *d, MemoryV2 *out) {
    if (gone("nvmlDeviceGetMemoryInfo_v2")) return NO_FUNCTION;
    if (out->version != 0x2000028) return WRONG_VERSION;
    Entry *e = NULL; int refused = ask(d, "memory", &e); if (refused) return refused;
    out->total = number(e, 0); out->reserved = number(e, 1); out->used = number(e, 2);
    out->free = out->total - out->reserved - out->used;
    return OK;
}
int nvmlDeviceGetBAR1MemoryInfo(Device *d, Memory *out) {
    Entry *e = NULL; int refused = ask(d, "bar1", &e); if (refused) return refused;
    out->total = number(e, 0); out->used = number(e, 1); out->free = out->total - out->used;
    return OK;
}
typedef struct { unsigned sms, copy, decode, encode, jpeg, ofa, gpu_slices, compute_slices; u64 megabytes; } Attributes;
int nvmlDeviceGetAttributes_v2(Device *d, Attributes *out) {
    Entry *e = NULL; int refused = ask(d, "attributes", &e); if (refused) return refused;
    memset(out, 0, sizeof *out); out->sms = number(e, 0); out->gpu_slices = number(e, 1);
    out->compute_slices = number(e, 2); out->megabytes = number(e, 3);
    return OK;
}
int nvmlDeviceGetCpuAffinity(Device *d, unsigned words, u64 *out) {
    Entry *e = NULL; int refused = ask(d, "affinity", &e); if (refused) return refused;
    memset(out, 0, words * sizeof *out); out[0] = number(e, 0);
    return OK;
}
typedef struct { unsigned field, scope; long long at, latency; int type, status; union { double d; unsigned u; u64 l; } value; } Field;
int nvmlDeviceGetFieldValues(Device *d, int count, Field *fields) {
    Entry *e = NULL;
    if (gone("nvmlDeviceGetFieldValues")) return NO_FUNCTION;
    int refused = ask(d, "fields", &e); if (refused && refused != UNSUPPORTED) return refused;
    for (int i = 0; i < count; i++) {
        char key[48];
        snprintf(key, sizeof key, fields[i].scope == 0xFFFFFFFF || !fields[i].scope ? "field%u" : "field%u.%u",
                 fields[i].field, fields[i].scope);
        fields[i].status = ask(d, key, &e);
        fields[i].type = 3;
        if (fields[i].status == OK) {
            if (e->count > 1) fields[i].type = e->numbers[1];
            if (fields[i].type == 0) fields[i].value.d = number(e, 0);
            else if (fields[i].type == 1) fields[i].value.u = number(e, 0);
            else fields[i].value.l = number(e, 0);
        }
    }
    return OK;
}

/* -- processes ----------------------------------------------------------------------------------------------------- */

typedef struct { unsigned pid; u64 bytes; unsigned gi, ci; } Running;
static int running(Device *d, int kind, unsigned *count, Running *out) {
    Entry *e = NULL; int refused = ask(d, "processes", &e); if (refused) return refused;
    unsigned there = 0;
    for (int i = 0; i < d->process_count; i++) there += d->processes[i].kind == kind;
    if (*count < there) { *count = there; return TOO_SMALL; }
    *count = 0;
    for (int i = 0; i < d->process_count; i++) {
        Process *p = &d->processes[i];
        if (p->kind == kind) out[(*count)++] = (Running){p->pid, (u64)p->bytes, p->gi, p->ci};
    }
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Device *d, unsigned *n, Running *out) {
    return gone(__func__) ? NO_FUNCTION : running(d, 'c', n, out);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(Device *d, unsigned *n, Running *out) {
    return gone(__func__) ? NO_FUNCTION : running(d, 'g', n, out);
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(Device *d, unsigned *n, Running *out) { return running(d, 'm', n, out); }
typedef struct { unsigned pid; u64 at; unsigned sm, memory, encoder, decoder; } Share;
int nvmlDeviceGetProcessUtilization(Device *d, Share *out, unsigned *count, u64 since) {
    Entry *e = NULL; int refused = ask(d, "shares", &e); if (refused) return refused;
    unsigned there = 0;
    for (int i = 0; i < d->process_count; i++) there += d->processes[i].share >= 0;
    if (!there) { *count = 0; return NOT_FOUND; }
    if (!out || *count < there) { *count = there; return TOO_SMALL; }
    *count = 0;
    for (int i = 0; i < d->process_count; i++)
        if (d->processes[i].share >= 0)
            out[(*count)++] = (Share){d->processes[i].pid, since + 1000000, d->processes[i].share, 5, 0, 0};
    return OK;
}

/* -- MIG, performance counters, events ----------------------------------------------------------------------------- */

int nvmlDeviceGetMigDeviceHandleByIndex(Device *d, unsigned place, Device **out) {
    for (int i = 0; i < device_count; i++)
        if (devices[i].parent >= 0 && &devices[devices[i].parent] == d && devices[i].place == (int)place) {
            *out = &devices[i];
            return OK;
        }
    return NOT_FOUND;
}
int nvmlDeviceIsMigDeviceHandle(Device *d, unsigned *out) { *out = d->parent >= 0; return OK; }
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device *d, Device **out) { *out = card_of(d); return OK; }

typedef struct { double at; Device *of; unsigned instance; } Sample;
typedef struct { unsigned id; int status; double value; const char *names[3]; } Metric;
typedef struct { unsigned version, count; Sample *first, *second; Metric metrics[]; } Metrics;
typedef struct { unsigned version, supported; } Support;
int nvmlGpmQueryDeviceSupport(Device *d, Support *out) {
    if (out->version != 1) return WRONG_VERSION;
    Entry *e = NULL; int refused = ask(d, "gpm", &e);
    if (refused && refused != UNSUPPORTED) return refused;
    out->supported = refused == OK;
    return OK;
}
int nvmlGpmSampleAlloc(Sample **out) { *out = calloc(1, sizeof **out); return OK; }
int nvmlGpmSampleFree(Sample *sample) { free(sample); return OK; }
int nvmlGpmSampleGet(Device *d, Sample *out) {
    Entry *e = NULL; int refused = ask(d, "gpm", &e);
    if (!refused) *out = (Sample){now(), d, 0xFFFFFFFF};
    return refused;
}
int nvmlGpmMigSampleGet(Device *d, unsigned instance, Sample *out) {
    int refused = nvmlGpmSampleGet(d, out); out->instance = instance; return refused;
}
int nvmlGpmMetricsGet(Metrics *request) {
    if (request->version != 1) return WRONG_VERSION;
    Sample *a = request->first, *b = request->second;
    if (!a || !b || !a->of || a->of != b->of || a->instance != b->instance || b->at <= a->at) return INVALID;
    for (unsigned i = 0; i < request->count; i++) {
        char key[48]; Entry *e = NULL; Metric *m = &request->metrics[i];
        if (a->instance == 0xFFFFFFFF) snprintf(key, sizeof key, "gpm%u", m->id);
        else snprintf(key, sizeof key, "gpm%u.%u", m->id, a->instance);
        m->status = ask(a->of, key, &e);
        m->value = m->status ? 0 : number(e, 0);
    }
    return OK;
}

typedef struct { Device *device; u64 type, data; unsigned gi, ci; } Event;
int nvmlEventSetCreate(int **out) { *out = malloc(sizeof **out); return OK; }
int nvmlEventSetFree(int *set) { free(set); return OK; }
int nvmlDeviceRegisterEvents(Device *d, u64 types, int *set) {
    (void)set; Entry *e = NULL; int refused = ask(d, "events", &e);
    if (!refused) d->watched = (types & 8) != 0;
    return refused;
}
int nvmlEventSetWait_v2(int *set, Event *out, unsigned timeout_ms) {
    (void)set;
    int expected = 0;
    for (int i = 0; i < device_count; i++) expected |= *devices[i].xid_path;
    /* A driver sleeps until something happens; where nothing can, so do we. */
    for (double end = now() + timeout_ms * 1e-3; now() < end && started; usleep(expected ? 5000 : timeout_ms * 1000))
        for (int i = 0; i < device_count; i++) {
            FILE *file = devices[i].watched && *devices[i].xid_path ? fopen(devices[i].xid_path, "r") : NULL;
            if (!file) continue;
            u64 code = 0; int got = fscanf(file, "%llu", &code); fclose(file);
            if (got != 1) continue;
            remove(devices[i].xid_path);
            *out = (Event){&devices[i], 8, code, 0xFFFFFFFF, 0xFFFFFFFF};
            return OK;
        }
    return TIMED_OUT;
}
