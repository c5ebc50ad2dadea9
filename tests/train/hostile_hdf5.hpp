// HDF5 files that the library writes without complaint and that must be refused.
#pragma once

#include <limits>

#include <fmt/format.h>
#include <hdf5.h>

#include "train/hostile.hpp"

namespace trireme::hostile {

constexpr hsize_t tokens_of_base = 4000;  // tokens of base/data's training shard
constexpr hsize_t huge = hsize_t{1} << 40;

/// A dataset that replaces a sound one.
struct Forged {
  hid_t type = H5T_STD_U16LE;
  std::vector<hsize_t> extent = {tokens_of_base};
  std::vector<hsize_t> chunk = {tokens_of_base};  // empty: contiguous
  std::function<void(hid_t)> properties = [](hid_t list) { H5Pset_fletcher32(list); };
  bool data = true;
};

inline void forge(hid_t file, const char* name, const Forged& what) {
  const hid_t list = H5Pcreate(H5P_DATASET_CREATE);
  if (!what.chunk.empty()) {
    H5Pset_chunk(list, static_cast<int>(what.chunk.size()), what.chunk.data());
  }
  what.properties(list);
  const hid_t space =
      H5Screate_simple(static_cast<int>(what.extent.size()), what.extent.data(), nullptr);
  const hid_t dataset = H5Dcreate2(file, name, what.type, space, H5P_DEFAULT, list, H5P_DEFAULT);
  if (dataset < 0) {
    H5Eprint2(H5E_DEFAULT, stderr);
    throw std::runtime_error(std::string(name) + " cannot be forged");
  }
  if (what.data) {
    const std::vector<std::uint16_t> values(tokens_of_base, 'a');
    H5Dwrite(dataset, H5T_NATIVE_UINT16, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  }
  H5Dclose(dataset);
  H5Sclose(space);
  H5Pclose(list);
}

/// Opens a file for changes in the format that this program writes.
inline void change(const fs::path& path, const std::function<void(hid_t)>& edit) {
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110);
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, access);
  if (file < 0) throw std::runtime_error(path.string() + " cannot be opened");
  edit(file);
  H5Fclose(file);
  H5Pclose(access);
}

/// "tokens" of the training shard replaced by `make`.
inline void shard(Corpus& corpus, const std::string& name, const std::string& message,
                  const std::function<void(hid_t)>& make) {
  corpus.dataset(name, message, [&](const fs::path& folder) {
    change(folder / "train-00000.h5", [&](hid_t file) {
      H5Ldelete(file, "tokens", H5P_DEFAULT);
      make(file);
    });
  });
}
inline void shard(Corpus& corpus, const std::string& name, const std::string& message,
                  const Forged& what) {
  shard(corpus, name, message, [&](hid_t file) { forge(file, "tokens", what); });
}

/// The attribute `name` of the file replaced.
inline void attribute(hid_t file, const char* name, hid_t type, hid_t space, const void* value) {
  H5Adelete(file, name);
  const hid_t made = H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
  if (made < 0) throw std::runtime_error(std::string(name) + " cannot be forged");
  H5Awrite(made, type, value);
  H5Aclose(made);
}

