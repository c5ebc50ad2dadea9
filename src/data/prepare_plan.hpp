// What a prepare is about to do, before it writes anything.
#pragma once

#include <filesystem>
#include <string>

#include "trireme/data/prepare.hpp"

#include "token_files.hpp"

namespace trireme::data {

/// Throws Error for a number out of its range, a name that a dataset cannot have, and an input that
/// is named twice.
void check_options(const PrepareOptions& options);

/// The output folder without "." parts and a slash at the end, so that it has a name and a parent.
std::filesystem::path plain_output(const PrepareOptions& options);
/// Its name, or that of its folder.
std::string dataset_name(const PrepareOptions& options);

/// All that what is encoded depends on, for a folder to be taken over, as JSON: options, files with
/// size and time of change, and "parts": [[number of the input, begin, end], …] of each
/// (TextRange); one part for token files, which `open` opens. Throws Error for inputs that are not
/// there.
std::string plan_of(const PrepareOptions& options, OpenTokens open);

}  // namespace trireme::data
