/* decide.c - notes a decision of the scheduler for explain. */
#include "sched/sched.h"

bool sched_decide(sched *s, val v, val user, bool fused, const char *reason) {
    VEC_PUSH(s->a, &s->p->decisions, (why){ v, user, fused, reason });
    return fused;
}
