/* train.c - trains the network in net.c on a board's own data: 8 x 8 pictures of digits, drawn here with noise. No library but
 * that of C for printf and files; all memory is in the arrays below. See Makefile. */
#include "net.h"

#include <stdio.h>

enum { BATCH = 32, RING = 50, STEPS = 200 };
static unsigned char arena[NET_ARENA_BYTES], state[NET_STATE_BYTES];
static uint64_t weights[NET_WEIGHTS_BYTES / 8 + 1];
static float pictures[RING][BATCH][64], loss[STEPS];
static int32_t labels[RING][BATCH];

static const char *const digits[10] = { /* 5 rows of 3 */
                                        "### # ## ## ####", " #  #  #  #  # ", "###  #####  ###", "###  ####  ####",
                                        "# ## ####  #  #",  "####  ###  ####", "####  #### ####", "###  #  #  #  #",
                                        "#### ##### ####",  "#### ####  ####"
};

static void draw(void) {
    uint32_t random = 1;
    for (int r = 0; r < RING; r++)
        for (int b = 0; b < BATCH; b++) {
            random = random * 1664525u + 1013904223u;
            int digit = (int)(random >> 8) % 10, x = (int)(random >> 16) % 5, y = (int)(random >> 24) % 3;
            labels[r][b] = digit;
            for (int i = 0; i < 64; i++) {
                int column = i % 8 - x, row = i / 8 - y;
                int ink = column >= 0 && column < 3 && row >= 0 && row < 5 && digits[digit][3 * row + column] == '#';
                random = random * 1664525u + 1013904223u;
                pictures[r][b][i] = (float)ink + 0.3f * ((float)(random >> 8) / 16777216.0f - 0.5f);
            }
        }
}

static int put(void *file, const void *data, size_t n) { return fwrite(data, 1, n, (FILE *)file) != n; }
static int get(void *file, void *data, size_t n) { return fread(data, 1, n, (FILE *)file) != n; }

int main(void) {
    struct net_ctx net;
    struct net_io io;
    struct net_ring ring;
    FILE *f = fopen("net.bin", "rb");
    if (!f || fread(weights, NET_WEIGHTS_BYTES, 1, f) != 1 || fclose(f)) return perror("net.bin"), 1;
    int wrong = net_init(&net, arena, sizeof arena, state, sizeof state, weights, NET_WEIGHTS_BYTES);
    if (wrong) return printf("net_init: %d\n", wrong), 1;
    io.in_x = pictures[0][0], io.in_t = labels[0], io.out_loss = loss;
    ring.in_x = ring.in_t = RING, ring.out_loss = STEPS;
    draw();
    net_run_n(&net, STEPS, &io, &ring);
    for (int i = 0; i < STEPS; i += 20) printf("step %3d loss %.4f\n", i, (double)loss[i]);
    printf("step %3d loss %.4f\n", STEPS - 1, (double)loss[STEPS - 1]);

    /* The state survives a restart. */
    if (!(f = fopen("net.state", "wb")) || net_save(&net, put, f) || fclose(f)) return perror("net.state"), 1;
    net_run(&net, pictures[0][0], labels[0], &loss[0]);
    if (net_init(&net, arena, sizeof arena, state, sizeof state, weights, NET_WEIGHTS_BYTES)) return 1;
    if (!(f = fopen("net.state", "rb")) || net_load(&net, get, f) || fclose(f)) return perror("net.state"), 1;
    net_run(&net, pictures[0][0], labels[0], &loss[1]);
    printf("the same after a restart: %s\n", loss[0] == loss[1] ? "yes" : "NO");
    printf("memory: %d bytes of temporaries, %d of parameters and moments\n", NET_ARENA_BYTES, NET_STATE_BYTES);
    return !(loss[0] == loss[1] && loss[STEPS - 1] < 0.1f);
}
