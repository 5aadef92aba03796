// The C library gives threads memory from up to eight arenas for each core, and what lies free in one is of no use to the others. Two are
// enough: the work is done on few threads, and a program's size should not depend on which of them once held much.
#include <cstdlib>

#if defined(__GLIBC__)
#include <malloc.h>

namespace {
const bool few_arenas = mallopt(M_ARENA_MAX, 2) == 1;
}  // namespace
#endif
