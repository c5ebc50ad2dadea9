// Where the tokens of a run come from.
#pragma once

#include <string>

#include "trireme/core/config.hpp"

namespace trireme::data {

struct DataConfig {
  std::string path;             // a dataset or a blend; see data/corpus.hpp
  bool shuffle = true;          // off: windows in file order
  std::int64_t group_mb = 256;  // windows are shuffled within groups of this many MB of tokens
  std::string packing = "windows";
  bool document_mask = false;  // attention stays inside documents
  std::int64_t prefetch = 2;   // micro-batches read ahead

  bool packs() const {
    return config::select<bool>("data.packing", packing, {{"windows", false}, {"documents", true}});
  }
  void declare(config::Fields& fields) {
    fields.add("path", path,
               "folder of a dataset made by `trireme prepare`, or a blend: \"0.7 books, 0.3 web\" "
               "or FILE.toml");
    fields.add("shuffle", shuffle, "visit windows in a random order, another one in each epoch");
    fields.add("group_mb", group_mb, "MB of tokens in a group of windows shuffled together",
               config::at_least(1));
    fields.add("packing", packing,
               "what a sequence holds: the next tokens, whatever documents they are of, or whole "
               "documents and padding; validation reads windows",
               config::one_of({"windows", "documents"}));
    fields.add("document_mask", document_mask, "tokens attend only within their document");
    fields.add("prefetch", prefetch, "micro-batches read ahead of the step", config::at_least(1));
  }
};

}  // namespace trireme::data
