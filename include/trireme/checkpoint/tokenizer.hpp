// The tokenizer that a model's text was made with, kept in its checkpoints, so that they need no
// dataset to speak.
#pragma once

#include <optional>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/data/tokenizer.hpp"

namespace trireme::checkpoint {

/// Makes a tokenizer part of what is saved. One of kind "none" is left out.
void keep_tokenizer(State& state, const data::StoredTokenizer& tokenizer);

/// The tokenizer kept in a checkpoint, or nothing: for data::load_tokenizer and
/// data::stored_tokenizer, with reader.folder(). Throws Error naming the checkpoint.
std::optional<data::Manifest> kept_tokenizer(const Reader& reader);

}  // namespace trireme::checkpoint
