// The parameter table, the single source of truth about every learned tensor: initialization, flat
// layout, weight decay, checkpoints and memory prediction read it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/tensor.hpp"

namespace trireme::params {

/// A range of a fused parameter along its split dimension (q|k|v, gate|up). A part splits by
/// whole grains: head_dim rows for heads, 1 for plain columns. Each of its grains serves `serves`
/// grains of the first part (query heads of one key/value head) and goes where those go.
struct Part {
  std::string name;
  std::int64_t extent = 0;
  std::int64_t grain = 1;
  std::int64_t serves = 1;
  bool operator==(const Part&) const = default;
};

/// The distribution of initial values.
struct Initialization {
  enum class Kind : std::uint8_t { zeros, ones, normal } kind = Kind::zeros;
  double deviation = 0;  // standard deviation of `normal`
};

/// One logical parameter.
struct Parameter {
  std::string name;  // "blocks.3.attention.qkv.weight"
  Shape shape;       // logical, whatever the layout
  int split = -1;  // the dimension that tensor parallelism splits; −1: whole on every tensor rank
  std::vector<Part> parts;   // empty: one part, the whole split dimension
  std::vector<int> units;    // which units use it, ascending; a tied weight has two
  bool decay = false;        // weight decay applies
  bool in_products = false;  // a matrix of matrix products: counts in N of MFU
  bool linear = false;       // the weight of a linear layer of a block
  Initialization initialization;
};

/// All parameters of a model: by first unit, then by declaration.
class ParameterTable {
 public:
  /// Appends a row and returns its index. Names are unique; parts must add up to the split
  /// dimension.
  int add(Parameter parameter);
  /// Notes that unit `unit` uses row `index` too (a tied weight).
  void share(int index, int unit);

  const std::vector<Parameter>& rows() const { return rows_; }
  const Parameter& row(int index) const { return rows_[static_cast<std::size_t>(index)]; }
  std::optional<int> find(std::string_view name) const;
  std::int64_t elements() const { return elements_; }  // logical parameters
  std::int64_t product_elements() const;               // N of MFU: rows that enter matrix products

 private:
  std::vector<Parameter> rows_;
  std::map<std::string, int, std::less<>> by_name_;
  std::int64_t elements_ = 0;
};

}  // namespace trireme::params
