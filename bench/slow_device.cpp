// A library to preload. It turns MLX's CPU stream into a device that takes SLOW_DEVICE_NS nanoseconds per operation and whose queue never
// fills, like a GPU's. On unload it prints the number of submitted operations. For the symbols of MLX 0.32.
#include <dlfcn.h>
#include <time.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "mlx/event.h"
#include "mlx/scheduler.h"

namespace {

// MLX's CPU stream reports its progress after this many operations. A thread that submits more waits for the report.
constexpr long kOperationsOfNotice = 10;
// The maximum delay of a wakeup.
constexpr long kLate = 150'000;

long now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000L + time.tv_nsec;
}

void sleep_until(long moment) {
  const timespec time{moment / 1'000'000'000L, moment % 1'000'000'000L};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr);
}

long of_operation() {
  static const long cost = [] {
    const char* text = std::getenv("SLOW_DEVICE_NS");
    return text == nullptr ? 0L : std::atol(text);
  }();
  return cost;
}

// The time when the device finishes the submitted work. Only the stream's thread uses it.
thread_local long done = 0;

// Work begins when it is submitted or when the previous work is done. So a late wakeup of this thread delays no work.
void work(long handed_over, long operations) { done = std::max(done, handed_over) + operations * of_operation(); }

void finish() {
  while (done - now() > kLate) sleep_until(done - kLate);
  while (now() < done) {
  }
}

struct Count {
  std::atomic<long> operations{0};
  ~Count() { std::fprintf(stderr, "operations: %ld\n", operations.load()); }
} count;

// The original definition, which this library overrides.
template <class... Arguments>
auto next(const char* name) {
  void* found = dlsym(RTLD_NEXT, name);
  if (found == nullptr) std::abort();
  return reinterpret_cast<void (*)(mlx::core::scheduler::Scheduler*, Arguments...)>(found);
}

}  // namespace

namespace mlx::core::scheduler {

using Task = std::function<void()>;
using EventTask = std::function<void(Event&)>;

namespace {
void hand_over(Scheduler* scheduler, Stream stream, Task task) {
  static const auto others = next<Stream, Task>("_ZN3mlx4core9scheduler9Scheduler7enqueueENS0_6StreamESt8functionIFvvEE");
  others(scheduler, stream, std::move(task));
}
}  // namespace

void Scheduler::enqueue(Stream stream, Task task) {
  const char* name = task.target_type().name();
  const bool is_notice = std::strstr(name, "CommandEncoder8dispatch") != nullptr && std::strncmp(name, "St5_Bind", 8) != 0;
  if (!is_notice) return hand_over(this, stream, std::move(task));
  // Runs at once, so that no thread waits for the queue.
  task();
  count.operations += kOperationsOfNotice;
  hand_over(this, stream, [at = now()] { work(at, kOperationsOfNotice); });
}

void Scheduler::signal_event(Stream stream, Event event, EventTask task) {
  static const auto others = next<Stream, Event, EventTask>("_ZN3mlx4core9scheduler9Scheduler12signal_eventENS0_6StreamENS0_5EventESt8functionIFvRS4_EE");
  hand_over(this, stream, [] { finish(); });
  others(this, stream, std::move(event), std::move(task));
}

}  // namespace mlx::core::scheduler
