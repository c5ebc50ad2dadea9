#include "trireme/data/corpus.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "trireme/core/config.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/files.hpp"

namespace trireme::data {
namespace {

using nlohmann::json;

/// What all sources of a blend must have alike.
void check_alike(const Corpus::Source& first, const Corpus::Source& other,
                 const std::string& where) {
  const Manifest &a = first.dataset.manifest(), &b = other.dataset.manifest();
  const auto refuse_difference = [&](const char* what, const auto& of_a, const auto& of_b) {
    throw Error(
        "data.path = {}: source {} has {} {}, and source {} {}; prepare them with one tokenizer",
        config::one_line(where), other.name, what, of_b, first.name, of_a);
  };
  if (a.tokenizer != b.tokenizer) refuse_difference("tokenizer", a.tokenizer, b.tokenizer);
  if (a.vocabulary != b.vocabulary) refuse_difference("vocabulary", a.vocabulary, b.vocabulary);
  const std::int64_t none = -1;
  if (a.end_of_document != b.end_of_document) {
    refuse_difference("end-of-document token", a.end_of_document.value_or(none),
                      b.end_of_document.value_or(none));
  }
  if (a.tokenizer_details != b.tokenizer_details) {
    refuse_difference("a tokenizer other than", "its own", first.name);
  }
}

std::vector<BlendPhase> phases_of(const std::vector<CorpusSpec::Phase>& phases,
                                  std::int64_t length) {
  std::vector<BlendPhase> result;
  for (const CorpusSpec::Phase& phase : phases) {
    const std::int64_t first = phase.begin / length + (phase.begin % length != 0);
    if (!result.empty() && result.back().first == first) result.pop_back();  // of no sample
    result.push_back({first, shares_of(phase.weights)});
  }
  return result;
}

/// The phases from sample `first` on, the first of them begun there.
std::vector<BlendPhase> phases_from(const std::vector<BlendPhase>& all, std::int64_t first) {
  std::vector<BlendPhase> result;
  for (const BlendPhase& phase : all) {
    if (phase.first <= first) result.clear();
    result.push_back(phase);
  }
  result.front().first = first;
  return result;
}

/// What a checkpoint kept is damaged.
struct Damaged {};

[[noreturn]] void refuse_kept() { throw Damaged(); }

/// A count of each name, all from 0 to `most`.
void check_counts(const json& counts, std::int64_t most) {
  if (!counts.is_object()) refuse_kept();
  for (const auto& [name, count] : counts.items()) {
    if (!count.is_number_integer() || count.get<std::int64_t>() < 0 ||
        count.get<std::int64_t>() > most) {
      refuse_kept();
    }
  }
}

/// By source, at most `most`; `absent` of those that `counts` does not name.
std::vector<std::int64_t> counts_of(const json& counts, const std::vector<Corpus::Source>& sources,
                                    std::int64_t most, std::vector<std::int64_t> absent) {
  check_counts(counts, most);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const auto found = counts.find(sources[i].name);
    if (found != counts.end()) absent[i] = found->get<std::int64_t>();
  }
  return absent;
}

std::int64_t tokens_of_group(const DataConfig& config) { return config.group_mb * (1 << 20) / 2; }

/// Of source `name` in what Corpus::packed gave for a packer of the same `arguments`.
std::optional<Packer::Cursor> cursor_of(const json& kept, const std::string& name,
                                        const json& arguments, const Packer& packer) {
  const auto found = kept.find(name);
  if (found == kept.end() || !found->is_object()) return std::nullopt;
  json left = *found;
  const auto take = [&](const char* key) {
    const auto value = left.find(key);
    if (value == left.end() || !value->is_number_integer()) return std::int64_t{-1};
    const auto number = value->get<std::int64_t>();
    left.erase(value);
    return number;
  };
  const Packer::Cursor cursor{take("epoch"), take("place"), take("first")};
  const bool sound =
      cursor.epoch >= 0 && cursor.place >= 0 && cursor.place < packer.groups() && cursor.first >= 0;
  if (!sound || left != arguments) return std::nullopt;
  return cursor;
}

bool same_place(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code code;
  return a == b || std::filesystem::equivalent(a, b, code);
}

}  // namespace

