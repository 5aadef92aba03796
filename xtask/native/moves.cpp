// MLX's operations that put the keys and values of a single row where they belong, as one: `concatenate` of runs, and `slice_update` with them.
#include "moves.h"

#include <utility>
#include <vector>

#include "mlx/ops.h"

namespace mlx::core {

namespace {

constexpr const char* kConcatenate = "Concatenate";

// The runs that become one if these arrays are concatenated.
std::vector<Run> runs_of(const std::vector<array>& arrays, int axis, const StreamOrDevice& s) {
  std::vector<Run> runs;
  const Shape& first = arrays.front().shape();
  if (axis < 0 || axis >= static_cast<int>(first.size()) || !are_ones(first.begin(), first.begin() + axis)) return {};
  for (const array& a : arrays) {
    Shape shape = a.shape();
    if (shape.size() != first.size()) return {};
    shape[axis] = first[axis];
    const auto run = shape == first && is_ours(a, s) ? run_of(a) : std::nullopt;
    if (!run) return {};
    runs.push_back(*run);
  }
  return runs;
}

bool is_within(const Shape& start, const Shape& stop, const Shape& steps, const array& source, const array& update) {
  const std::size_t axes = source.ndim();
  if (update.ndim() != axes || start.size() != axes || stop.size() != axes || steps.size() != axes) return false;
  for (std::size_t axis = 0; axis < axes; ++axis) {
    if (steps[axis] != 1 || start[axis] < 0 || stop[axis] > source.shape(axis) || stop[axis] - start[axis] != update.shape(axis)) return false;
  }
  return true;
}

// Copies rows to their places in `out`, from `start` on.
void write(const array& rows, const Shape& start, array& out) {
  const int last = static_cast<int>(out.ndim()) - 1;
  const std::ptrdiff_t length = rows.shape(last), count = static_cast<std::ptrdiff_t>(rows.size()) / length;
  const float* from = rows.data<float>();
  for (std::ptrdiff_t row = 0; row < count; ++row, from += length) {
    std::ptrdiff_t place = start[last], rest = row, stride = out.shape(last);
    for (int axis = last - 1; axis >= 0; rest /= rows.shape(axis), stride *= out.shape(axis), --axis)
      place += (start[axis] + rest % rows.shape(axis)) * stride;
    std::copy_n(from, length, out.data<float>() + place);
  }
}

}  // namespace

array concatenate(std::vector<array> arrays, int axis, StreamOrDevice s) {
  const int axes = arrays.empty() ? 0 : static_cast<int>(arrays.front().ndim()), at = axis < 0 ? axis + axes : axis;
  const auto runs = arrays.size() < 2 ? std::vector<Run>{} : runs_of(arrays, at, s);
  if (!runs.empty()) {
    Shape shape = arrays.front().shape();
    shape[at] = 0;
    std::vector<array> inputs;
    std::vector<std::pair<std::ptrdiff_t, std::size_t>> parts;
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      shape[at] += arrays[i].shape(at);
      inputs.push_back(runs[i].of);
      parts.emplace_back(runs[i].begin, arrays[i].size());
    }
    return operation(kConcatenate, std::move(shape), std::move(inputs), s, [parts](Inputs inputs, array& out) {
      float* to = out.data<float>();
      for (std::size_t i = 0; i < parts.size(); ++i) to = std::copy_n(inputs[i].data<float>() + parts[i].first, parts[i].second, to);
    }, Kind::kOfRows);
  }
  using Concatenate = array(std::vector<array>, int, StreamOrDevice);
  static Concatenate* const others = next<Concatenate>(&concatenate);
  return others(std::move(arrays), axis, s);
}

array slice_update(const array& src, const array& update, Shape start, Shape stop, Shape strides, StreamOrDevice s) {
  const Operation* const maker = pending(update, Kind::kOfRows);
  if (is_ours(src, s) && maker != nullptr && std::strcmp(maker->name(), kConcatenate) == 0 && is_within(start, stop, strides, src, update)) {
    std::vector<array> inputs{src};
    inputs.insert(inputs.end(), update.inputs().begin(), update.inputs().end());
    return operation("SliceUpdate", src.shape(), std::move(inputs), s, [start, shape = update.shape(), evaluate = maker->evaluation()](Inputs inputs, array& out) {
      // In place, unless something else reads the source.
      if (const array& source = inputs[0]; source.data<float>() != out.data<float>()) {
        std::vector<float> copy;
        std::copy_n(rows_of(source, copy), source.size(), out.data<float>());
      }
      write(made(evaluate, inputs.subspan(1), shape), start, out);
    }, Kind::kOther, true);
  }
  using SliceUpdate = array(const array&, const array&, Shape, Shape, Shape, StreamOrDevice);
  static SliceUpdate* const others = next<SliceUpdate>(&slice_update);
  return others(src, update, std::move(start), std::move(stop), std::move(strides), s);
}

}  // namespace mlx::core
