// MLX operations that store the keys and values of a single row, fused: `concatenate` of runs, and `slice_update` with
// the result.
#include "moves.h"

#include <utility>
#include <vector>

#include "mlx/ops.h"

namespace mlx::core {

namespace {

constexpr const char* kConcatenate = "Concatenate";

// Returns the runs that these arrays are, if concatenating them gives one row of numbers.
std::vector<Part> runs_of(const std::vector<array>& arrays, int axis, const StreamOrDevice& s) {
  std::vector<Part> runs;
  const Shape& first = arrays.front().shape();
  if (axis < 0 || axis >= static_cast<int>(first.size()) || !are_ones(first.begin(), first.begin() + axis)) return {};
  for (const array& a : arrays) {
    Shape shape = a.shape();
    if (shape.size() != first.size()) return {};
    shape[axis] = first[axis];
    const auto run = shape == first && is_ours(a, s) ? run_of(a) : std::nullopt;
    if (!run) return {};
    runs.push_back(run->part(a.shape()));
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

// Copies rows to their positions in `out`, beginning at `start`.
void write(const Operand& rows, const Shape& start, const Operand& out) {
  const int last = out.ndim() - 1;
  const std::ptrdiff_t length = rows.shape(last), count = static_cast<std::ptrdiff_t>(rows.size()) / length;
  const float* from = rows.data<float>();
  for (std::ptrdiff_t row = 0; row < count; ++row, from += length) {
    std::ptrdiff_t place = start[last], rest = row;
    for (int axis = last - 1; axis >= 0; rest /= rows.shape(axis), --axis) place += (start[axis] + rest % rows.shape(axis)) * out.stride(axis);
    std::copy_n(from, length, out.data<float>() + place);
  }
}

}  // namespace

array concatenate(std::vector<array> arrays, int axis, StreamOrDevice s) {
  const int axes = arrays.empty() ? 0 : static_cast<int>(arrays.front().ndim()), at = axis < 0 ? axis + axes : axis;
  const auto runs = arrays.size() < 2 ? std::vector<Part>{} : runs_of(arrays, at, s);
  if (!runs.empty()) {
    Shape shape = arrays.front().shape();
    shape[at] = 0;
    std::vector<array> inputs;
    std::vector<Place> places;
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      shape[at] += arrays[i].shape(at);
      inputs.push_back(runs[i].of);
      places.push_back(runs[i].place);
    }
    const auto evaluation = [places = std::move(places)](Operands inputs, const Operand& out) {
      float* to = out.data<float>();
      for (std::size_t i = 0; i < places.size(); ++i) {
        const Operand run = places[i].in(inputs[i]);
        to = std::copy_n(run.data<float>(), run.size(), to);
      }
    };
    return operation(kConcatenate, std::move(shape), std::move(inputs), s, evaluation, Kind::kOfRows);
  }
  using Concatenate = array(std::vector<array>, int, StreamOrDevice);
  static Concatenate* const others = next<Concatenate>(&concatenate);
  return others(std::move(arrays), axis, s);
}

array slice_update(const array& src, const array& update, Shape start, Shape stop, Shape strides, StreamOrDevice s) {
  const Maker maker = pending(update, Kind::kOfRows);
  if (is_ours(src, s) && maker != nullptr && std::strcmp(maker->name(), kConcatenate) == 0 && is_within(start, stop, strides, src, update)) {
    std::vector<array> inputs{src};
    inputs.insert(inputs.end(), update.inputs().begin(), update.inputs().end());
    const auto evaluation = [start, shape = update.shape(), maker](Operands inputs, const Operand& out) {
      // Update in place, unless something else uses the source.
      if (const Operand& source = inputs[0]; source.data<float>() != out.data<float>()) {
        std::vector<float> copy;
        std::copy_n(rows_of(source, copy), source.size(), out.data<float>());
      }
      const Room rows(shape);
      maker->evaluate(inputs.subspan(1), rows.operand());
      write(rows.operand(), start, out);
    };
    return operation("SliceUpdate", src.shape(), std::move(inputs), s, evaluation, Kind::kOther, true);
  }
  using SliceUpdate = array(const array&, const array&, Shape, Shape, Shape, StreamOrDevice);
  static SliceUpdate* const others = next<SliceUpdate>(&slice_update);
  return others(src, update, std::move(start), std::move(stop), std::move(strides), s);
}

}  // namespace mlx::core
