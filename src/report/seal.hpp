// Seals of a record: xxh3 (64 bits, 16 hexadecimal digits) of what was written. They find what was
// changed by accident or by hand. They hold no secret: a recomputed seal is not detected.
#pragma once

#include <string>
#include <string_view>

namespace trireme::report {

std::string seal_of(std::string_view text);

/// `object`, the text of a JSON object that is not empty, with a last key "seal": that of `before`
/// and `object`.
std::string with_seal(std::string_view object, std::string_view before = {});

/// The seal at the end of `text`, which with_seal() made; empty: there is none.
std::string seal_in(std::string_view text);

/// Whether `text` is what with_seal() makes of its object and `before`.
bool seal_holds(std::string_view text, std::string_view before = {});

}  // namespace trireme::report
