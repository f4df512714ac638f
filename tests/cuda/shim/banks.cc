/* How many wavefronts the accesses to shared memory take: the race build's hooks tell of each access of each thread.
 *
 * What the lanes of a warp do by one instruction is one access: the n-th time since the last barrier that a lane came
 * to that place in the program. A wavefront serves 128 bytes, from each of 32 banks one word of 4 bytes: of lanes that
 * ask for 4 bytes all 32, of 8 bytes half of them, of 16 bytes eight; and takes as many turns as the bank that has most
 * different words to give. Copies past the registers and ldmatrix are not counted.
 */
#include <cuda_shim.h>

#include "shim.h"

#include <algorithm>
#include <map>
#include <set>

namespace
{
constexpr int BANKS = 32, BANK_BYTES = 4;

struct access {
    size_t bytes = 0;
    uint32_t lanes = 0;
    size_t at[32];
};

struct warp {
    std::map<std::pair<const void *, int>, access>
        accesses; /* by place in the program, and how often a lane was there */
    std::map<const void *, int> visits[32];
    uint32_t epoch = 0;
};

bool counting;
warp warps[32];
shim_wavefronts total;

long turns(const access &a, int first, int lanes)
{
    std::set<size_t> words[BANKS];
    size_t most = 0;
    for (int lane = first; lane < first + lanes; lane++)
        for (size_t byte = 0; a.lanes >> lane & 1 && byte < a.bytes; byte += BANK_BYTES) {
            size_t word = (a.at[lane] + byte) / BANK_BYTES;
            words[word % BANKS].insert(word);
            most = std::max(most, words[word % BANKS].size());
        }
    return (long)most;
}

void finish(warp &w)
{
    for (const auto &each : w.accesses) {
        int lanes = each.second.bytes <= 4 ? 32 : each.second.bytes <= 8 ? 16 : 8;
        for (int first = 0; first < 32; first += lanes) {
            long taken = turns(each.second, first, lanes);
            total.taken += taken;
            total.least += taken > 0;
        }
    }
    w.accesses.clear();
    for (auto &visits : w.visits)
        visits.clear();
}
} // namespace

void shim_note_banks(const void *place, size_t at, size_t bytes, int thread)
{
    if (!counting)
        return;
    warp &w = warps[thread / 32];
    if (w.epoch != shim_epoch)
        finish(w);
    w.epoch = shim_epoch;
    int lane = thread % 32;
    access &a = w.accesses[{place, w.visits[lane][place]++}];
    a.bytes = bytes;
    a.lanes |= 1u << lane;
    a.at[lane] = at;
}

void shim_count_wavefronts()
{
    counting = true;
    total = {0, 0};
}

shim_wavefronts shim_counted_wavefronts()
{
    for (warp &w : warps)
        finish(w);
    counting = false;
    return total;
}
