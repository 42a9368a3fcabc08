/*
 * A stand-in for the CUDA driver's library, for tests: the calls that src/ffi/cuda.rs makes, with kernels that run on the host.
 * It is never packaged. What it says of speed says nothing of a GPU.
 *
 * A stream is a thread that takes its work in order. Device pointers are host pointers moved by MOVED, so that who mixes the two
 * up crashes. A kernel is known by its name, which must be an .entry of the PTX that was loaded; what it does is written here
 * once more, plainly, from src/gpu/cuda/knet_ring.h.
 *
 * Faults stand in the file beside the library, its name with ".faults", one `key=value` or `key=value@N` a line: the fault holds
 * from the N-th time on (1). A value for calls is the code that they return.
 *   init, count, version, major, context, load, function, alloc, fill, upload, download, register, stream, launch, query, wait, graph   as the
 *   calls
 *   refuse=C@N  the N-th registration says C
 *   processors, fit   multiprocessors, and blocks that fit on one of them
 *   link, linkadd, linkend   as cuLinkCreate, cuLinkAddData, cuLinkComplete
 *   ptx=75      the newest PTX version
 *   hang=1@N    the N-th batch does not end until a file with the ending ".go" is there
 *   hanguser=1@N   the same of the N-th batch of the kernel user
 *   slow=MS     each batch takes so many milliseconds
 *   state=W@N   the N-th batch ends with W in its state word
 *   error=E@N   the N-th batch ends with KNET_ERROR and E
 *   blank=1@N   the N-th batch leaves its results unwritten
 *   crash=C@N   the N-th batch never ends, and from then on every call says C
 * Payload must lie in memory that was registered or taken of the device, else its batch ends with KNET_ERROR and ELSEWHERE; no page can be
 * registered twice.
 * Whoever takes memory, code or a stream while a persistent kernel or a wait is on the GPU waits for its end, as a real driver lets
 * him, and is told HELD_UP after a while.
 *   block, blockwait, blockgraph, blockquery=1@N   the N-th launch, wait, launch of a graph, question does not return until
 *               the file ".go" is there
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../src/gpu/cuda/knet_ring.h"

#ifdef STANDIN_EMULATES
/* The kernels are those of src/gpu/cuda, under the emulator of tests/simt, which knows host pointers only. */
#define MOVED 0ull
int knet_simt_launch(const char *name, unsigned blocks, unsigned threads, void *argument, uint64_t seed);
#else
#define MOVED (1ull << 56)
#endif
#define HOST(type, pointer) ((type *)(uintptr_t)((pointer)-MOVED))
#define DEVICE(pointer) ((uint64_t)(uintptr_t)(pointer) + MOVED)

/* ---- faults ---- */

struct fault {
    char key[32];
    long value, from;
    atomic_long seen;
};
static struct fault faults[32];
static int fault_count;
static char base[4096];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_int sticky;

static void read_faults(void) {
    Dl_info info;
    if (!dladdr((void *)read_faults, &info))
        abort();
    snprintf(base, sizeof base - 16, "%s", info.dli_fname);
    char name[4200], line[256];
    snprintf(name, sizeof name, "%s.faults", base);
    FILE *file = fopen(name, "r");
    while (file && fault_count < 32 && fgets(line, sizeof line, file)) {
        struct fault *fault = &faults[fault_count];
        fault->from = 1;
        if (sscanf(line, "%31[a-z]=%ld@%ld", fault->key, &fault->value, &fault->from) >= 2)
            fault_count++;
    }
    if (file)
        fclose(file);
}

/* What a fault says this time; `none` when there is none. */
static long fault(const char *key, long none) {
    pthread_once(&once, read_faults);
    for (int at = 0; at < fault_count; at++) {
        if (strcmp(faults[at].key, key) == 0) {
            long seen = atomic_fetch_add(&faults[at].seen, 1) + 1;
            return seen >= faults[at].from ? faults[at].value : none;
        }
    }
    return none;
}

