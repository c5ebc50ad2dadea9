// Text to token ids and back; decode(encode(x)) = x for every byte string.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/data/dataset.hpp"

namespace trireme::data {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string kind() const = 0;           // as in dataset.json
  virtual std::int64_t vocabulary() const = 0;    // with the end-of-document token, if any
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  virtual std::string decode(const std::vector<std::int32_t>& ids) const = 0;
};

/// The tokenizer that a dataset was made with, from the dataset's own files.
std::unique_ptr<Tokenizer> load_tokenizer(const Dataset& dataset);

}  // namespace trireme::data
