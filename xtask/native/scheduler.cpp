// Hands MLX's CPU thread its work several pieces at a time. Waking a thread takes longer than a small operation; MLX wakes it for each one, and once
// more for letting go of what the operation has used. Like operations.cpp, this stands ahead of libmlx.so's definitions and hands on to those.
#include "mlx/scheduler.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstring>
#include <exception>
#include <functional>
#include <future>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "mlx/event.h"

namespace mlx::core::scheduler {

namespace {

using Task = std::function<void()>;
using EventTask = std::function<void(Event&)>;

// A member function is called like a function whose first argument is the object.
template <class... Arguments>
auto behind(const char* name) -> void (*)(Scheduler*, Arguments...) {
  void* found = dlsym(RTLD_NEXT, name);
  if (found == nullptr) throw std::runtime_error("libmlx.so lacks a function that it is known to have");
  return reinterpret_cast<void (*)(Scheduler*, Arguments...)>(found);
}

void hand_on(Scheduler* scheduler, Stream stream, Task task) {
  static const auto enqueue =
      behind<Stream, Task>("_ZN3mlx4core9scheduler9Scheduler7enqueueENS0_6StreamESt8functionIFvvEE");
  enqueue(scheduler, stream, std::move(task));
}

// The encoder binds every piece of an operation to its arguments. All else that enters a stream (notices, waits, a promise to keep) is a bare lambda.
bool is_piece(const Task& task) { return std::strncmp(task.target_type().name(), "St5_Bind", 8) == 0; }

// Every task runs, whatever the others do; of their errors MLX keeps the first.
void run_all(std::vector<Task>& tasks) {
  std::exception_ptr first;
  for (Task& task : tasks) {
    try {
      task();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
    // What it holds is free before the next one begins, as it is without us.
    task = nullptr;
  }
  if (first) std::rethrow_exception(first);
}

// The pieces of one stream's operations that have not been handed on yet. MLX's own notice after every tenth releases them, so there are never more,
// and nobody waits for anything that is held: whoever waits has put something else into the stream, which releases them, too.
class Held {
 public:
  static Held& get() {
    static Held* held = new Held;
    return *held;
  }

  void add(Scheduler* scheduler, Stream stream, Task task) {
    const std::lock_guard guard(lock_);
    if (!(stream_ == stream)) release(scheduler);
    stream_ = stream;
    tasks_.push_back(std::move(task));
  }

  // Releases what is held, then calls `next`; nothing comes between.
  template <class Next>
  void before(Scheduler* scheduler, const Next& next) {
    const std::lock_guard guard(lock_);
    release(scheduler);
    next();
  }

 private:
  void release(Scheduler* scheduler) {
    if (tasks_.empty()) return;
    hand_on(scheduler, stream_, [tasks = std::exchange(tasks_, {})]() mutable { run_all(tasks); });
  }

  std::mutex lock_;
  std::vector<Task> tasks_;
  Stream stream_{0, Device::cpu};
};

}  // namespace

// Errors reach those who wait for a stream, by the events that follow in it. MLX throws them, too, at the thread that made the scheduler when it puts
// something into the stream, and forgets what that was; held pieces would be lost with it. So the scheduler is made by a thread that does nothing else,
// and never ends: another could be given its name.
Scheduler& scheduler() {
  static Scheduler* const made = [] {
    std::packaged_task<Scheduler*()> make([] { return new Scheduler; });
    auto future = make.get_future();
    std::thread([make = std::move(make)]() mutable {
      make();
      for (;;) pause();
    }).detach();
    return future.get();
  }();
  return *made;
}

void Scheduler::enqueue(Stream stream, Task task) {
  if (is_piece(task)) {
    Held::get().add(this, stream, std::move(task));
  } else {
    Held::get().before(this, [&] { hand_on(this, stream, std::move(task)); });
  }
}

void Scheduler::signal_event(Stream stream, Event event, EventTask task) {
  static const auto others = behind<Stream, Event, EventTask>(
      "_ZN3mlx4core9scheduler9Scheduler12signal_eventENS0_6StreamENS0_5EventESt8functionIFvRS4_EE");
  Held::get().before(this, [&] { others(this, stream, std::move(event), std::move(task)); });
}

void Scheduler::wait_event(Stream stream, Event event, EventTask task) {
  static const auto others = behind<Stream, Event, EventTask>(
      "_ZN3mlx4core9scheduler9Scheduler10wait_eventENS0_6StreamENS0_5EventESt8functionIFvRS4_EE");
  Held::get().before(this, [&] { others(this, stream, std::move(event), std::move(task)); });
}

}  // namespace mlx::core::scheduler
