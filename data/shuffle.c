/* shuffle.c - an order of a data set that takes no memory: a keyed permutation of 0 .. n - 1.
 *
 * A balanced Feistel network (Luby and Rackoff 1988) permutes 0 .. 4^b - 1 >= n; places that fall outside n are sent round
 * again until they fall inside (cycle walking, Black and Rogaway 2002): less than four rounds of it on average. */
#include "data.h"

static uint64_t mix(uint64_t x) { /* splitmix64 */
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

enum { ROUNDS = 6 };

int64_t data_shuffled(int64_t i, int64_t n, uint64_t seed, uint64_t epoch) {
    int half = 1;
    while (half < 31 && (int64_t)1 << 2 * half < n) half++;
    uint64_t key = mix(mix(seed) ^ epoch), mask = ((uint64_t)1 << half) - 1, x = (uint64_t)i;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t r = 0; r < ROUNDS; r++) {
            uint64_t next = left ^ (mix(key + r * 0xD1B54A32D192ED03u + right) & mask);
            left = right, right = next;
        }
        x = left << half | right;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}