inline void add_storage(Corpus& corpus) {
  const std::string elsewhere = "/tokens: is stored in another way";
  Forged external;
  external.chunk = {};
  external.data = false;
  external.properties = [](hid_t list) {
    H5Pset_external(list, "/etc/hostname", 0, 2 * tokens_of_base);
  };
  shard(corpus, "external", elsewhere, external);
  Forged mapped = external;
  mapped.properties = [](hid_t list) {
    const hid_t space = H5Screate_simple(1, &tokens_of_base, nullptr);
    H5Pset_virtual(list, space, "/etc/hostname", "/tokens", space);
    H5Sclose(space);
  };
  shard(corpus, "virtual", elsewhere, mapped);
  Forged compact;
  compact.chunk = {};
  compact.properties = [](hid_t list) { H5Pset_layout(list, H5D_COMPACT); };
  shard(corpus, "compact", elsewhere, compact);
  Forged filter;
  filter.properties = [](hid_t list) { H5Pset_deflate(list, 9); };
  shard(corpus, "deflate", elsewhere, filter);
  filter.data = false;
  filter.properties = [](hid_t list) {
    const std::vector<unsigned> values(20'000, 7);
    H5Pset_filter(list, 32'000, H5Z_FLAG_OPTIONAL, 2000, values.data());
  };
  shard(corpus, "unknown-filter", elsewhere, filter);
  Forged bomb;  // chunks of 8 GiB of zeros
  bomb.extent = {huge};
  bomb.chunk = {(hsize_t{1} << 31) - 1};
  bomb.data = false;
  shard(corpus, "chunk-bomb", "expected one dimension of exactly 4000 elements", bomb);
  bomb.extent = {tokens_of_base};
  bomb.chunk = {1};
  shard(corpus, "chunks-of-one", elsewhere, bomb);
  Forged absent;
  absent.data = false;
  shard(corpus, "never-written", "is not there in full", absent);
}

inline void add_shapes(Corpus& corpus) {
  const std::string type = "/tokens: is of the wrong type";
  const std::string extent = "expected one dimension of exactly 4000 elements";
  Forged shape;
  shape.data = false;
  shape.extent = {huge, hsize_t{1} << 20};
  shape.chunk = {1, 1};
  shard(corpus, "shape-bomb", extent, shape);
  shape.extent = {(hsize_t{1} << 62) + 1};
  shape.chunk = {tokens_of_base};
  shard(corpus, "2-to-62", extent, shape);
  shape.extent = std::vector<hsize_t>(H5S_MAX_RANK, 1);
  shape.chunk = shape.extent;
  shard(corpus, "rank-32", extent, shape);
  Forged other;
  other.data = false;
  other.properties = [](hid_t) {};
  const hid_t of_any_length = H5Tvlen_create(H5T_STD_U16LE);
  other.type = of_any_length;
  shard(corpus, "variable-length", type, other);
  H5Tclose(of_any_length);
  const hid_t pair = H5Tcreate(H5T_COMPOUND, 2);
  H5Tinsert(pair, "low", 0, H5T_STD_U8LE);
  H5Tinsert(pair, "high", 1, H5T_STD_U8LE);
  other.type = pair;
  shard(corpus, "compound", type, other);
  H5Tclose(pair);
  for (const auto& [name, wrong] :
       {std::pair{"big-endian", H5T_STD_U16BE}, std::pair{"float", H5T_IEEE_F32LE},
        std::pair{"reference", H5T_STD_REF_OBJ}, std::pair{"u64", H5T_STD_U64LE}}) {
    other.type = wrong;
    shard(corpus, name, type, other);
  }
}

inline void add_links(Corpus& corpus) {
  shard(corpus, "soft-link", "tokens is a link to elsewhere", [](hid_t file) {
    H5Lcreate_soft("/document_ends", file, "tokens", H5P_DEFAULT, H5P_DEFAULT);
  });
  shard(corpus, "external-link", "tokens is a link to elsewhere", [](hid_t file) {
    H5Lcreate_external("/etc/hostname", "/tokens", file, "tokens", H5P_DEFAULT, H5P_DEFAULT);
  });
  shard(corpus, "hard-link", "/tokens: is of the wrong type", [](hid_t file) {
    H5Lcreate_hard(file, "document_ends", file, "tokens", H5P_DEFAULT, H5P_DEFAULT);
  });
  shard(corpus, "link-to-itself", "/tokens: is not a dataset",
        [](hid_t file) { H5Lcreate_hard(file, "/", file, "tokens", H5P_DEFAULT, H5P_DEFAULT); });
  shard(corpus, "named-type", "/tokens: is not a dataset", [](hid_t file) {
    const hid_t type = H5Tcopy(H5T_STD_U16LE);
    H5Tcommit2(file, "tokens", type, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Tclose(type);
  });
  shard(corpus, "many-names", "does not hold exactly the datasets", [](hid_t file) {
    for (int i = 0; i < 2000; ++i) {
      H5Lcreate_soft("/x", file, std::to_string(i).c_str(), H5P_DEFAULT, H5P_DEFAULT);
    }
  });
}

inline void add_attributes(Corpus& corpus) {
  const auto changed = [&](const std::string& name, const std::string& message,
                           const std::function<void(hid_t)>& edit) {
    corpus.dataset(name, message,
                   [&](const fs::path& folder) { change(folder / "train-00000.h5", edit); });
  };
  const std::string wrong = "attribute version is of the wrong type";
  const hid_t scalar = H5Screate(H5S_SCALAR);
  changed("huge-attribute", "it has more attributes than this program writes", [&](hid_t file) {
    const hsize_t extent = 5'000'000;
    const hid_t space = H5Screate_simple(1, &extent, nullptr);
    const std::vector<char> zeros(extent);
    H5Adelete(file, "version");
    attribute(file, "note", H5T_STD_U8LE, space, zeros.data());
    H5Sclose(space);
  });
  changed("attribute-array", wrong, [&](hid_t file) {
    const hsize_t extent = 1000;
    const hid_t space = H5Screate_simple(1, &extent, nullptr);
    const std::vector<std::uint64_t> ones(extent, 1);
    attribute(file, "version", H5T_STD_U64LE, space, ones.data());
    H5Sclose(space);
  });
  changed("attribute-float", wrong, [&](hid_t file) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    attribute(file, "version", H5T_IEEE_F64LE, scalar, &nan);
  });
  changed("attribute-text", "attribute format is of the wrong type", [&](hid_t file) {
    const hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, H5T_VARIABLE);
    const char* text = "trireme-tokens";
    attribute(file, "format", type, scalar, &text);
    H5Tclose(type);
  });
  changed("attribute-long", "attribute format is of the wrong type", [&](hid_t file) {
    const hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, 60'000);
    const std::string text(60'000, 'x');
    attribute(file, "format", type, scalar, text.data());
    H5Tclose(type);
  });
  changed("many-attributes", "it has more attributes than this program writes", [&](hid_t file) {
    const hid_t type = H5T_STD_U64LE;
    for (std::uint64_t i = 0; i < 500; ++i) {
      attribute(file, fmt::format("a{}", i).c_str(), type, scalar, &i);
    }
  });
  H5Sclose(scalar);
}

/// Files that the library can open but that have another format.
inline void add_formats(Corpus& corpus) {
  const auto made = [&](const std::string& name, const std::string& message, unsigned user_block,
                        bool old) {
    corpus.dataset(name, message, [&](const fs::path& folder) {
      const hid_t creation = H5Pcreate(H5P_FILE_CREATE), access = H5Pcreate(H5P_FILE_ACCESS);
      if (user_block > 0) H5Pset_userblock(creation, user_block);
      if (!old) H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110);
      const hid_t from = H5Fopen((folder / "train-00000.h5").c_str(), H5F_ACC_RDONLY, access);
      const hid_t to = H5Fcreate((folder / "new").c_str(), H5F_ACC_TRUNC, creation, access);
      for (const char* column : {"tokens", "document_ends"}) {
        H5Ocopy(from, column, to, column, H5P_DEFAULT, H5P_DEFAULT);
      }
      H5Fclose(to);
      H5Fclose(from);
      H5Pclose(creation);
      H5Pclose(access);
      fs::rename(folder / "new", folder / "train-00000.h5");
    });
  };
  made("old-format", "its format is not that of HDF5 1.10", 0, true);
  made("user-block", "it is no HDF5 file", 512, false);
}

inline void add_pieces(Corpus& corpus) {
  const std::string dataset = "parameters/head.norm.weight";
  const auto forged = [&](const std::string& name, const std::string& message,
                          const std::function<void(hid_t)>& make) {
    corpus.checkpoint(name, message, [&](const fs::path& folder) {
      const fs::path file = folder / "rank-00000.h5";
      const auto before = fs::file_size(file);
      change(file, [&](hid_t id) {
        H5Ldelete(id, dataset.c_str(), H5P_DEFAULT);
        make(id);
      });
      const std::string text = read(folder / "manifest.json");
      const std::string rest =
          replaced(text.substr(text.find('\n') + 1), "\"bytes\":" + std::to_string(before),
                   "\"bytes\":" + std::to_string(fs::file_size(file)));
      data::Xxh3 hash;
      hash.update(rest.data(), rest.size());
      write(folder / "manifest.json", "{\"manifest_xxh3\": \"" + hash.hex() + "\",\n" + rest);
    });
  };
  Forged piece;
  piece.type = H5T_IEEE_F32LE;
  piece.extent = {16};
  piece.chunk = {};
  piece.data = false;
  piece.properties = [](hid_t list) { H5Pset_external(list, "/etc/hostname", 0, 64); };
  forged("external", "is stored in another way",
         [&](hid_t file) { forge(file, dataset.c_str(), piece); });
  forged("soft-link", "reached by a link", [&](hid_t file) {
    H5Lcreate_soft("/parameters/head.norm.bias", file, dataset.c_str(), H5P_DEFAULT, H5P_DEFAULT);
  });
  forged("external-link", "reached by a link", [&](hid_t file) {
    H5Lcreate_external("/etc/hostname", "/x", file, dataset.c_str(), H5P_DEFAULT, H5P_DEFAULT);
  });
  piece.properties = [](hid_t) {};
  piece.extent = {huge, huge};
  piece.chunk = {1, 1};
  forged("shape-bomb", "is not contiguous",
         [&](hid_t file) { forge(file, dataset.c_str(), piece); });
  piece.chunk = {};
  piece.extent = {huge};
  forged("late", "does not have [16] elements in full",
         [&](hid_t file) { forge(file, dataset.c_str(), piece); });
}

inline void add_hdf5(Corpus& corpus) {
  H5open();
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  add_storage(corpus);
  add_shapes(corpus);
  add_links(corpus);
  add_attributes(corpus);
  add_formats(corpus);
  add_pieces(corpus);
}

}  // namespace trireme::hostile
