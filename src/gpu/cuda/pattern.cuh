// Many literals at once: an Aho-Corasick automaton, walked by 32 lanes at the same time with the result of one walk.
//
// Each lane walks a slice of the tile from the root, and then on behind its end for as long as the automaton is inside
// of a literal that began in the slice (its depth tells). From there on the next lane, which began at the root, is in the
// same state. So each byte has one lane whose walk is the true one: the first whose walk reaches behind it. There is
// no overlap of the longest literal's length, and a literal may be longer than a slice, a tile or a packet.
#pragma once

#include "packet.cuh"

namespace knet {

// The literals of one kind, as src/gpu/pattern/tables.rs lays them out.
struct Automaton {
    // A transition for each (state + byte): whose it is, and where to.
    const uint2* edges;
    // For each state: where to look when it has no transition, its depth, its first literal + 1.
    const u32* fail;
    const u32* depth;
    const u32* found;
    u32 states;
    bool any_case;

    __device__ static Automaton of(const u8* image, const knet_automaton& head, bool any_case) {
        Automaton made;
        made.edges = reinterpret_cast<const uint2*>(image + head.edges_at);
        made.fail = reinterpret_cast<const u32*>(image + head.fail_at);
        made.depth = reinterpret_cast<const u32*>(image + head.depth_at);
        made.found = reinterpret_cast<const u32*>(image + head.found_at);
        made.states = head.states;
        made.any_case = any_case;
        return made;
    }

    // The state behind `byte`; the top bit says that a literal ends there.
    __device__ u32 next(u32 state, u32 byte) const {
        if (any_case && byte - 'A' < 26u) byte += 32u;
        for (;;) {
            const uint2 edge = edges[state + byte];
            if (edge.x == state) return edge.y;
            if (state == 0) return 0;
            state = fail[state];
        }
    }
};

constexpr u32 ENDS_HERE = 0x80000000u;
constexpr u32 NOWHERE = 0xffffffffu;

// Where literals end.
struct Ends {
    u32 count;
    // Position of the first, NOWHERE if there is none, and the state there.
    u32 first;
    u32 state;

    __device__ void see(u32 position, u32 at) {
        if (count == 0) {
            first = position;
            state = at & ~ENDS_HERE;
        }
        count += 1;
    }
};

// Walks the tile's `count` bytes from `state`, which it moves on. Every lane gets the same answer.
__device__ inline Ends search(const Automaton& automaton, const Tile& tile, u32 count, u32& state) {
    const u32 lane = lane_of();
    u32 slice = ((count + 31u) / 32u + 3u) & ~3u;
    if (slice < 16u) slice = 16u;
    const u32 begin = smaller(lane * slice, count);
    const u32 end = smaller(begin + slice, count);

    u32 at = lane == 0 ? state : 0;
    const u32 from = at;
    Ends mine = {0, NOWHERE, 0};
    u32 position = begin;
    for (; position < end; position++) {
        at = automaton.next(at, tile[position]);
        if (at & ENDS_HERE) mine.see(position, at);
        at &= ~ENDS_HERE;
    }
    if (begin < end) {
        for (; position < count && automaton.depth[at] > position - end; position++) {
            at = automaton.next(at, tile[position]);
            if (at & ENDS_HERE) mine.see(position, at);
            at &= ~ENDS_HERE;
        }
    }

    // How far the walks of the lanes before this one reach.
    u32 reached = position;
    for (u32 step = 1; step < 32; step *= 2) {
        const u32 other = __shfl_up_sync(ALL_LANES, reached, step);
        if (lane >= step && other > reached) reached = other;
    }
    u32 truth = __shfl_up_sync(ALL_LANES, reached, 1);
    if (lane == 0) truth = 0;
    if (truth > begin && mine.count > 0) {
        // The first bytes were another lane's: again, and only what is behind them counts.
        mine = {0, NOWHERE, 0};
        u32 again = from;
        for (u32 look = begin; look < position; look++) {
            again = automaton.next(again, tile[look]);
            if ((again & ENDS_HERE) && look >= truth) mine.see(look, again);
            again &= ~ENDS_HERE;
        }
    }

    // The last byte is of the first lane that got there.
    const u32 there = __ballot_sync(ALL_LANES, reached == count);
    state = __shfl_sync(ALL_LANES, at, __ffs(there) - 1);
    Ends all = mine;
    all.count = static_cast<u32>(sum(mine.count));
    for (u32 step = 16; step > 0; step /= 2) {
        const u32 first = __shfl_xor_sync(ALL_LANES, all.first, step);
        const u32 where = __shfl_xor_sync(ALL_LANES, all.state, step);
        if (first < all.first) {
            all.first = first;
            all.state = where;
        }
    }
    return all;
}

// As knet_pattern_params says.
__device__ inline void pattern(Packet& packet, u8* image, u32* shared) {
    Tile tile(shared);
    const knet_pattern_params& params = *reinterpret_cast<const knet_pattern_params*>(image);
    const Automaton automata[2] = {Automaton::of(image, params.exact, false), Automaton::of(image, params.any_case, true)};
    u32 states[2] = {static_cast<u32>(packet.state[0]), static_cast<u32>(packet.state[1])};
    u32 first[2] = {0, 0};
    if (packet.state[0] >= automata[0].states || packet.state[1] >= automata[1].states) {
        packet.verdict = KNET_FAILED;
        return;
    }
    for (u32 begin = 0; begin < packet.len; begin += TILE) {
        const u32 count = smaller(TILE, packet.len - begin);
        tile.stage(packet.payload + begin, count);
        for (u32 which = 0; which < 2; which++) {
            // The start alone: there are no literals of this kind.
            if (automata[which].states == 1) continue;
            const Ends ends = search(automata[which], tile, count, states[which]);
            packet.aux += ends.count;
            if (ends.count > 0 && first[which] == 0) first[which] = automata[which].found[ends.state];
        }
    }
    packet.state[0] = states[0];
    packet.state[1] = states[1];
    const u32 found = first[0] != 0 ? first[0] : first[1];
    if (found == 0) return;
    packet.verdict = KNET_MATCH;
    packet.value = found - 1;
}

}  // namespace knet
