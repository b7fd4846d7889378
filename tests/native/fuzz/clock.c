/* A clock that moves by one microsecond each time it is read, so that an input's course does
 * not depend on how fast the machine is. The harnesses are linked with it in place of the
 * core's own (fuzzing.py). */
#include "fuzz.h"

uint64_t __wrap_bk_io_now_ns(void);

uint64_t __wrap_bk_io_now_ns(void)
{
    static uint64_t now_ns;
    return __atomic_add_fetch(&now_ns, 1000, __ATOMIC_RELAXED);
}
