/* run.c - sessions of all programs: compiled ones go by their list, those of immediate mode node by node. */
#include "run/run.h"

tn_status session_new(tn_program *p, const tn_session *from, tn_session **out, err *e) {
    tn_session *s;
    if (p->opts.mode != TN_MODE_IMMEDIATE) return session_open(p, false, from, out, e);
    tn_status code = session_shell(p, false, NULL, &s, e);
    if (code) return code;
    if ((code = immediate_session(s))) {
        err_set(e, code, "%s", s->err.text);
        session_free(s);
        return code;
    }
    *out = s;
    return TN_OK;
}

void session_free(tn_session *s) {
    if (!s) return;
    immediate_session_free(s);
    session_close(s);
}

tn_status session_run(tn_session *s, int64_t steps) { return s->imm ? immediate_session_run(s) : session_submit(s, steps); }
