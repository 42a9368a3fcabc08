// The scheduler of the emulator. See simt.h.
#include "simt.h"

#include <csetjmp>
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include <sched.h>
#include <sys/mman.h>
#include <ucontext.h>

namespace simt {

thread_local Place place;
thread_local void (*on_release)(const void*, uint32_t);

namespace {

constexpr size_t STACK_BYTES = 64 << 10;
// Of a block, as on the devices that the kernels are for.
constexpr size_t SHARED_BYTES = 48 << 10;

enum class State { Ready, AtWarp, AtBlock, Gone };

// Where a lane stands and what it brought.
struct Stand {
    Exchange kind;
    uint32_t mask;
    uint64_t value;
    unsigned from;
    const char* file;
    int line;
};

struct Fiber {
    State state = State::Ready;
    Place place;
    Stand stand;
    size_t shared_used = 0;
    bool begun = false;
    jmp_buf where;
    char* stack = nullptr;
};

struct Grid {
    void (*entry)(void*);
    void* argument;
    std::vector<Fiber> fibers;
    std::vector<std::vector<uint8_t>> shared;
    // Fibers that can go on; their order means nothing.
    std::vector<uint32_t> ready;
    uint32_t running = 0;
    unsigned blocks_begin = 0;
    bool fault = false;
    // Naps in a row without anything else.
    unsigned naps = 0;
    jmp_buf scheduler;
    std::mt19937_64 random;
};

thread_local Grid* grid;

Fiber& self() { return grid->fibers[grid->running]; }

void wake(uint32_t at) {
    grid->fibers[at].state = State::Ready;
    grid->ready.push_back(at);
}

void leave() {
    if (_setjmp(self().where) == 0) _longjmp(grid->scheduler, 1);
    place = self().place;
}

// A fault: nobody runs on.
void fault() {
    grid->fault = true;
    leave();
}

uint32_t first_of_block(uint32_t at) { return at - at % place.threads.x; }

void begin() {
    grid->entry(grid->argument);
    Fiber& me = self();
    const uint32_t block = first_of_block(grid->running);
    me.state = State::Gone;
    for (uint32_t at = block; at < block + place.threads.x; at++) {
        const Fiber& other = grid->fibers[at];
        const bool waits = other.state == State::AtBlock ||
                           (other.state == State::AtWarp && at / 32 == grid->running / 32 &&
                            (other.stand.mask >> grid->running % 32 & 1));
        if (waits && !grid->fault) {
            fprintf(stderr, "simt: thread %u of block %u has ended while thread %u waits for it at %s:%d\n", place.thread.x,
                    place.block.x, at - block, other.stand.file, other.stand.line);
            grid->fault = true;
        }
    }
    _longjmp(grid->scheduler, 1);
}

void start(Fiber& fiber) {
    fiber.begun = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = fiber.stack;
    context.uc_stack.ss_size = STACK_BYTES;
    context.uc_link = nullptr;
    makecontext(&context, begin, 0);
    setcontext(&context);
}

// Lets the fibers run until none is left or there is a fault.
bool schedule() {
    Grid& all = *grid;
    _setjmp(all.scheduler);
    if (all.fault) return false;
    if (all.ready.empty()) {
        for (const Fiber& fiber : all.fibers) {
            if (fiber.state == State::Gone) continue;
            fprintf(stderr, "simt: thread %u of block %u waits for ever at %s:%d\n", fiber.place.thread.x,
                    fiber.place.block.x, fiber.stand.file, fiber.stand.line);
            return false;
        }
        return true;
    }
    // While all of them nap, only the host can change anything.
    if (all.naps > all.ready.size()) {
        all.naps = 0;
        sched_yield();
    }
    const size_t chosen = all.random() % all.ready.size();
    all.running = all.ready[chosen];
    all.ready[chosen] = all.ready.back();
    all.ready.pop_back();
    Fiber& fiber = all.fibers[all.running];
    place = fiber.place;
    if (fiber.begun) _longjmp(fiber.where, 1);
    start(fiber);
    return false;
}

}  // namespace

void* shared(size_t bytes) {
    Fiber& me = self();
    std::vector<uint8_t>& memory = grid->shared[place.block.x - grid->blocks_begin];
    const size_t at = me.shared_used;
    me.shared_used += (bytes + 15) / 16 * 16;
    if (me.shared_used > SHARED_BYTES) {
        fprintf(stderr, "simt: more than %zu bytes of shared memory\n", SHARED_BYTES);
        fault();
    }
    return memory.data() + at;
}

uint64_t meet_warp(Exchange kind, uint32_t mask, uint64_t value, unsigned from, const char* file, int line) {
    Fiber& me = self();
    grid->naps = 0;
    me.stand = {kind, mask, value, from, file, line};
    me.state = State::AtWarp;
    const uint32_t warp = grid->running - grid->running % 32;
    uint32_t votes = 0;
    bool all = mask >> grid->running % 32 & 1;
    if (!all) fprintf(stderr, "simt: thread %u of block %u is not in its own mask at %s:%d\n", place.thread.x, place.block.x, file, line);
    grid->fault |= !all;
    for (uint32_t lane = 0; lane < 32 && all; lane++) {
        if (!(mask >> lane & 1)) continue;
        const Fiber& other = grid->fibers[warp + lane];
        if (other.state == State::Gone || other.state == State::AtBlock ||
            (other.state == State::AtWarp &&
             (other.stand.kind != kind || other.stand.mask != mask || other.stand.line != line || other.stand.file != file))) {
            fprintf(stderr, "simt: threads %u and %u of block %u should meet at %s:%d, but the second %s\n", place.thread.x,
                    other.place.thread.x, place.block.x, file, line, other.state == State::Gone ? "has ended" : "waits elsewhere");
            grid->fault = true;
        }
        all = all && other.state == State::AtWarp;
        if (other.stand.value != 0) votes |= 1u << lane;
    }
    if (grid->fault) leave();
    if (all) {
        // Everybody gets his answer before anybody runs on.
        uint64_t answers[32];
        for (uint32_t lane = 0; lane < 32; lane++) {
            const Stand& stand = grid->fibers[warp + lane].stand;
            if (!(mask >> lane & 1)) continue;
            answers[lane] = kind == Exchange::Ballot ? votes : 0;
            if (kind == Exchange::Shuffle && (mask >> stand.from & 1)) answers[lane] = grid->fibers[warp + stand.from].stand.value;
        }
        for (uint32_t lane = 0; lane < 32; lane++) {
            if (!(mask >> lane & 1)) continue;
            grid->fibers[warp + lane].stand.value = answers[lane];
            wake(warp + lane);
        }
    }
    leave();
    return self().stand.value;
}

void meet_block(const char* file, int line) {
    Fiber& me = self();
    grid->naps = 0;
    me.stand = {Exchange::Sync, 0, 0, 0, file, line};
    me.state = State::AtBlock;
    const uint32_t block = first_of_block(grid->running);
    bool all = true;
    for (uint32_t at = block; at < block + place.threads.x; at++) {
        const Fiber& other = grid->fibers[at];
        if (other.state == State::Gone || (other.state == State::AtBlock && other.stand.line != line)) {
            fprintf(stderr, "simt: threads %u and %u of block %u should meet at %s:%d, but the second %s\n", place.thread.x,
                    at - block, place.block.x, file, line, other.state == State::Gone ? "has ended" : "waits elsewhere");
            grid->fault = true;
        }
        all = all && other.state == State::AtBlock;
    }
    if (all && !grid->fault)
        for (uint32_t at = block; at < block + place.threads.x; at++) wake(at);
    leave();
}

void nap() {
    grid->naps += 1;
    grid->ready.push_back(grid->running);
    leave();
}

bool run(void (*entry)(void*), void* argument, unsigned blocks, unsigned threads, uint64_t seed, bool all_at_once) {
    if (blocks == 0 || threads == 0 || threads % 32 != 0) {
        fprintf(stderr, "simt: a grid of %u blocks of %u threads\n", blocks, threads);
        return false;
    }
    const unsigned step = all_at_once ? blocks : 1;
    const size_t bytes = STACK_BYTES * step * threads;
    void* stacks = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) {
        perror("simt: mmap");
        return false;
    }
    Grid all;
    all.random.seed(seed);
    all.entry = entry;
    all.argument = argument;
    bool good = true;
    for (unsigned first = 0; first < blocks && good; first += step) {
        all.blocks_begin = first;
        // What a block finds in its memory is what another one left there.
        all.shared.assign(step, std::vector<uint8_t>(SHARED_BYTES));
        for (auto& memory : all.shared)
            for (auto& byte : memory) byte = static_cast<uint8_t>(all.random());
        all.fibers.assign(step * threads, Fiber());
        all.ready.clear();
        for (uint32_t at = 0; at < all.fibers.size(); at++) {
            Fiber& fiber = all.fibers[at];
            fiber.place = {{at % threads}, {first + at / threads}, {threads}, {blocks}};
            fiber.stack = static_cast<char*>(stacks) + STACK_BYTES * at;
            all.ready.push_back(at);
        }
        grid = &all;
        good = schedule();
        grid = nullptr;
    }
    munmap(stacks, bytes);
    return good;
}

}  // namespace simt