std::int64_t Corpus::Source::tokens(SplitName split) const {
  std::int64_t tokens = 0;
  const Manifest& manifest = dataset.manifest();
  for (const ShardInfo& shard : split == SplitName::train ? manifest.train : manifest.valid) {
    tokens += shard.tokens;
  }
  return tokens;
}

Corpus::Corpus(std::string name, std::int64_t length, std::vector<Source> sources,
               std::vector<CorpusSpec::Phase> phases)
    : name_(std::move(name)),
      length_(length),
      sources_(std::move(sources)),
      phases_(phases_of(phases, length)),
      end_(phases.back().end),
      order_(phases_, std::vector<std::int64_t>(sources_.size())),
      left_(json::object()) {}

Corpus Corpus::open(const std::string& path, std::int64_t length) {
  CorpusSpec spec = parse_corpus(path);
  std::vector<Source> sources;
  for (const CorpusSpec::Source& source : spec.sources) {
    sources.push_back({source.name, Dataset::open_manifest(source.path), source.most_epochs});
    Source& opened = sources.back();
    check_alike(sources.front(), opened, path);
    const std::int64_t tokens = opened.tokens(SplitName::train);
    if (spec.sources.size() > 1 && tokens <= length) {
      throw Error("data.path = {}: source {} has {} tokens to train on, and a window takes {}; {}",
                  config::one_line(path), opened.name, tokens, length + 1,
                  tokens > 1 ? "leave it out or lower model.sequence"
                             : "leave it out of the blend, or evaluate it by itself");
    }
  }
  return {path, length, std::move(sources), std::move(spec.phases)};
}

void Corpus::check_headers(int rank, int ranks) const {
  // Of the many sources of a blend one may have a single shard: each begins with another rank.
  const auto parts = static_cast<std::size_t>(ranks);
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const std::size_t part = (static_cast<std::size_t>(rank) + i) % parts;
    sources_[i].dataset.check_headers(part, parts);
  }
}

json Corpus::by_name(const std::vector<std::int64_t>& numbers) const {
  json result = json::object();
  for (std::size_t i = 0; i < sources_.size(); ++i) result[sources_[i].name] = numbers[i];
  return result;
}

std::string Corpus::resume(std::int64_t samples, const json& kept, const std::string& before,
                           const std::string& checkpoint) {
  try {
    return go_on(samples, kept, before);
  } catch (const Damaged&) {
    throw Error("{}: its \"blend\" is damaged; use another checkpoint", checkpoint);
  }
}

std::string Corpus::go_on(std::int64_t samples, const json& kept, const std::string& before) {
  std::vector<std::int64_t> given(sources_.size());
  order_ = Blend(phases_, given);
  left_ = json::object();
  std::string changes;
  const auto note = [&](const std::string& what) { changes += "; " + what; };
  std::vector<bool> known(sources_.size());
  if (kept.is_null()) {
    if (!is_blend() || samples == 0) return "";
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      known[i] = same_place(sources_[i].dataset.folder(), before);
      if (known[i]) given[i] = samples;
    }
  } else {
    if (!kept.is_object()) refuse_kept();
    const auto part = [&](const char* key) {
      const auto found = kept.find(key);
      return found == kept.end() ? json() : *found;
    };
    given = counts_of(part("given"), sources_, samples, given);
    left_ = part("given");
    for (std::size_t i = 0; i < sources_.size(); ++i) known[i] = left_.erase(sources_[i].name) > 0;
    const json first = part("phase_first"), parts = part("phase_parts");
    check_counts(parts, most_parts);
    if (!first.is_number_integer() || first.get<std::int64_t>() < 0 ||
        first.get<std::int64_t>() > samples) {
      refuse_kept();
    }
    std::vector<BlendPhase> phases = phases_from(phases_, samples);
    json now = by_name(phases.front().shares.parts);
    std::erase_if(now.get_ref<json::object_t&>(),
                  [](const auto& entry) { return entry.second == 0; });
    if (now == parts) {
      phases.front().first = first.get<std::int64_t>();
      // A source that was not there then gives nothing in this phase.
      order_ = Blend(phases, counts_of(part("phase_given"), sources_, samples, given));
      if (order_.given(samples) != given) refuse_kept();
      return other_data(kept);
    }
    for (const auto& [name, count] : left_.items()) {
      if (parts.contains(name)) note(config::one_line(name) + " is left out");
    }
  }
  order_ = Blend(phases_from(phases_, samples), given);
  const std::vector<std::int64_t>& shares = order_.begun(samples).phase.shares.parts;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    if (!known[i] && shares[i] > 0) {
      note(config::one_line(sources_[i].name) + " is new and begins at its first sample");
    }
  }
  if (const std::string other = other_data(kept); !other.empty()) note(other);
  return fmt::format("from sample {} on the blend is {}{}", samples, describe(samples), changes);
}

