/* contract_f16.c - contractions of f32 read and give f16: as contract_bf16.c says. What is too large becomes infinity. */
#include "pass/rewrite.h"

bool pass_contract_f16(graph *g, arena *scratch) { return contract_in(g, scratch, TN_F16); }
