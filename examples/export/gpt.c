/* gpt.c - trains the GPT in gpt_net.c on the bytes of a text: rows begin at random places, and y is what follows x. No library
 * but that of C for files and the clock; the step itself allocates nothing. Usage: gpt TEXT [STEPS]. See Makefile. */
#include "gpt_net.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { RING = 16, SHOWN = 4 * RING };
static unsigned char arena[GPT_NET_ARENA_BYTES], state[GPT_NET_STATE_BYTES];
static uint64_t weights[GPT_NET_WEIGHTS_BYTES / 8 + 1];
static int32_t x[RING][BATCH][BLOCK], y[RING][BATCH][BLOCK];
static float loss[RING];

static void draw(const unsigned char *text, long n, uint64_t *random) {
    for (int r = 0; r < RING; r++)
        for (int b = 0; b < BATCH; b++) {
            *random = *random * 6364136223846793005u + 1442695040888963407u;
            const unsigned char *from = text + (*random >> 33) % (uint64_t)(n - BLOCK);
            for (int i = 0; i < BLOCK; i++) x[r][b][i] = from[i], y[r][b][i] = from[i + 1];
        }
}

int main(int argc, char **argv) {
    struct gpt_net_ctx net;
    struct gpt_net_io io;
    struct gpt_net_ring ring;
    FILE *f = argc > 1 ? fopen(argv[1], "rb") : NULL;
    if (!f || fseek(f, 0, SEEK_END)) return puts("usage: gpt TEXT [STEPS]"), 2;
    long n = ftell(f);
    unsigned char *text = n > BLOCK ? malloc((size_t)n) : NULL;
    if (!text || fseek(f, 0, SEEK_SET) || fread(text, 1, (size_t)n, f) != (size_t)n || fclose(f)) return puts("the text"), 1;
    if (!(f = fopen("gpt_net.bin", "rb")) || fread(weights, GPT_NET_WEIGHTS_BYTES, 1, f) != 1 || fclose(f))
        return perror("gpt_net.bin"), 1;
    int wrong = gpt_net_init(&net, arena, sizeof arena, state, sizeof state, weights, GPT_NET_WEIGHTS_BYTES);
    if (wrong) return printf("gpt_net_init: %d\n", wrong), 1;
    io.in_x = x[0][0], io.in_y = y[0][0], io.out_loss = loss;
    ring.in_x = ring.in_y = ring.out_loss = RING;
    int steps = argc > 2 ? atoi(argv[2]) : 1024;
    uint64_t random = 1;
    double first = 0, mean = 0, spent = 0;
    for (int step = 0; step < steps; step += RING) {
        draw(text, n, &random);
        clock_t begin = clock();
        gpt_net_run_n(&net, RING, &io, &ring);
        spent += (double)(clock() - begin) / CLOCKS_PER_SEC;
        for (int r = 0; r < RING; r++) mean += (double)loss[r] / SHOWN;
        if ((step + RING) % SHOWN) continue;
        printf("step %5d loss %.4f\n", step + RING, mean);
        if (step + RING == SHOWN) first = mean;
        if (step + RING + SHOWN > steps) break;
        mean = 0;
    }
    printf("%.0f tokens a second of processor time\n", spent > 0 ? (double)steps * BATCH * BLOCK / spent : 0);
    free(text);
    return !(mean < first);
}
