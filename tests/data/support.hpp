// Bytes, prose and small datasets.
#pragma once

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/core/error.hpp"
#include "trireme/data/dataset.hpp"
#include "trireme/data/hdf5.hpp"
#include "trireme/data/prepare.hpp"

#include "support/files.hpp"

namespace trireme::data::test {

namespace fs = std::filesystem;
using trireme::test::read_text;
using trireme::test::Scratch;
using trireme::test::write_text;

/// `size` bytes of every value, the same for the same seed.
inline std::string random_bytes(std::size_t size, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random() & 0xFF);
  return text;
}

/// Words of a small vocabulary with spaces and newlines.
inline std::string prose(std::size_t size, std::uint32_t seed) {
  static const std::vector<std::string> words = {
      "the", "oar",  "sea",       "rowers", "stern", "wine-dark", "prow", "Athens",  "salt",
      "and", "wind", "hull,",     "bronze", "of",    "trireme",   "to",   "Salamis", "banks",
      "in",  "keel", "caf\u00e9", "a",      "rope",  "tide;",     "was",  "harbour", "three."};
  std::mt19937 random(seed);
  std::string text;
  while (text.size() < size) {
    text += words[random() % words.size()];
    text += random() % 9 == 0 ? "\n" : " ";
  }
  text.resize(size);
  return text;
}

inline std::vector<std::int32_t> all_tokens(const Dataset& dataset, SplitName split) {
  const auto reader = dataset.reader(split);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(reader->tokens()));
  reader->read(0, tokens);
  return tokens;
}

inline std::vector<std::int32_t> bytes_of(const std::string& text) {
  std::vector<std::int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

/// The message of the Error that `call` throws; a failure if it throws none or spans lines.
template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }
  ADD_FAILURE() << "no Error";
  return {};
}

/// Removes the checksum, which is optional, from a dataset.json, so that it can be edited.
inline void unseal(const fs::path& dataset) {
  std::string text = read_text(dataset / "dataset.json");
  const std::size_t begin = text.find("  \"manifest_xxh3\"");
  text.erase(begin, text.find('\n', begin) + 1 - begin);
  write_text(dataset / "dataset.json", text);
}

/// Open identifiers of libhdf5. The library keeps them reachable, so leak checkers do not report
/// them.
inline std::int64_t open_identifiers() {
  const hdf5::Lock lock;
  std::int64_t all = 0;
  for (const H5I_type_t type : {H5I_FILE, H5I_GROUP, H5I_DATASPACE, H5I_DATASET, H5I_ATTR}) {
    hsize_t count = 0;
    H5Inmembers(type, &count);
    all += static_cast<std::int64_t>(count);
  }
  return all;
}

/// Prepares `text` as one file into scratch/name.
inline Dataset make_dataset(const Scratch& scratch, const std::string& name,
                            const std::string& text, PrepareOptions options = {}) {
  write_text(scratch / (name + ".txt"), text);
  options.inputs = {scratch / (name + ".txt")};
  options.output = scratch / name;
  prepare(options, {});
  return Dataset::open(options.output);
}

}  // namespace trireme::data::test
