// Reads the HDF5 library's error stack.
#include <string_view>

#include "trireme/data/hdf5.hpp"

namespace trireme::data::hdf5 {
namespace {

struct Reason {
  std::string system;  // inside "error message = '…'"
  std::string first;   // of the innermost entry
};

herr_t note_reason(unsigned depth, const H5E_error2_t* entry, void* context) {
  auto* found = static_cast<Reason*>(context);
  const std::string_view text = entry->desc == nullptr ? "" : entry->desc;
  if (depth == 0) found->first = text;
  static constexpr std::string_view mark = "error message = '";
  const std::size_t begin = text.find(mark);
  if (begin != std::string_view::npos && found->system.empty()) {
    const std::string_view rest = text.substr(begin + mark.size());
    found->system = rest.substr(0, rest.find('\''));
  }
  return 0;
}

}  // namespace

std::string reason() {
  Reason found;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, note_reason, &found);
  if (!found.system.empty()) return found.system;
  return found.first.empty() ? "the HDF5 library gives no reason" : found.first;
}

}  // namespace trireme::data::hdf5