/* As `fault`, the N-th time only; a key may stand there several times. */
static long once_fault(const char *key, long none) {
    pthread_once(&once, read_faults);
    long value = none;
    for (int at = 0; at < fault_count; at++) {
        if (strcmp(faults[at].key, key) == 0) {
            long seen = atomic_fetch_add(&faults[at].seen, 1) + 1;
            value = seen == faults[at].from ? faults[at].value : value;
        }
    }
    return value;
}

static int said(const char *key) {
    int code = atomic_load(&sticky);
    return code ? code : (int)fault(key, 0);
}

/* Kernels that stay and waits that have not passed. */
static atomic_int residents;
#define HELD_UP 9001

/* As `said` for a call that a real driver does not carry out beside a resident. */
static int taken(const char *key) {
    for (int look = 0; atomic_load(&residents) > 0 && !atomic_load(&sticky) && look < 500; look++)
        usleep(1000);
    return atomic_load(&residents) > 0 && !atomic_load(&sticky) ? HELD_UP : said(key);
}

static void wait_for_go(void) {
    char name[4200];
    snprintf(name, sizeof name, "%s.go", base);
    /* A test that is over has taken the library away. */
    while (access(name, F_OK) != 0 && access(base, F_OK) == 0)
        usleep(500);
}

/* ---- kernels ---- */

struct edge {
    knet_u32 from, to;
};

static knet_u32 find(const unsigned char *params, const struct knet_automaton *machine, int any_case, const unsigned char *bytes,
                     knet_u32 len, knet_u64 *state, knet_u64 *count) {
    if (machine->states <= 1)
        return 0;
    const struct edge *edges = (const void *)(params + machine->edges_at);
    const knet_u32 *fail = (const void *)(params + machine->fail_at), *found = (const void *)(params + machine->found_at);
    knet_u32 first = 0, at = (knet_u32)*state;
    for (knet_u32 place = 0; place < len; place++) {
        knet_u32 byte = bytes[place];
        if (any_case && byte >= 'A' && byte <= 'Z')
            byte += 'a' - 'A';
        while (edges[at + byte].from != at && at != 0)
            at = fail[at];
        at = edges[at + byte].from == at ? edges[at + byte].to & 0x7fffffffu : 0;
        if (found[at]) {
            ++*count;
            first = first ? first : found[at];
        }
    }
    *state = at;
    return first;
}

static void pattern(const unsigned char *params, const struct knet_packet *packet, struct knet_result *result) {
    const struct knet_pattern_params *machines = (const void *)params;
    const unsigned char *bytes = HOST(unsigned char, packet->addr);
    knet_u64 count = 0;
    knet_u32 exact = find(params, &machines->exact, 0, bytes, packet->len, &result->state[0], &count);
    knet_u32 any_case = find(params, &machines->any_case, 1, bytes, packet->len, &result->state[1], &count);
    knet_u32 first = exact ? exact : any_case;
    result->aux = count;
    result->value = first ? first - 1 : 0;
    result->verdict = first ? KNET_MATCH : KNET_PASS;
}

