// Checks a file before libhdf5 opens it. The library trusts much of what files hold about
// themselves, checksums or not: its versions 1.10 have known faults on hostile ones. So files that
// are only read are walked first, and may hold nothing but what our own writers make.
#pragma once

#include "trireme/core/files.hpp"

namespace trireme::data::hdf5 {

/// Walks all structure of `file` from its superblock on: groups, links, datasets, attributes and
/// indices of chunks are inside the file, have the sizes that they claim, and are of the kinds that
/// this program writes (superblock 3 and its object headers, links in headers or in a heap with a
/// B-tree, fixed-size types, single chunks and fixed arrays of them). Checksums are left to the
/// library. Throws Error that begins with the file's path. Format: "HDF5 File Format Specification
/// Version 3.0".
void check_structure(const InputFile& file);

}  // namespace trireme::data::hdf5
