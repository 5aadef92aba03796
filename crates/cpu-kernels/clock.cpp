// The macOS kernel clock that mlx-rs calls to seed its default random state.
#include <cstdint>
#include <ctime>

extern "C" std::uint64_t mach_approximate_time() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000000000u + static_cast<std::uint64_t>(now.tv_nsec);
}
