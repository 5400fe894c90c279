/* build_id.h - which build of the library this is: files that only the same build may read say so. */
#ifndef TN_RT_BUILD_ID_H
#define TN_RT_BUILD_ID_H

#include <stdbool.h>

enum { BUILD_ID_BYTES = 32 };
/* The linker's name for the object that this code is in (a hash of all of it), zeros behind it. False where the linker was not
 * asked for one. */
bool build_id(unsigned char out[BUILD_ID_BYTES]);

#endif
