// Runs the blocks of one product on all processors. The caller takes blocks too, so a late worker does not delay it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>

#include "processors.h"

class Workers {
 public:
  // Never destroyed, since its threads may outlive main.
  static Workers& get() {
    static Workers* workers = new Workers;
    return *workers;
  }

  // Includes the caller.
  int threads() const { return threads_ + 1; }

  // Calls run(context, block) once for every block below `blocks`.
  void run(int blocks, void (*run)(const void*, int), const void* context) {
    // If another thread's product uses the workers, this one runs on the caller only.
    const std::unique_lock turn(turn_, std::try_to_lock);
    if (!turn.owns_lock() || threads_ == 0 || blocks < 2) {
      for (int block = 0; block < blocks; ++block) run(context, block);
      return;
    }
    run_ = run;
    context_ = context;
    unfinished_.store(blocks, std::memory_order_relaxed);
    round_ += kRound;
    left_.store(round_ + static_cast<std::uint64_t>(blocks));
    if (asleep_.load() > 0) left_.notify_all();
    while (take()) {
    }
    for (int spin = 0; unfinished_.load(std::memory_order_acquire) > 0; ++spin)
      if (spin > 1000) std::this_thread::yield();
  }

 private:
  // The upper half of left_ counts rounds; the lower half counts the blocks that are not yet taken.
  static constexpr std::uint64_t kRound = std::uint64_t{1} << 32;

  Workers() : threads_(std::clamp(processors() - 1, 0, 15)) {
    for (int i = 0; i < threads_; ++i) std::thread([this] { work(); }).detach();
  }

  bool take() {
    std::uint64_t left = left_.load(std::memory_order_acquire);
    while (left % kRound != 0) {
      if (!left_.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel)) continue;
      // The round cannot end before this block is finished, so its function and context stay valid.
      run_(context_, static_cast<int>(left % kRound) - 1);
      unfinished_.fetch_sub(1, std::memory_order_release);
      return true;
    }
    return false;
  }

  void work() {
    for (int idle = 0;;) {
      if (take()) {
        idle = 0;
      } else if (++idle > kSpins) {
        const std::uint64_t seen = left_.load();
        asleep_.fetch_add(1);
        if (seen % kRound == 0) left_.wait(seen);
        asleep_.fetch_sub(1);
        idle = 0;
      } else {
        pause();
        // There may be more threads than cores, and other threads have work, above all the one that schedules the next
        // step.
        if (idle % 8 == 0) std::this_thread::yield();
      }
    }
  }

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  // About a millisecond if nothing else runs. The next product of a step comes sooner. Waking a thread takes longer,
  // above all on a virtual machine, whose host takes the processor away while it sleeps.
  static constexpr int kSpins = 30000;

  std::mutex turn_;
  const int threads_;
  void (*run_)(const void*, int) = nullptr;
  const void* context_ = nullptr;
  std::uint64_t round_ = 0;
  alignas(64) std::atomic<std::uint64_t> left_{0};
  alignas(64) std::atomic<int> unfinished_{0};
  std::atomic<int> asleep_{0};
};

// Calls `block(i)` once for every i below `blocks`.
template <class Block>
void in_parallel(int blocks, const Block& block) {
  Workers::get().run(blocks, [](const void* context, int i) { (*static_cast<const Block*>(context))(i); }, &block);
}
