// Keeps a program's size near what it uses. The C library gives threads memory from up to eight arenas for each core, and what lies free in
// one is of no use to the others. Two are enough: the work is done on few threads, and a program's size should not depend on which of them
// once held much. What lies free between blocks in use is given back only to who asks, so it is asked for now and then.
#include <cstdlib>

#if defined(__GLIBC__)
#include <malloc.h>

#include <chrono>
#include <system_error>
#include <thread>

namespace {
// Giving back takes a millisecond or two, in which nobody gets memory from the arena at hand.
constexpr auto between_trims = std::chrono::seconds(10);

void trim_for_ever() {
  for (;;) {
    std::this_thread::sleep_for(between_trims);
    malloc_trim(0);
  }
}

bool keep_small() {
  try {
    std::thread(trim_for_ever).detach();
  } catch (const std::system_error&) {
    // A program that may have no more threads is a little larger, nothing else.
  }
  return mallopt(M_ARENA_MAX, 2) == 1;
}

const bool is_small = keep_small();
}  // namespace
#endif
