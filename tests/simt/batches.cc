// Runs batches of packets through a kernel under the emulator. On stdin and stdout, all numbers little endian:
//
//   in:  Head, the entry point's name, the parameters, then for each packet a Wish and its bytes
//   out: for each packet its struct knet_result and its bytes, then the parameters
//
// Packets of a batch come one behind the other. What a kernel keeps of a flow goes from batch to batch. Payload lies between
// pages that nobody may touch. What is written out is what was there when the kernel said that it was done. Exit status 0: done; 3: a fault, with a line on stderr.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "host.h"
#include "knet_ring.h"
#include "simt.h"

namespace {

struct Head {
    uint64_t seed;
    uint32_t name_bytes, params_bytes, packets, batch;
    uint32_t blocks, threads;
    // Of a ring; 0: a launch for each batch.
    uint32_t slots;
    uint32_t reserved;
};

struct Wish {
    uint64_t offset;
    uint32_t len, flow;
    uint32_t ends[3];
    // Bytes behind the beginning of its memory; ~0: its end is the memory's end.
    uint32_t shift;
};

[[noreturn]] void fail(const char* what) {
    fprintf(stderr, "batches: %s\n", what);
    exit(3);
}

void take(void* to, size_t bytes) {
    if (bytes != 0 && fread(to, bytes, 1, stdin) != 1) fail("the input is too short");
}

void give(const void* from, size_t bytes) {
    if (bytes != 0 && fwrite(from, bytes, 1, stdout) != 1) fail("stdout");
}

// Memory with a page on each side that nobody may touch.
uint8_t* fenced(size_t bytes) {
    const size_t page = sysconf(_SC_PAGESIZE);
    void* memory = mmap(nullptr, bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("mmap");
    uint8_t* inside = static_cast<uint8_t*>(memory) + page;
    if (mprotect(inside, bytes, PROT_READ | PROT_WRITE) != 0) fail("mprotect");
    return inside;
}

uint8_t* place(const Wish& wish) {
    const size_t page = sysconf(_SC_PAGESIZE);
    const size_t room = (wish.len + 63 + page - 1) / page * page;
    uint8_t* memory = fenced(room);
    return wish.shift == ~0u ? memory + room - wish.len : memory + wish.shift % 64;
}

// Results and payload of a packet.
struct Outcome {
    knet_result result;
    std::vector<uint8_t> bytes;

    bool operator==(const Outcome& other) const {
        return memcmp(&result, &other.result, sizeof result) == 0 && bytes == other.bytes;
    }
};

struct Batch {
    knet_batch line = {};
    std::vector<knet_packet> packets;
    std::vector<knet_result> results;
    // When the kernel said that it was done.
    std::vector<Outcome> outcomes;
    alignas(64) uint32_t scratch[16] = {};
};

// What stands in a batch now.
std::vector<Outcome> outcomes(const knet_batch& line) {
    const knet_packet* packets = reinterpret_cast<const knet_packet*>(line.packets);
    const knet_result* results = reinterpret_cast<const knet_result*>(line.results);
    std::vector<Outcome> all;
    for (uint32_t at = 0; at < line.count; at++) {
        const uint8_t* payload = reinterpret_cast<const uint8_t*>(packets[at].addr);
        all.push_back({results[at], std::vector<uint8_t>(payload, payload + packets[at].len)});
    }
    return all;
}

// Batches by their number less 1.
std::vector<std::unique_ptr<Batch>> batches;

// The kernel gives a batch back: its status is written next.
void given_back(const void* to, uint32_t value) {
    const knet_batch& line = *static_cast<const knet_batch*>(to);
    if (value == KNET_DONE) batches.at(line.seq - 1)->outcomes = outcomes(line);
}

uint64_t address(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

class Run {
  public:
    Run(const Head& head, const std::string& name, uint8_t* params) : head_(head), name_(name), params_(params) {}

    void packet(const Wish& wish, uint8_t* payload) {
        if (batches.empty() || batches.back()->packets.size() == head_.batch) batches.push_back(std::make_unique<Batch>());
        knet_packet packet = {};
        packet.addr = address(payload);
        packet.len = wish.len;
        packet.offset = wish.offset;
        packet.flow = wish.flow;
        memcpy(packet.ends, wish.ends, sizeof packet.ends);
        batches.back()->packets.push_back(packet);
    }

    void launches() {
        simt::on_release = given_back;
        for (size_t at = 0; at < batches.size(); at++) {
            Batch& batch = *batches[at];
            batch.line.seq = at + 1;
            prepare(batch, batch.line);
            if (knet_simt_launch(name_.c_str(), head_.blocks, head_.threads, &batch.line, head_.seed + at) != 0) exit(3);
            finish(batch, batch.line);
        }
    }

    void ring() {
        std::vector<knet_batch> slots(head_.slots);
        memset(slots.data(), 0, slots.size() * sizeof(knet_batch));
        std::vector<uint64_t> scratch(KNET_RING_SCRATCH_BYTES / 8);
        knet_ring ring = {};
        ring.abi = KNET_RING_ABI;
        ring.slots = head_.slots;
        ring.batches = address(slots.data());
        ring.stride = sizeof(knet_batch);
        ring.scratch = address(scratch.data());
        std::thread kernel([&] {
            simt::on_release = given_back;
            if (knet_simt_launch(name_.c_str(), head_.blocks, head_.threads, &ring, head_.seed) != 0) _exit(3);
        });
        // As many batches are on their way as flows and slots allow.
        size_t made = 0;
        for (size_t done = 0; done < batches.size(); done++) {
            while (made < batches.size() && made - done < head_.slots && (made == done || !meets(done, made))) {
                slots[made % head_.slots].seq = made + 1;
                prepare(*batches[made], slots[made % head_.slots]);
                made++;
            }
            knet_batch& line = slots[done % head_.slots];
            while (__atomic_load_n(&line.status, __ATOMIC_ACQUIRE) == KNET_READY) std::this_thread::yield();
            finish(*batches[done], line);
            line.status = KNET_FREE;
        }
        __atomic_store_n(&ring.quit, 1, __ATOMIC_RELEASE);
        kernel.join();
        if (ring.ended != 1 || ring.heartbeat == 0) fail("the kernel did not say that it ended");
    }

    void report() const {
        for (const auto& batch : batches)
            for (const Outcome& outcome : batch->outcomes) {
                give(&outcome.result, sizeof outcome.result);
                give(outcome.bytes.data(), outcome.bytes.size());
            }
        give(params_, head_.params_bytes);
    }

  private:
    // Whether a batch from `from` on has a flow of batch `which`.
    bool meets(size_t from, size_t which) const {
        for (size_t at = from; at < which; at++)
            for (const knet_packet& one : batches[at]->packets)
                for (const knet_packet& other : batches[which]->packets)
                    if (one.flow == other.flow) return true;
        return false;
    }

    void prepare(Batch& batch, knet_batch& line) {
        for (knet_packet& packet : batch.packets) memcpy(packet.state, kept_[packet.flow].data(), sizeof packet.state);
        batch.results.assign(batch.packets.size(), knet_result());
        line.count = static_cast<uint32_t>(batch.packets.size());
        line.abi = KNET_RING_ABI;
        line.error = 0;
        line.params = address(params_);
        line.scratch = address(batch.scratch);
        line.packets = address(batch.packets.data());
        line.results = address(batch.results.data());
        __atomic_store_n(&line.status, KNET_READY, __ATOMIC_RELEASE);
    }

    void finish(Batch& batch, const knet_batch& line) {
        if (line.status != KNET_DONE || line.error != 0) fail("a batch is not done");
        for (uint32_t word : batch.scratch)
            if (word != 0) fail("a batch leaves something in its scratch");
        if (!(batch.outcomes == outcomes(line))) fail("a batch changes after it is done");
        for (size_t at = 0; at < batch.packets.size(); at++) {
            if (batch.results[at].verdict == KNET_NOT_WRITTEN) fail("a packet has no verdict");
            memcpy(kept_[batch.packets[at].flow].data(), batch.results[at].state, sizeof batch.results[at].state);
        }
    }

    const Head& head_;
    std::string name_;
    uint8_t* params_;
    std::map<uint32_t, std::array<uint64_t, 2>> kept_;
};

}  // namespace

int main() {
    Head head;
    take(&head, sizeof head);
    std::string name(head.name_bytes, 0);
    take(name.data(), name.size());
    uint8_t* params = fenced((head.params_bytes + 4096) & ~4095u);
    take(params, head.params_bytes);
    Run run(head, name, params);
    for (uint32_t at = 0; at < head.packets; at++) {
        Wish wish;
        take(&wish, sizeof wish);
        uint8_t* payload = place(wish);
        take(payload, wish.len);
        run.packet(wish, payload);
    }
    if (head.slots == 0) run.launches();
    else run.ring();
    run.report();
    fflush(stdout);
    return 0;
}
