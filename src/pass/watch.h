/* watch.h - to be told what each pass changes, for reports. */
#ifndef TN_PASS_WATCH_H
#define TN_PASS_WATCH_H

#include "pass/pass.h"

/* Called when a pass has changed something, before compaction: nodes that it added stand behind those before, which keep their
 * ids, and what nothing needs any more is still there. */
typedef struct pass_watch {
    void (*changed)(void *ud, const graph *g, const pass_info *p);
    void *ud;
} pass_watch;

/* As the functions of pass.h; w may be NULL. */
bool pass_run_watched(graph *g, const pass_info *p, arena *scratch, bool check, const pass_watch *w);
void pass_run_all_watched(graph *g, arena *scratch, bool check, const pass_watch *w);
bool pass_run_stage_watched(graph *g, pass_stage stage, arena *scratch, bool check, const pass_watch *w);

#endif