std::string Corpus::other_data(const json& kept) const {
  const auto found = kept.find("tokens");
  if (found == kept.end()) return "";  // of an older version
  check_counts(*found, std::numeric_limits<std::int64_t>::max());
  std::string text;
  for (const Source& source : sources_) {
    const std::int64_t tokens = source.tokens(SplitName::train),
                       then = found->value(source.name, tokens);
    if (tokens == then) continue;
    text +=
        fmt::format("{}source {} has {} training tokens, and {} before: its samples are other ones",
                    text.empty() ? "" : "; ", config::one_line(source.name), tokens, then);
  }
  return text;
}

json Corpus::kept(std::int64_t samples) const {
  const Blend::Begun& begun = order_.begun(samples);
  const auto is_zero = [](std::int64_t count) { return count == 0; };
  const bool alone = !is_blend() && left_.empty() && begun.phase.first == 0 &&
                     std::ranges::all_of(begun.given, is_zero);
  if (alone) return nullptr;
  json given = left_, parts = json::object(), tokens = json::object();
  given.update(by_name(order_.given(samples)));
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    if (begun.phase.shares.parts[i] > 0) parts[sources_[i].name] = begun.phase.shares.parts[i];
    tokens[sources_[i].name] = sources_[i].tokens(SplitName::train);
  }
  return {{"tokens", std::move(tokens)},
          {"given", std::move(given)},
          {"phase_first", begun.phase.first},
          {"phase_given", by_name(begun.given)},
          {"phase_parts", std::move(parts)}};
}

Sampler Corpus::sampler(const Source& source, const DataConfig& config, std::uint64_t seed) const {
  return {source.tokens(SplitName::train), length_, tokens_of_group(config), seed, config.shuffle};
}

void Corpus::check_end(const DataConfig& config, std::int64_t samples) const {
  if (end_ != 0 && samples > end_ / length_) {
    throw AgreedError(
        "data.path = {}: the last phase ends at {} tokens, and the run takes {}; raise its end or "
        "lower train.steps",
        config::one_line(name_), end_, samples * length_);
  }
  const std::vector<std::int64_t> given = order_.given(samples);
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const double epochs =
        static_cast<double>(given[i]) / static_cast<double>(samples_of_source(i, config));
    if (sources_[i].most_epochs == 0 || epochs <= sources_[i].most_epochs) continue;
    throw AgreedError(
        "data.path = {}: the run would read source {} {:.2f} times, at most {} are allowed; lower "
        "its weight or train.steps, or raise most_epochs",
        config::one_line(name_), sources_[i].name, epochs, sources_[i].most_epochs);
  }
}

