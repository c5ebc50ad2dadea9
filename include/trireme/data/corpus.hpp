// What data.path names: one dataset, or a blend of several with weights (docs/data.md).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/data/blend.hpp"
#include "trireme/data/config.hpp"
#include "trireme/data/dataset.hpp"
#include "trireme/data/loader.hpp"

namespace trireme::data {

/// The value of data.path, read.
struct CorpusSpec {
  struct Source {
    std::string path, name;  // the latter by default that of the folder
    double most_epochs = 0;  // passes over its training split; 0: any number
  };
  struct Phase {
    std::int64_t begin = 0, end = 0;  // tokens of the run; end 0: none
    std::vector<double> weights;      // by source
  };
  std::vector<Source> sources;
  std::vector<Phase> phases;  // adjacent, the first from 0
};
/// "FOLDER", "WEIGHT FOLDER, WEIGHT FOLDER, …", or "FILE.toml", whose paths are relative to it.
/// Throws AgreedError.
CorpusSpec parse_corpus(const std::string& path);
/// Whether `path` is written as a blend, and no folder.
bool is_blend(const std::string& path);

/// The sources, in the order of their names, and the order in which a run takes samples of `length`
/// tokens from them. All have one tokenizer and one vocabulary.
class Corpus {
 public:
  struct Source {
    std::string name;
    Dataset dataset;
    double most_epochs = 0;
    std::int64_t tokens(SplitName split) const;
  };
  /// Reads the manifests of the datasets. Throws Error that names the source.
  static Corpus open(const std::string& path, std::int64_t length);
  /// Checks the headers of shards; rank `rank` of `ranks` does its part of them. Throws Error.
  void check_headers(int rank = 0, int ranks = 1) const;

  const std::vector<Source>& sources() const { return sources_; }
  bool is_blend() const { return sources_.size() > 1; }
  /// The first source's dataset, for what all have alike: tokenizer and vocabulary.
  const Dataset& dataset() const { return sources_.front().dataset; }
  const Manifest& manifest() const { return dataset().manifest(); }

  const Blend& order() const { return order_; }
  /// Goes on after `samples` of a run that kept `kept` (below; null where it had no blend, but the
  /// dataset `before`). Where the shares are the ones of then, so is the order; else a phase of the
  /// new ones begins here. Returns a line for the user, or "": new shares, sources that are new or
  /// left out (as one with another name is both), and those of other data. Throws Error that names
  /// `checkpoint` where `kept` is damaged.
  std::string resume(std::int64_t samples, const nlohmann::json& kept, const std::string& before,
                     const std::string& checkpoint = "the checkpoint");
  /// For a checkpoint after `samples`: what each source has given, and where the phase began. Null
  /// for a dataset that has always been alone.
  nlohmann::json kept(std::int64_t samples) const;
  /// Throws AgreedError where, before sample `samples`, a source would pass its most_epochs or the
  /// last phase would end.
  void check_end(const DataConfig& config, std::int64_t samples) const;

  /// Where each training sample is.
  Windows windows(const DataConfig& config, std::uint64_t seed);
  /// With data.packing = documents, for a checkpoint after `samples`: how far groups were counted
  /// (Packer::Cursor), by source, so that a restart need not count them again. Else null.
  nlohmann::json packed(std::int64_t samples) const;
  /// Before windows(): what packed() gave. What other data or settings gave is not used.
  void resume_packed(nlohmann::json kept) { packed_ = std::move(kept); }
  /// The sources of whose split a window can be read.
  struct Split {
    std::string name;
    std::shared_ptr<TokenReader> reader;
    std::size_t source;
  };
  std::vector<Split> splits(SplitName split) const;
  std::int64_t most_tokens(SplitName split) const;  // of any source
  /// Training samples of an epoch of one source, and of all: windows, or the fewest sequences that
  /// hold all tokens.
  std::int64_t samples_of_source(std::size_t source, const DataConfig& config) const;
  std::int64_t epoch_samples(const DataConfig& config) const;
  const std::vector<BlendPhase>& phases() const { return phases_; }
  /// Of the shares from sample `samples` on: "books 70 %, web 30 %".
  std::string describe(std::int64_t samples) const;

 private:
  Corpus(std::string name, std::int64_t length, std::vector<Source> sources,
         std::vector<CorpusSpec::Phase> phases);
  std::string go_on(std::int64_t samples, const nlohmann::json& kept, const std::string& before);
  /// What a source has other data for than the run that kept `kept`, or "".
  std::string other_data(const nlohmann::json& kept) const;
  Sampler sampler(const Source& source, const DataConfig& config, std::uint64_t seed) const;
  Windows packed_windows(const DataConfig& config, std::uint64_t seed);
  nlohmann::json by_name(const std::vector<std::int64_t>& numbers) const;

  std::string name_;  // data.path
  std::int64_t length_;
  std::vector<Source> sources_;
  std::vector<BlendPhase> phases_;
  std::int64_t end_ = 0;  // tokens, of the last phase; 0: none
  Blend order_;
  nlohmann::json left_;  // what sources have given that are not in the corpus any more
  /// By source, from windows() on, with what their cursors depend on; empty: nothing is packed.
  struct SourcePacker {
    std::shared_ptr<Packer> packer;
    nlohmann::json arguments;
  };
  std::vector<SourcePacker> packers_;
  nlohmann::json packed_;  // resume_packed()
};

}  // namespace trireme::data
