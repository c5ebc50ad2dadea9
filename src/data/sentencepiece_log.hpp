#pragma once

namespace trireme::data {

/// Keeps SentencePiece from writing to standard error; its errors come back as status values.
void silence_sentencepiece();

}  // namespace trireme::data
