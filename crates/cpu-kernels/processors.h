// The number of processors that this process may use: those of its affinity mask, limited by the quota of its control
// groups.
#pragma once

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <thread>

// Returns the quota in the `cpu.max` file of a control group (version 2), in processors; `none` if it has none.
inline double quota_of(const std::string& group, double none) {
  std::ifstream file("/sys/fs/cgroup" + group + "/cpu.max");
  double quota = 0, period = 0;
  return file >> quota >> period && quota > 0 && period > 0 ? quota / period : none;
}

// Returns the smallest quota of this process's group and its parent groups.
inline double smallest_quota(double none) {
  std::ifstream file("/proc/self/cgroup");
  double smallest = none;
  for (std::string line; std::getline(file, line);) {
    // The line of version 2.
    if (line.rfind("0::", 0) != 0) continue;
    std::string group = line.substr(3);
    if (group == "/") group.clear();
    for (;;) {
      smallest = std::min(smallest, quota_of(group, none));
      if (group.empty()) break;
      const auto last = group.rfind('/');
      group.resize(last == std::string::npos ? 0 : last);
    }
  }
  return smallest;
}

inline int processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool known = sched_getaffinity(0, sizeof set, &set) == 0;
  const int count = known ? CPU_COUNT(&set) : static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, std::min(count, static_cast<int>(std::ceil(smallest_quota(count)))));
}
