/* signal.h - what the files of tenon_signal.h share. */
#ifndef TN_NN_SIGNAL_H
#define TN_NN_SIGNAL_H

#include "nn.h"

#include "tenon/tenon_signal.h"

tn_tensor signal_half(tn_tensor x, int which); /* part 0 or 1 of pairs: [..,2] to [..] */

#endif
