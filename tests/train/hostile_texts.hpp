// Malicious manifests, safetensors, configurations, schedules and corpora.
#pragma once

#include <cstring>

#include "train/hostile.hpp"

namespace trireme::hostile {

inline std::string repeated(const std::string& part, std::size_t times) {
  std::string text;
  for (std::size_t i = 0; i < times; ++i) text += part;
  return text;
}

inline std::string deep_json(std::size_t depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

inline void add_datasets(Corpus& corpus) {
  const std::string file = "\"train-00000.h5\"", name = "is not named train-00000.h5";
  corpus.manifest("climbs", name, file, "\"../data/train-00000.h5\"");
  corpus.manifest("absolute", name, file, "\"/etc/hostname\"");
  corpus.manifest("nul", "\"file\" is not 1 to 255 printable bytes", file,
                  "\"train-00000.h5\\u0000x\"");
  corpus.manifest("newline", "\"name\" is not 1 to 255 printable bytes", "\"name\": \"",
                  "\"name\": \"\\ntrireme: error: ");
  corpus.manifest("long-name", "\"name\" is not 1 to 255 printable bytes", "\"name\": \"",
                  "\"name\": \"" + std::string(1'000'000, 'x'));
  corpus.manifest("twice", "has the key \"version\" twice", "\"version\": 1",
                  "\"version\": 1, \"version\": 1");
  corpus.manifest("deep", "is nested more than 64 deep", "\"tokenizer_details\": {}",
                  "\"tokenizer_details\": " + deep_json(1'000'000));
  corpus.manifest("unclosed", "is nested more than 64 deep", "\"tokenizer_details\": {}",
                  "\"tokenizer_details\": " + std::string(1'000'000, '['));
  corpus.manifest("unknown-key", "has a key that this program does not know", "\"version\": 1",
                  "\"version\": 1, \"code\": \"x\"");
  const std::string tokens = "\"tokens\": 4000", whole = "\"tokens\" is not a whole number from 1";
  for (const auto& [what, value] :
       {std::pair{"negative", "-4000"}, std::pair{"2-to-63", "9223372036854775808"},
        std::pair{"2-to-62", "4611686018427387904"}, std::pair{"fraction", "4000.0"},
        std::pair{"1e300", "1e300"}, std::pair{"zero", "0"}, std::pair{"text", "\"4000\""}}) {
    corpus.manifest(std::string("tokens-") + what, whole, tokens,
                    std::string("\"tokens\": ") + value);
  }
  corpus.manifest("tokens-nan", "is not valid JSON", tokens, "\"tokens\": NaN");
  corpus.manifest("tokens-1e999", "is not valid JSON", tokens, "\"tokens\": 1e999");
  corpus.manifest("tokens-more", "expected one dimension of exactly 4001", tokens,
                  "\"tokens\": 4001");
  corpus.manifest("vocabulary", "\"vocabulary\" is not a whole number", "\"vocabulary\": 256",
                  "\"vocabulary\": 65537");
  corpus.manifest(
      "many-shards", "entry 1 of \"train\" is not named train-00001.h5", "\"train\": [",
      "\"train\": [" + [] {
        std::string all;
        for (int i = 0; i < 100'000; ++i) {
          all += R"({"file":"train-00000.h5","tokens":1,"documents":0,)"
                 R"("xxh3":"0123456789abcdef"},)";
        }
        return all;
      }());
  corpus.dataset("manifest-huge", "expected at most 67108864", [](const fs::path& folder) {
    fs::resize_file(folder / "dataset.json", std::uintmax_t{1} << 40);
  });
  for (const auto& [what, make] : others()) {
    const std::string message =
        what == "device" || what == "link" ? "is a symbolic link" : "is not a regular file";
    for (const char* each : {"dataset.json", "train-00000.h5"}) {
      corpus.dataset(what + "-" + each, each + (": " + message),
                     [each, &make = make](const fs::path& folder) {
                       fs::remove(folder / each);
                       make(folder / each);
                     });
    }
  }
  corpus.dataset("cut", "train-00000.h5: ", [](const fs::path& folder) {
    fs::resize_file(folder / "train-00000.h5", 700);
  });
  corpus.dataset("empty", "train-00000.h5: ", [](const fs::path& folder) {
    fs::resize_file(folder / "train-00000.h5", 0);
  });
  corpus.dataset("text", "train-00000.h5: ", [](const fs::path& folder) {
    write(folder / "train-00000.h5", "\x89HDF\r\n\x1a\n" + std::string(5000, '\xFF'));
  });
}

inline void add_checkpoints(Corpus& corpus) {
  const auto swapped = [&](const std::string& name, const std::string& message,
                           const std::string& from, const std::string& to) {
    corpus.sealed(name, message, [&](const std::string& text) { return replaced(text, from, to); });
  };
  swapped("twice", "has the key \"step\" twice", "\"step\": 2", "\"step\": 2, \"step\": 3");
  swapped("deep", "is nested more than 64 deep", "\"step\": 2",
          "\"step\": 2, \"x\": " + deep_json(1'000'000));
  swapped("negative", "'step' is not an integer", "\"step\": 2", "\"step\": -2");
  swapped("climbs", "a file name is not a plain name", "\"rank-00000.h5\"", "\"../rank-00000.h5\"");
  swapped("absolute", "a file name is not a plain name", "\"rank-00000.h5\"", "\"/etc/hostname\"");
  swapped("nul", "a file name is not a plain name", "\"rank-00000.h5\"",
          "\"rank-00000.h5\\u0000\"");
  swapped("2-to-63", "is not an integer from 0 to 2^63 - 1", "\"shape\":[16]",
          "\"shape\":[9223372036854775808]");
  swapped("product", "has more than 2^63 bytes", "\"shape\":[48,16]",
          "\"shape\":[4294967296,4294967296]");
  swapped("overlap", "does not fit into tensor", "\"offset\":[0]", "\"offset\":[8]");
  corpus.checkpoint("unsealed", "does not match its own checksum", [](const fs::path& folder) {
    write(folder / "manifest.json",
          replaced(read(folder / "manifest.json"), "\"step\": 2", "\"step\": 3"));
  });
  corpus.checkpoint("huge", "expected at most", [](const fs::path& folder) {
    fs::resize_file(folder / "manifest.json", std::uintmax_t{1} << 40);
  });
  for (const auto& [what, make] : others()) {
    const std::string message =
        what == "device" || what == "link" ? "is a symbolic link" : "is not a regular file";
    for (const char* each : {"manifest.json", "rank-00000.h5"}) {
      corpus.checkpoint(what + "-" + each, each + (": " + message),
                        [each, &make = make](const fs::path& folder) {
                          fs::remove(folder / each);
                          make(folder / each);
                        });
    }
  }
  // A configuration that the checkpoint's tensors do not match, and that no machine can hold.
  corpus.sealed("config-bomb", "and its configuration means", [](const std::string& text) {
    return replaced(text, "\"width\":16", "\"width\":1048576");
  });
  corpus.evaluate();
  corpus.sealed("config-layers", "60000: must be at most 4096", [](const std::string& text) {
    return replaced(text, "\"layers\":1", "\"layers\":60000");
  });
  corpus.evaluate();
  corpus.sealed("config-none", "its configuration has no model", [](const std::string& text) {
    return replaced(text, "\"model\":{", "\"other\":{");
  });
  corpus.evaluate();
}

/// `header` and `zeros` bytes of data after its length.
inline std::string safetensors(const std::string& header, std::size_t zeros) {
  const std::uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(zeros, '\0');
}

inline void add_safetensors(Corpus& corpus) {
  const auto header = [&](const std::string& name, const std::string& message,
                          const std::string& json, std::size_t data) {
    corpus.foreign(name, message, [&](const fs::path& folder) {
      write(folder / "model.safetensors", safetensors(json, data));
    });
  };
  const auto f32 = [](const std::string& name, const std::string& shape, const std::string& range) {
    return "\"" + name + R"(":{"dtype":"F32","shape":[)" + shape + "],\"data_offsets\":[" + range +
           "]}";
  };
  const std::string a = f32("a", "2", "0,8");
  header("overlap", "begins at byte 4", "{" + a + "," + f32("b", "2", "4,12") + "}", 12);
  header("gap", "begins at byte 12", "{" + a + "," + f32("b", "1", "12,16") + "}", 16);
  header("left-over", "9 bytes of data, its tensors have 8", "{" + a + "}", 9);
  header("twice", "has the key 'a' twice", "{" + a + "," + a + "}", 8);
  header("negative", "a negative number", "{" + f32("a", "-2", "0,8") + "}", 8);
  header("product", "its shape is too large", "{" + f32("a", "4294967296,4294967296", "0,8") + "}",
         8);
  header("2-to-63", "a number above 2^63", "{" + f32("a", "9223372036854775808", "0,8") + "}", 8);
  header("deep", "holds a list where none belongs", "{\"a\":" + deep_json(1'000'000) + "}", 0);
  header("unknown-type", "dtype 'F7' is unknown", "{" + replaced(a, "F32", "F7") + "}", 8);
  header("newline", "tensor 'a\\nb'", "{" + f32("a\\nb", "3", "0,8") + "}", 8);
  header("not-ours", "is missing in its files", "{" + a + "}", 8);
  for (const auto& [name, length] : {std::pair{"length-2-to-63", std::uint64_t{1} << 63},
                                     std::pair{"length-all", ~std::uint64_t{0}},
                                     std::pair{"length-past-end", std::uint64_t{99'000'000}}}) {
    corpus.foreign(name, "by the first eight", [length = length](const fs::path& folder) {
      std::string file = read(folder / "model.safetensors");
      std::memcpy(file.data(), &length, 8);
      write(folder / "model.safetensors", file);
    });
  }
  for (const auto& [what, make] : others()) {
    const std::string message =
        what == "device" || what == "link" ? "is a symbolic link out of" : "is not a regular file";
    for (const char* each : {"model.safetensors", "config.json", "model.safetensors.index.json"}) {
      corpus.foreign(what + "-" + each, each + (": " + message),
                     [each, &make = make](const fs::path& folder) {
                       fs::remove(folder / each);
                       make(folder / each);
                     });
    }
  }
}

inline void add_foreign(Corpus& corpus) {
  const auto index = [&](const std::string& name, const std::string& message,
                         const std::string& text) {
    corpus.foreign("index-" + name, message, [&](const fs::path& folder) {
      write(folder / "model.safetensors.index.json", text);
    });
  };
  index("climbs", "'../theirs/model.safetensors' is not a plain file name",
        R"({"weight_map":{"a":"../theirs/model.safetensors"}})");
  index("absolute", "'/etc/hostname' is not a plain file name",
        R"({"weight_map":{"a":"/etc/hostname"}})");
  index("nul", "is not a plain file name", R"({"weight_map":{"a":"x\u0000y"}})");
  index("twice", "has the key \"a\" twice",
        R"({"weight_map":{"a":"model.safetensors","a":"model.safetensors"}})");
  index("stranger", "tensor 'a' is not in model.safetensors",
        R"({"weight_map":{"a":"model.safetensors"}})");
  index("deep", "is nested more than 64 deep", R"({"weight_map":)" + deep_json(1'000'000) + "}");
  index("number", "a file name is not a string", R"({"weight_map":{"a":1}})");
  const auto config = [&](const std::string& name, const std::string& message,
                          const std::string& from, const std::string& to) {
    corpus.foreign("config-" + name, message, [&](const fs::path& folder) {
      write(folder / "config.json", replaced(read(folder / "config.json"), from, to));
    });
  };
  config("twice", "has the key \"n_layer\" twice", "\"n_layer\": 1",
         "\"n_layer\": 9, \"n_layer\": 1");
  config("layers", "n_layer = 4611686018427387904: must be", "\"n_layer\": 1",
         "\"n_layer\": 4611686018427387904");
  config("many-layers", "model.layers = 16000000: must be at most", "\"n_layer\": 1",
         "\"n_layer\": 16000000");
  config("wide", "must be at most 2.8e+14", "\"n_embd\": 16", "\"n_embd\": 16777216");
  config("negative", "n_head = -2: must be", "\"n_head\": 2", "\"n_head\": -2");
  config("nan", "is not valid JSON", "\"n_head\": 2", "\"n_head\": NaN");
  config("fraction", "n_head = 1.5: must be", "\"n_head\": 2", "\"n_head\": 1.5");
  config("infinite", "is not valid JSON", "1e-05", "1e999");
  config("deep", "is nested more than 64 deep", "\"n_ctx\": 16",
         "\"n_ctx\": " + deep_json(100'000));
}

inline void add_configurations(Corpus& corpus) {
  corpus.toml(
      "deep", "tables are nested too deep", "a" + [] {
        std::string parts;
        for (int i = 0; i < 300'000; ++i) parts += ".a";
        return parts;
      }() + " = 1\n");
  corpus.toml("lists", "tables are nested too deep", "a = " + std::string(300'000, '['));
  corpus.toml("tables-in-lists", "tables are nested too deep", [] {
    std::string text = "x = ";
    for (int i = 0; i < 250; ++i) text += "[\n{a.a.a.a.a.a.a.a.a.a = ";
    return text;
  }());
  corpus.toml("twice", "is not TOML", "[model]\nlayers = 1\nlayers = 2\n");
  corpus.toml("unknown", "did you mean model.layers", "[model]\nlayer = 1\n");
  corpus.toml("1e308", "must be an integer", "[model]\nlayers = 1e308\n");
  corpus.toml("2-to-64", "is not TOML", "[model]\nlayers = 18446744073709551616\n");
  corpus.toml("2-to-62", "model.layers", "[model]\nlayers = 4611686018427387904\n");
  corpus.toml("nan", "must be a finite number", "[optim]\nlearning_rate = nan\n");
  corpus.toml("infinite", "must be a finite number", "[optim]\nlearning_rate = inf\n");
  corpus.toml("date", "a date or time", "[model]\nlayers = 1979-05-27\n");
  corpus.toml("nul", "is not TOML", std::string("[model]\nlayers\0 = 1\n", 20));
  corpus.toml("not-utf8", ".toml:", "[data]\npath = \"\xC3(\"\n");
  corpus.toml("long-line", "is not a configuration key", std::string(1'000'000, 'x') + " = 1\n");
  corpus.toml("long-value", "must be an integer",
              "model.layers = \"" + std::string(900'000, '9') + "\"");
  corpus.toml("huge", "is larger than 1 MiB", [](const fs::path& file) {
    write(file, "");
    fs::resize_file(file, std::uintmax_t{1} << 40);
  });
  for (const auto& [what, make] : others()) {
    // A user who names a file may name a link.
    if (what == "link") continue;
    corpus.toml(what, what == "folder" ? "is a folder" : "is not a regular file", make);
  }
}

inline void add_schedules(Corpus& corpus) {
  corpus.schedule("stage", "virtual stage 999999 does not exist", "0F0,0B0,999999F0,999999B0\n");
  corpus.schedule("micro-batch", "micro-batch 999999 does not exist",
                  "0F0,0B0,0F999999,0B999999\n");
  corpus.schedule("digits", "is not virtual stage", "0F99999999999999999999\n");
  corpus.schedule("negative", "is not virtual stage", "0F-1,0B-1\n");
  corpus.schedule("missing", "is missing", "0F0\n");
  corpus.schedule("order", "is before", "0B0,0F0\n");
  corpus.schedule("nul", "is not virtual stage", std::string("0F0,0\0B0\n", 9));
  corpus.schedule("empty", "holds no schedule", "");
  corpus.schedule("long-line", "is not virtual stage", repeated("x", 30'000'000));
  corpus.schedule("long-cells", "is listed", [](const fs::path& file) {
    std::string text;
    for (int i = 0; i < 2'000'000; ++i) text += "0F0,";
    write(file, text);
  });
  corpus.schedule("lines", "has more than 65536 lines", repeated("\n", 30'000'000) + "0F0");
  corpus.schedule("huge", "is larger than 64 MiB", [](const fs::path& file) {
    write(file, "");
    fs::resize_file(file, std::uintmax_t{1} << 40);
  });
  for (const auto& [what, make] : others()) {
    if (what == "link") continue;
    corpus.schedule(what, what == "folder" ? "is a folder" : "is not a regular file", make);
  }
}

inline void add_corpora(Corpus& corpus) {
  const auto prepared = [&](const std::string& name, const std::string& message,
                            const fs::path& input, const std::string& documents) {
    corpus.run("corpus " + name, message,
               {"prepare", "--input", input, "--output", corpus.path("prepared-" + name),
                "--documents", documents});
  };
  for (const auto& [what, make] : others()) {
    if (what == "link") continue;
    const fs::path input = corpus.path("corpus-" + what);
    make(input);
    prepared(what, what == "folder" ? "" : "is not a regular file", input, "file");
  }
  const auto lines = [&](const std::string& name, const std::string& message,
                         const std::string& text) {
    const fs::path input = corpus.path(name + ".jsonl");
    write(input, text);
    prepared(name, message, input, "jsonl:text");
  };
  lines("deep", "has no field", "{\"x\": " + deep_json(1'000'000) + "}\n");
  lines("number", "is not text", "{\"text\": 1e308}\n");
  lines("not-utf8", "is not valid JSON", "{\"text\": \"\xC3(\"}\n");
}

inline void add_texts(Corpus& corpus) {
  add_datasets(corpus);
  add_checkpoints(corpus);
  add_safetensors(corpus);
  add_foreign(corpus);
  add_configurations(corpus);
  add_schedules(corpus);
  add_corpora(corpus);
}

}  // namespace trireme::hostile
