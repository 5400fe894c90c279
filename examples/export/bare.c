/* bare.c - reads a picture with the digits network on a Cortex-M4 that has no operating system and no C library. Prints the ten
 * chances, in parts of 10,000, by semihosting: a debugger or qemu takes them. See Makefile. */
#include "bare_net.h"

static unsigned char arena[BARE_NET_ARENA_BYTES];
static float picture[64], chance[10];

static void host(int what, const void *argument) {
    register int r0 __asm__("r0") = what;
    register const void *r1 __asm__("r1") = argument;
#ifdef SIMULATED /* qemu-arm simulates a processor with an operating system */
    __asm__ volatile("svc 0xab" : "+r"(r0) : "r"(r1) : "memory");
#else
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
#endif
}

static void print(int v) {
    char text[6] = { 0, 0, 0, 0, '\n', 0 };
    for (int i = 3; i >= 0; i--, v /= 10) text[i] = (char)('0' + v % 10);
    host(4, text);
}

void _start(void);
void _start(void) {
    struct bare_net_ctx net;
    for (int i = 0; i < 64; i++) picture[i] = 0.25f;
    if (bare_net_init(&net, arena, sizeof arena, 0, 0, 0, 0)) host(4, "bare_net_init\n"); /* the weights are linked */
    bare_net_run(&net, picture, chance);
    for (int i = 0; i < 10; i++) print((int)(chance[i] * 10000 + 0.5f));
    host(0x18, (const void *)0x20026); /* the program ends */
    for (;;) {
    }
}
