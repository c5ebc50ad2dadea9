// The parameter table: the single source of truth about every learned tensor. Initialisation, flat
// layout, weight decay, gradient buckets, checkpoints and memory prediction all walk it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/tensor.hpp"

namespace trireme::params {

/// Along which dimension tensor parallelism may split a parameter, and in what grains.
struct Split {
  int dimension = -1;  // −1: replicated on every tensor rank
};

/// A stretch of a fused parameter along its split dimension (q|k|v, gate|up). A part splits by
/// whole grains: head_dim rows for heads, 1 for plain columns.
struct Part {
  std::string name;
  std::int64_t extent = 0;
  std::int64_t grain = 1;
};

/// How the first values are made.
struct Initialisation {
  enum class Kind : std::uint8_t { zeros, ones, normal } kind = Kind::zeros;
  double deviation = 0;  // standard deviation of `normal`
};

/// One logical parameter.
struct Parameter {
  std::string name;  // "blocks.3.attention.qkv.weight"
  Shape shape;       // logical, whatever the layout
  Split split;
  std::vector<Part> parts;   // empty: one part, the whole split dimension
  std::vector<int> units;    // which units use it, ascending; a tied weight has two
  bool decay = false;        // weight decay applies
  bool in_products = false;  // a matrix of matrix products: counts in N of MFU
  Initialisation initialisation;
  std::int64_t offset = 0;  // first element in a flat buffer; the table assigns it
};

/// All parameters of a model, in flat order: by first unit, then by declaration. Each starts on a
/// 64-byte boundary of an fp32 buffer, so neighbours share no cache line.
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
  std::int64_t elements() const { return elements_; }            // logical parameters
  std::int64_t flat_elements() const { return flat_elements_; }  // with the gaps between rows
  std::int64_t product_elements() const;  // N of MFU: rows that enter matrix products

  /// The row's view of a flat fp32 buffer of flat_elements() elements.
  Tensor view(const Tensor& flat, int index) const;
  /// Rows whose first unit is `unit`: [first element, last element) of the flat buffer.
  struct Range {
    std::int64_t begin = 0, end = 0;
  };
  Range unit_range(int unit) const;

 private:
  std::vector<Parameter> rows_;
  std::int64_t elements_ = 0, flat_elements_ = 0;
};

/// Writes first values into `flat` (fp32): element i of row r is a function of (seed, row name, i)
/// alone.
void initialise(const ParameterTable& table, std::uint64_t seed, const Tensor& flat);

}  // namespace trireme::params