Windows Corpus::windows(const DataConfig& config, std::uint64_t seed) {
  if (config.packs()) return packed_windows(config, seed);
  struct Split {
    std::shared_ptr<TokenReader> reader;
    Sampler sampler;
  };
  const auto cache = make_reader_cache();
  std::vector<Split> splits;
  for (const Source& source : sources_) {
    splits.push_back(
        {source.dataset.reader(SplitName::train, cache), sampler(source, config, seed)});
  }
  return [splits = std::move(splits), order = order_](std::int64_t sample) -> Window {
    const Blend::Place place = order.at(sample);
    const Split& split = splits[place.source];
    const std::int64_t begin = split.sampler.begin(place.sample);
    return {split.reader.get(), {{begin, begin + split.sampler.length()}}};
  };
}

Windows Corpus::packed_windows(const DataConfig& config, std::uint64_t seed) {
  const auto cache = make_reader_cache();
  const std::int64_t group = std::max(length_, tokens_of_group(config));
  packers_.clear();
  for (const Source& source : sources_) {
    packers_.push_back({std::make_shared<Packer>(source.dataset.reader(SplitName::train, cache),
                                                 length_, group, seed, config.shuffle),
                        {{"tokens", source.tokens(SplitName::train)},
                         {"length", length_},
                         {"group", group},
                         {"seed", seed},
                         {"shuffle", config.shuffle}}});
    const SourcePacker& made = packers_.back();
    if (const auto cursor = cursor_of(packed_, source.name, made.arguments, *made.packer)) {
      made.packer->begin_at(*cursor);
    }
  }
  return [packers = packers_, order = order_](std::int64_t sample) -> Window {
    const Blend::Place place = order.at(sample);
    Packer& packer = *packers[place.source].packer;
    return {packer.reader().get(), packer.at(place.sample), true};
  };
}

json Corpus::packed(std::int64_t samples) const {
  if (packers_.empty()) return packed_;
  const std::vector<std::int64_t> given = order_.given(samples);
  json kept;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const Packer::Cursor cursor = packers_[i].packer->cursor(given[i]);
    kept[sources_[i].name] = packers_[i].arguments;
    kept[sources_[i].name].update(
        {{"epoch", cursor.epoch}, {"place", cursor.place}, {"first", cursor.first}});
  }
  return kept;
}

std::vector<Corpus::Split> Corpus::splits(SplitName split) const {
  const auto cache = make_reader_cache();
  std::vector<Split> splits;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    if (sources_[i].tokens(split) <= length_) continue;
    splits.push_back({sources_[i].name, sources_[i].dataset.reader(split, cache), i});
  }
  return splits;
}

std::int64_t Corpus::most_tokens(SplitName split) const {
  std::int64_t most = 0;
  for (const Source& source : sources_) most = std::max(most, source.tokens(split));
  return most;
}

std::int64_t Corpus::samples_of_source(std::size_t source, const DataConfig& config) const {
  const std::int64_t tokens = sources_[source].tokens(SplitName::train);
  const std::int64_t least = config.packs() ? 1 : length_ + 1;
  if (tokens < least) {
    throw AgreedError(
        "data.path = {}: source {} has {} training tokens, and a sample takes {}; leave it out, or "
        "prepare it with more text for training",
        config::one_line(name_), config::one_line(sources_[source].name), tokens, least);
  }
  if (config.packs()) return (tokens - 1) / length_ + 1;
  return sampler(sources_[source], config, 0).windows_per_epoch();
}

std::int64_t Corpus::epoch_samples(const DataConfig& config) const {
  std::int64_t samples = 0;
  for (std::size_t i = 0; i < sources_.size(); ++i) samples += samples_of_source(i, config);
  return samples;
}

std::string Corpus::describe(std::int64_t samples) const {
  constexpr std::size_t most = 8;
  const Shares& shares = order_.begun(samples).phase.shares;
  std::string text;
  std::size_t shown = 0, used = 0;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    if (shares.parts[i] == 0) continue;
    if (++used > most) continue;
    const double percent =
        100 * static_cast<double>(shares.parts[i]) / static_cast<double>(shares.all);
    text += fmt::format("{}{} {:.4g} %", shown++ == 0 ? "" : ", ", sources_[i].name, percent);
  }
  if (used > most) text += fmt::format(" and {} more", used - most);
  return text;
}

}  // namespace trireme::data
