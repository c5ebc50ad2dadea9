#include "spool.hpp"

#include <cmath>
#include <cstdlib>
#include <limits>

namespace trireme::data {

Spool::Spool(const std::filesystem::path& folder, std::size_t element_bytes)
    : element_bytes_(element_bytes),
      tokens_file_(folder / "tokens.spool"),
      ends_file_(folder / "ends.spool"),
      tokens_out_(tokens_file_),
      ends_out_(ends_file_) {}

void Spool::append(std::span<const std::int32_t> tokens) {
  tokens_ += static_cast<std::int64_t>(tokens.size());
  if (element_bytes_ == 4) {
    tokens_out_.write(tokens.data(), tokens.size_bytes());
    return;
  }
  const std::vector<std::uint16_t> narrow(tokens.begin(), tokens.end());
  tokens_out_.write(narrow.data(), narrow.size() * sizeof(std::uint16_t));
}

void Spool::end_document() {
  ends_out_.write(&tokens_, sizeof tokens_);
  ++documents_;
}

void Spool::finish() {
  tokens_out_.finish();
  ends_out_.finish();
}

void Spool::remove() {
  for (const std::filesystem::path& file : {tokens_file_, ends_file_}) {
    std::error_code error;
    std::filesystem::remove(file, error);
    if (error) throw_file_error(file, "remove", error.value());
  }
}

std::int64_t EndReader::next() {
  if (at_ == buffer_.size()) {
    buffer_.resize(std::size_t{1} << 16);
    const std::size_t got = file_.read(buffer_.data(), buffer_.size() * sizeof(std::int64_t));
    buffer_.resize(got / sizeof(std::int64_t));
    at_ = 0;
    if (buffer_.empty()) return std::numeric_limits<std::int64_t>::max();
  }
  return buffer_[at_++];
}

std::int64_t training_tokens(const Spool& spool, double valid_fraction) {
  const auto all = static_cast<double>(spool.tokens());
  const double exact = (1 - valid_fraction) * all;
  // (1 − 0.9)·10 is below 1 in binary: what is whole but for rounding counts as whole.
  const double whole = std::round(exact);
  const auto target =
      static_cast<std::int64_t>(std::abs(exact - whole) <= 1e-12 * all ? whole : std::floor(exact));
  if (valid_fraction == 0) return spool.tokens();
  if (spool.documents() == 1) return target;
  EndReader ends(spool.ends_file());
  std::int64_t best = 0;
  for (std::int64_t i = 0; i + 1 < spool.documents(); ++i) {
    const std::int64_t end = ends.next();
    if (best == 0 || std::llabs(end - target) < std::llabs(best - target)) best = end;
    if (end >= target) break;
  }
  return best;
}

}  // namespace trireme::data
