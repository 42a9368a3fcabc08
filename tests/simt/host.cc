// The kernels of src/gpu/cuda, built for the host: each by its name.
#include "host.h"

#include <cstring>

#include "knet_bench.cu"
#include "knet_user.cu"

// The example of a user's function, in place of what the driver's linker would put there.
#include "../../docs/examples/count_zeros.cu"

unsigned knet_user_function(const knet_packet* packet, knet_result* result, unsigned lane, void* params) {
    return count_zeros(packet, result, lane, params);
}

namespace {

struct Entry {
    const char* name;
    void (*run)(void*);
    bool persistent;
};

#define ENTRY(kernel)                                                                                                       \
    {"knet_" #kernel "_launch", [](void* batch) { knet_##kernel##_launch(static_cast<knet_batch*>(batch)); }, false}, { \
        "knet_" #kernel "_persistent", [](void* ring) { knet_##kernel##_persistent(static_cast<knet_ring*>(ring)); }, true \
    }

const Entry ENTRIES[] = {ENTRY(pattern), ENTRY(stats), ENTRY(chacha20), ENTRY(crc32c), ENTRY(macswap),
                         ENTRY(peek),    ENTRY(poke),  ENTRY(user)};

}  // namespace

extern "C" int knet_simt_launch(const char* name, unsigned blocks, unsigned threads, void* argument, uint64_t seed) {
    for (const Entry& entry : ENTRIES)
        if (strcmp(entry.name, name) == 0) return simt::run(entry.run, argument, blocks, threads, seed, entry.persistent) ? 0 : 1;
    return 2;
}