static void crc32c(const struct knet_packet *packet, struct knet_result *result) {
    const unsigned char *bytes = HOST(unsigned char, packet->addr);
    knet_u32 crc = ~(knet_u32)packet->state[0];
    for (knet_u32 at = 0; at < packet->len; at++) {
        crc ^= bytes[at];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    result->state[0] = result->aux = ~crc;
    result->verdict = KNET_PASS;
}

static void stats(const struct knet_packet *packet, struct knet_result *result) {
    const unsigned char *bytes = HOST(unsigned char, packet->addr);
    knet_u32 histogram[256] = {0}, printable = 0;
    for (knet_u32 at = 0; at < packet->len; at++) {
        histogram[bytes[at]]++;
        printable += bytes[at] >= 0x20 && bytes[at] <= 0x7e;
    }
    double bits = 0;
    for (int at = 0; at < 256; at++)
        if (histogram[at])
            bits -= (double)histogram[at] / packet->len * log2((double)histogram[at] / packet->len);
    /* In the last places it differs from the kernel, which knows no fractions. */
    result->value = (knet_u32)(bits * 65536);
    result->aux = printable | (knet_u64)(packet->len >= 512 && bits >= 7.2) << 32;
    result->verdict = KNET_PASS;
}

#define ROUND(a, b, c, d) \
    (x[a] += x[b], x[d] = (x[d] ^ x[a]) << 16 | (x[d] ^ x[a]) >> 16, x[c] += x[d], x[b] = (x[b] ^ x[c]) << 12 | (x[b] ^ x[c]) >> 20, \
     x[a] += x[b], x[d] = (x[d] ^ x[a]) << 8 | (x[d] ^ x[a]) >> 24, x[c] += x[d], x[b] = (x[b] ^ x[c]) << 7 | (x[b] ^ x[c]) >> 25)

static void chacha20(const unsigned char *params, const struct knet_packet *packet, struct knet_result *result) {
    const struct knet_chacha20_params *key = (const void *)params;
    unsigned char *bytes = HOST(unsigned char, packet->addr);
    if (packet->offset + packet->len > 1ull << 38) {
        result->verdict = KNET_FAILED;
        return;
    }
    for (knet_u32 at = 0; at < packet->len;) {
        knet_u64 offset = packet->offset + at;
        knet_u32 in[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574}, x[16];
        memcpy(in + 4, key->key, 32);
        in[12] = (knet_u32)(offset / 64);
        memcpy(in + 13, packet->ends, 12);
        memcpy(x, in, sizeof x);
        for (int round = 0; round < 10; round++) {
            ROUND(0, 4, 8, 12), ROUND(1, 5, 9, 13), ROUND(2, 6, 10, 14), ROUND(3, 7, 11, 15);
            ROUND(0, 5, 10, 15), ROUND(1, 6, 11, 12), ROUND(2, 7, 8, 13), ROUND(3, 4, 9, 14);
        }
        for (int word = 0; word < 16; word++)
            x[word] += in[word];
        for (knet_u32 in_block = offset % 64; in_block < 64 && at < packet->len; in_block++, at++)
            bytes[at] ^= ((unsigned char *)x)[in_block];
    }
    result->verdict = KNET_PASS;
}

/* docs/examples/count_zeros.cu, which is what the tests link. */
static void user(const struct knet_packet *packet, struct knet_result *result) {
    const unsigned char *bytes = HOST(unsigned char, packet->addr);
    knet_u32 zeros = 0;
    for (knet_u32 at = 0; at < packet->len; at++)
        zeros += bytes[at] == 0;
    result->aux = result->state[0] = packet->state[0] + zeros;
    result->value = zeros;
    /* For the tests: a first byte of 0xf0 and more asks for the verdict in its lower half. */
    result->verdict = bytes[0] >= 0xf0 ? bytes[0] & 15 : zeros * 4 > packet->len ? KNET_MATCH : KNET_PASS;
    if (result->verdict == KNET_NOT_WRITTEN || result->verdict > KNET_FAILED)
        result->verdict = KNET_FAILED;
}

/* Memory that kernels may look at, as the host calls it. */
static struct {
    uintptr_t begin, end;
} reached[8192];
static atomic_int reached_count;
#define ELSEWHERE 7777
#define REGISTERED_BEFORE 712

static int reaches(uintptr_t begin, size_t bytes) {
    for (int at = 0; at < atomic_load(&reached_count); at++)
        if (reached[at].begin <= begin && begin + bytes <= reached[at].end)
            return 1;
    return 0;
}
static int reach(const void *memory, size_t bytes) {
    uintptr_t begin = (uintptr_t)memory, end = begin + bytes;
    int count = atomic_load(&reached_count);
    for (int at = 0; at < count; at++)
        if (begin < reached[at].end && reached[at].begin < end)
            return REGISTERED_BEFORE;
    if (count == sizeof reached / sizeof *reached)
        return 2;
    reached[count].begin = begin, reached[count].end = end;
    return atomic_store(&reached_count, count + 1), 0;
}

static void finish(struct knet_batch *batch, knet_u32 status) {
    __atomic_store_n(&batch->status, status, __ATOMIC_RELEASE);
}

/* Works on a batch that is ready. */
static void run_batch(const char *name, struct knet_batch *batch) {
    long slow = fault("slow", 0);
    if (slow)
        usleep(slow * 1000);
    long crash = once_fault("crash", 0);
    if (crash) {
        atomic_store(&sticky, (int)crash);
        return;
    }
    if (once_fault("hang", 0) || (strstr(name, "_user_") && once_fault("hanguser", 0)))
        wait_for_go();
    long error = once_fault("error", 0), state = once_fault("state", -1), blank = once_fault("blank", 0);
    if (batch->abi != KNET_RING_ABI) {
        batch->error = KNET_ERROR_ABI;
        return finish(batch, KNET_ERROR);
    }
    for (knet_u32 at = 0; at < batch->count && !blank && !error; at++) {
        const struct knet_packet *packet = HOST(struct knet_packet, batch->packets) + at;
        struct knet_result *result = HOST(struct knet_result, batch->results) + at;
        const unsigned char *params = batch->params ? HOST(unsigned char, batch->params) : 0;
        memcpy(result->state, packet->state, sizeof result->state);
        if (!reaches((uintptr_t)HOST(char, packet->addr), packet->len))
            error = ELSEWHERE;
        else if (strstr(name, "_pattern_"))
            pattern(params, packet, result);
        else if (strstr(name, "_crc32c_"))
            crc32c(packet, result);
        else if (strstr(name, "_stats_"))
            stats(packet, result);
        else if (strstr(name, "_chacha20_"))
            chacha20(params, packet, result);
        else if (strstr(name, "_user_"))
            user(packet, result);
        else
            result->verdict = KNET_FAILED;
    }
    batch->error = (knet_u32)error;
    finish(batch, state >= 0 ? (knet_u32)state : error ? KNET_ERROR : KNET_DONE);
}

static void persistent(const char *name, struct knet_ring *ring) {
    for (knet_u32 slot = 0;; slot = (slot + 1) % ring->slots) {
        struct knet_batch *batch = (void *)(HOST(char, ring->batches) + slot * ring->stride);
        while (__atomic_load_n(&batch->status, __ATOMIC_ACQUIRE) != KNET_READY) {
            __atomic_fetch_add(&ring->heartbeat, 1, __ATOMIC_RELAXED);
            if (__atomic_load_n(&ring->quit, __ATOMIC_ACQUIRE) || atomic_load(&sticky)) {
                atomic_fetch_sub(&residents, 1);
                __atomic_store_n(&ring->ended, 1, __ATOMIC_RELEASE);
                return;
            }
            usleep(20);
        }
        run_batch(name, batch);
    }
}

/* ---- streams ---- */

struct kernel {
    char name[64];
};
struct work {
    enum { WAIT, KERNEL } what;
    uint64_t address, argument;
    uint32_t value, blocks, threads;
    struct kernel *kernel;
    struct work *next;
};
struct stream {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct work *first, **last;
    int busy;
};
struct graph {
    struct work *first, **last;
};

static int stays(const struct work *work) { return work->what == WAIT || strstr(work->kernel->name, "_persistent") != 0; }

static void run(struct work *work) {
    if (work->what == WAIT) {
        while (__atomic_load_n(HOST(uint32_t, work->address), __ATOMIC_ACQUIRE) != work->value && !atomic_load(&sticky))
            usleep(20);
        atomic_fetch_sub(&residents, 1);
        return;
    }
    if (atomic_load(&sticky))
        return;
#ifdef STANDIN_EMULATES
    static uint64_t seed;
    if (knet_simt_launch(work->kernel->name, work->blocks, work->threads, HOST(void, work->argument), seed++))
        atomic_store(&sticky, 700);
    atomic_fetch_sub(&residents, stays(work));
    return;
#endif
    if (strstr(work->kernel->name, "_persistent"))
        return persistent(work->kernel->name, HOST(struct knet_ring, work->argument));
    struct knet_batch *batch = HOST(struct knet_batch, work->argument);
    if (__atomic_load_n(&batch->status, __ATOMIC_ACQUIRE) == KNET_READY)
        run_batch(work->kernel->name, batch);
}

static void *serve(void *of) {
    struct stream *stream = of;
    pthread_mutex_lock(&stream->lock);
    for (;;) {
        while (!stream->first)
            pthread_cond_wait(&stream->more, &stream->lock);
        struct work *work = stream->first;
        stream->busy = 1;
        stream->first = work->next;
        if (!stream->first)
            stream->last = &stream->first;
        pthread_mutex_unlock(&stream->lock);
        run(work);
        free(work);
        pthread_mutex_lock(&stream->lock);
        stream->busy = stream->first != 0;
    }
    return 0;
}

static void put(struct stream *stream, struct work work) {
    struct work *copy = malloc(sizeof *copy);
    *copy = work;
    copy->next = 0;
    atomic_fetch_add(&residents, stays(copy));
    pthread_mutex_lock(&stream->lock);
    *stream->last = copy;
    stream->last = &copy->next;
    stream->busy = 1;
    pthread_cond_signal(&stream->more);
    pthread_mutex_unlock(&stream->lock);
}

/* ---- the driver's calls ---- */

int cuInit(unsigned flags) { return (void)flags, said("init"); }
int cuDriverGetVersion(int *version) { return *version = (int)fault("version", 12000), 0; }
int cuDeviceGetCount(int *count) { return *count = (int)fault("count", 1), 0; }
int cuDeviceGet(int *device, int index) { return *device = index, index ? 101 : 0; }
int cuDeviceGetName(char *name, int bytes, int device) { return (void)device, snprintf(name, (size_t)bytes, "stand-in"), 0; }
int cuDeviceGetByPCIBusId(int *device, const char *id) { return *device = 0, strcmp(id, "0000:01:00.0") ? 101 : 0; }
int cuDeviceGetUuid(unsigned char *uuid, int device) { return (void)device, memset(uuid, 0xab, 16), 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    *value = attribute == 75 ? (int)fault("major", 9) : attribute == 19 ? (int)fault("map", 1) : attribute == 16 ? (int)fault("processors", 4)
             : attribute == 95 ? 1 : 4;
    return 0;
}
int cuCtxCreate_v2(void **context, unsigned flags, int device) {
    return (void)flags, (void)device, *context = malloc(1), said("context");
}
int cuCtxSetCurrent(void *context) { return (void)context, atomic_load(&sticky); }

/* The buffer for the driver's words about code. */
static char *log_of(unsigned count, const int *options, void **values) {
    static char nowhere[256];
    for (unsigned at = 0; at < count; at++)
        if (options[at] == 5)
            return values[at];
    return nowhere;
}
static int version_of(const char *text, char *log) {
    int major = 0, minor = 0;
    const char *version = strstr(text, ".version ");
    if (!version || sscanf(version, ".version %d.%d", &major, &minor) != 2)
        return 218;
    if (major * 10 + minor <= fault("ptx", 99))
        return 0;
    snprintf(log, 200, "ptxas application ptx input, line 9; fatal   : Unsupported .version %d.%d", major, minor);
    return 222;
}
/* What the linker makes begins so. */
#define IMAGE "\177ELF of the stand-in\n"

int cuModuleLoadDataEx(void **module, const char *text, unsigned count, int *options, void **values) {
    int code = taken("load");
    if (!code && strncmp(text, IMAGE, strlen(IMAGE)) != 0)
        code = version_of(text, log_of(count, options, values));
    *module = strdup(text);
    return code;
}

struct link {
    char *log, *image;
};
/* Whether a text has the function's body. */
static int has_body(const char *text, const char *name) {
    for (const char *at = text; (at = strstr(at, name)); at += strlen(name)) {
        const char *end = at + strlen(name);
        if (*end == '(' && (end = strpbrk(end, "{;")) && *end == '{')
            return 1;
    }
    return 0;
}
int cuLinkCreate_v2(unsigned count, int *options, void **values, struct link **out) {
    struct link *link = calloc(1, sizeof *link);
    link->log = log_of(count, options, values);
    link->image = strdup(IMAGE);
    return *out = link, taken("link");
}
int cuLinkAddData_v2(struct link *link, unsigned type, void *data, size_t bytes, const char *name, unsigned count, int *options, void **values) {
    (void)name, (void)options, (void)values;
    int code = said("linkadd");
    if (!code && (type != 1 || count != 0 || bytes != strlen(data) + 1))
        code = 1;
    if (!code)
        code = version_of(data, link->log);
    link->image = realloc(link->image, strlen(link->image) + bytes);
    return strcat(link->image, data), code;
}
int cuLinkComplete(struct link *link, void **image, size_t *bytes) {
    int code = said("linkend");
    for (const char *at = link->image; !code && (at = strstr(at, ".extern .func")); at++) {
        char name[128] = "";
        const char *behind = strchr(at, ')');
        if (behind && sscanf(behind + 1, "%127[^(; \n]", name) < 1)
            sscanf(behind + 1, "%*[ \n]%127[^(; \n]", name);
        if (!has_body(link->image, name)) {
            snprintf(link->log, 200, "error   : Undefined reference to '%s'\nfatal   : linking failed", name);
            code = 200;
        }
    }
    return *image = link->image, *bytes = strlen(link->image) + 1, code;
}
int cuLinkDestroy(struct link *link) {
    memset(link->image, 0, strlen(link->image));
    return free(link->image), free(link), 0;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    char entry[128];
    snprintf(entry, sizeof entry, ".entry %s(", name);
    struct kernel *kernel = calloc(1, sizeof *kernel);
    snprintf(kernel->name, sizeof kernel->name, "%s", name);
    *function = kernel;
    int code = taken("function");
    return code ? code : strstr(module, entry) ? 0 : 500;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int threads, size_t shared) {
    (void)function, (void)shared;
    return *blocks = (int)fault("fit", 8), threads == 256 ? atomic_load(&sticky) : 1;
}
int cuMemAlloc_v2(uint64_t *pointer, size_t bytes) {
    void *memory = bytes >> 40 ? 0 : aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!memory)
        return 2;
    reach(memory, bytes);
    return *pointer = DEVICE(memory), taken("alloc");
}
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) {
    return memcpy(HOST(void, to), from, bytes), taken("upload");
}
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) {
    return memcpy(to, HOST(void, from), bytes), taken("download");
}
int cuMemsetD8_v2(uint64_t to, unsigned char value, size_t bytes) {
    return memset(HOST(void, to), value, bytes), taken("fill");
}
int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags) {
    if ((uintptr_t)memory % 4096 || bytes % 4096 || flags != 3)
        return 1;
    int code = taken("register");
    if (!code)
        code = (int)once_fault("refuse", 0);
    return code ? code : reach(memory, bytes);
}
int cuMemHostGetDevicePointer_v2(uint64_t *pointer, void *memory, unsigned flags) {
    return (void)flags, *pointer = DEVICE(memory), atomic_load(&sticky);
}
int cuStreamCreate(void **out, unsigned flags) {
    (void)flags;
    struct stream *stream = calloc(1, sizeof *stream);
    pthread_mutex_init(&stream->lock, 0);
    pthread_cond_init(&stream->more, 0);
    stream->last = &stream->first;
    pthread_t thread;
    if (pthread_create(&thread, 0, serve, stream))
        return 2;
    pthread_detach(thread);
    return *out = stream, taken("stream");
}
int cuStreamQuery(struct stream *stream) {
    int code = said("query");
    if (code)
        return code;
    if (once_fault("blockquery", 0))
        wait_for_go();
    pthread_mutex_lock(&stream->lock);
    int busy = stream->busy;
    pthread_mutex_unlock(&stream->lock);
    return busy ? 600 : 0;
}
static int launch(void *function, unsigned gx, unsigned bx, struct stream *stream, void **arguments) {
    int code = said("launch");
    if (code)
        return code;
    if (gx == 0 || bx == 0 || bx % 32)
        return 1;
    if (once_fault("block", 0))
        wait_for_go();
    put(stream, (struct work){.what = KERNEL, .kernel = function, .argument = *(uint64_t *)arguments[0], .blocks = gx, .threads = bx});
    return 0;
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   struct stream *stream, void **arguments, void **extra) {
    (void)gy, (void)gz, (void)by, (void)bz, (void)shared, (void)extra;
    return launch(function, gx, bx, stream, arguments);
}
int cuLaunchCooperativeKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                              unsigned shared, struct stream *stream, void **arguments) {
    (void)gy, (void)gz, (void)by, (void)bz, (void)shared;
    return launch(function, gx, bx, stream, arguments);
}
int cuStreamWaitValue32_v2(struct stream *stream, uint64_t address, uint32_t value, unsigned flags) {
    int code = said("wait");
    if (code || flags != 1)
        return code ? code : 1;
    if (once_fault("blockwait", 0))
        wait_for_go();
    put(stream, (struct work){.what = WAIT, .address = address, .value = value});
    return 0;
}
int cuGraphCreate(struct graph **out, unsigned flags) {
    struct graph *graph = calloc(1, sizeof *graph);
    graph->last = &graph->first;
    return (void)flags, *out = graph, said("graph");
}
static int add(struct graph *graph, struct work work, void **node) {
    struct work *copy = malloc(sizeof *copy);
    *copy = work;
    *graph->last = copy;
    graph->last = &copy->next;
    return *node = copy, 0;
}
struct kernel_node {
    void *function;
    unsigned grid[3], block[3], shared;
    void **params, **extra;
};
int cuGraphAddKernelNode(void **node, struct graph *graph, void **before, size_t count, const struct kernel_node *params) {
    (void)before;
    if (count != 1)
        return 1;
    return add(graph, (struct work){.what = KERNEL, .kernel = params->function, .argument = *(uint64_t *)params->params[0], .blocks = params->grid[0], .threads = params->block[0]}, node);
}
struct mem_op {
    unsigned operation;
    uint64_t address, value;
    unsigned flags;
    uint64_t alias, rest;
};
struct mem_op_node {
    void *context;
    unsigned count;
    struct mem_op *ops;
    unsigned flags;
};
int cuGraphAddBatchMemOpNode(void **node, struct graph *graph, void **before, size_t count, const struct mem_op_node *params) {
    (void)before, (void)count;
    const struct mem_op *op = params->ops;
    if (params->count != 1 || op->operation != 1 || op->flags != 1)
        return 1;
    return add(graph, (struct work){.what = WAIT, .address = op->address, .value = (uint32_t)op->value}, node);
}
int cuGraphInstantiateWithFlags(void **out, struct graph *graph, uint64_t flags) { return (void)flags, *out = graph, taken("graph"); }
int cuGraphLaunch(struct graph *graph, struct stream *stream) {
    int code = said("launch");
    if (once_fault("blockgraph", 0))
        wait_for_go();
    for (struct work *work = graph->first; work && !code; work = work->next)
        put(stream, *work);
    return code;
}
int cuGetErrorName(int code, const char **name) {
    *name = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 100 ? "CUDA_ERROR_NO_DEVICE" : code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : 0;
    return *name ? 0 : 1;
}
