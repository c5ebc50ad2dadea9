// trireme bench gemm, copy, attention and io
#include "trireme/bench/benchmarks.hpp"
#include "trireme/model/transformer.hpp"

#include "bench.hpp"

namespace trireme::cli {

namespace {

constexpr const char* gemm_examples =
    R"(Without --shapes the products are those of the configured model's layers in
forward (NT), backward for inputs (NN) and backward for weights (TN).

Examples:
  trireme bench gemm --shapes 1024x1024x1024,3072x384x1536 --forms NN,TN
  trireme bench gemm --model.preset gpt2 --rows 1024 --types fp32,bf16
  mpirun -n 2 trireme bench gemm --model.preset small --json gemm.json)";
constexpr const char* copy_examples = R"(Examples:
  trireme bench copy --threads 1,2,4 --begin 1e6 --end 1e9 --factor 10
  trireme bench copy --device cuda)";
constexpr const char* attention_examples =
    R"(A shape is sequences x heads x tokens x head size, and perhaps key/value heads.
Without --shapes it is the configured model's, with --sequences of them.

Examples:
  trireme bench attention --shapes 4x12x1024x64,1x32x4096x128x8
  trireme bench attention --model.preset gpt2 --sequences 4 --types fp32,bf16)";
constexpr const char* io_examples =
    R"(--folder has each rank write a file, fsync and rename it, and read it back, first
after the system was asked to forget it; --data.path reads a dataset as training
does.

Examples:
  mpirun -n 4 trireme bench io --folder /scratch/me --bytes 1e9
  trireme bench io --data.path dataset --length 1024)";

/// The configured model; a vocabulary that the dataset would decide is that of plain bytes.
model::ModelConfig model_of(const ResolvedConfig& resolved) {
  model::ModelConfig config = resolved.config.model;
  if (config.vocabulary == 0) config.vocabulary = 256;
  config.resolve();
  return config;
}

/// "AxBxC": `least` to `most` numbers.
std::vector<std::int64_t> extents_of(const std::string& word, std::size_t least, std::size_t most,
                                     const std::string& pattern) {
  std::string commas = word;
  std::replace(commas.begin(), commas.end(), 'x', ',');
  std::vector<std::int64_t> numbers = numbers_of("--shapes", commas);
  if (numbers.size() < least || numbers.size() > most) {
    throw ConfigError(
        "--shapes", word, "is not " + pattern,
        "write for example " + std::string(least == 3 ? "1024x768x768" : "4x12x1024x64"));
  }
  return numbers;
}

std::vector<DType> compute_types(const bench::Place& place, const std::string& list) {
  std::vector<DType> types = types_of("--types", list, {"fp32", "bf16", "fp16"});
  for (const DType type : types) {
    // bf16 products exist on every processor; a run would not use them where they are emulated.
    if (type == DType::f16 && place.device().is_host()) {
      throw ConfigError("--types", "fp16", "is not computed in on a CPU", "use fp32 or bf16");
    }
  }
  return types;
}

}  // namespace

void add_bench_gemm(CLI::App& bench, Command& command) {
  CLI::App* app = bench.add_subcommand("gemm", "Matrix products");
  struct Options {
    std::string shapes, forms = "all", types = "fp32";
    std::int64_t rows = 1024;
    double peak = 0;
  };
  auto options = std::make_shared<Options>();
  add_value(*app, "--shapes", options->shapes, "MxNxK of c [M, N], by commas");
  add_value(*app, "--forms", options->forms, "some of NN, NT, TN (T: transposed), of\n--shapes");
  add_value(*app, "--rows", options->rows, "tokens of a micro-batch, of a model's\nproducts",
            config::at_least(1));
  add_value(*app, "--types", options->types, "some of fp32,bf16,fp16");
  add_value(*app, "--peak", options->peak,
            "GFLOP/s of a rank that shares refer to; 0:\nthe device's if known, else measured",
            config::non_negative());
  finish_part(*app, command, gemm_examples, {"model", "parallel", "device"},
              [=](const bench::Place& place, const ResolvedConfig& resolved,
                  const bench::Rounds& rounds, bench::Sheet& sheet) {
                bench::ProductOptions job{.types = compute_types(place, options->types),
                                          .peak = options->peak * 1e9,
                                          .rounds = rounds};
                if (options->shapes.empty()) {
                  const model::Transformer model(model_of(resolved));
                  sheet.note("model", model.config().preset.empty() ? "as configured"
                                                                    : model.config().preset);
                  sheet.note("rows", options->rows);
                  for (const auto& shape : plan::model_products(
                           model, options->rows, job.types.front(), !place.device().is_host())) {
                    for (const bench::Product& product : bench::products_of_layer(shape)) {
                      job.products.push_back(product);
                    }
                  }
                } else {
                  const std::vector<std::string> known{"NN", "NT", "TN"};
                  const auto forms = chosen_words("--forms", options->forms, known);
                  for (const std::string& word : words_of(options->shapes)) {
                    const auto extents = extents_of(word, 3, 3, "MxNxK");
                    for (const std::string& form : forms) {
                      const auto index =
                          std::find(known.begin(), known.end(), form) - known.begin();
                      job.products.push_back(
                          {{extents[0], extents[1], extents[2]}, static_cast<bench::Form>(index)});
                    }
                  }
                }
                bench::bench_products(place, job, sheet);
              });
}

void add_bench_copy(CLI::App& bench, Command& command) {
  CLI::App* app = bench.add_subcommand("copy", "Memory");
  struct Options {
    bench::Sizes sizes = bench::CopyOptions{}.sizes;
    std::string threads;
  };
  auto options = std::make_shared<Options>();
  add_sizes(*app, options->sizes, "copy");
  add_value(*app, "--threads", options->threads, "numbers of threads, by commas;\nelse 1 and all");
  finish_part(
      *app, command, copy_examples, {"parallel", "device"},
      [=](const bench::Place& place, const ResolvedConfig&, const bench::Rounds& rounds,
          bench::Sheet& sheet) {
        bench::CopyOptions job{.sizes = options->sizes, .rounds = rounds};
        if (!options->threads.empty()) {
          job.threads = numbers_of("--threads", options->threads);
        } else {
          job.threads = {1};
          if (place.threads > 1) job.threads.push_back(place.threads);
        }
        bench::bench_copies(place, job, sheet);
      },
      [options] { static_cast<void>(options->sizes.all()); });
}

void add_bench_attention(CLI::App& bench, Command& command) {
  CLI::App* app = bench.add_subcommand("attention", "Causal attention, forward and backward");
  struct Options {
    std::string shapes, types = "fp32";
    std::int64_t sequences = 1;
  };
  auto options = std::make_shared<Options>();
  add_value(*app, "--shapes", options->shapes, "BxHxTxD or BxHxTxDxG, by commas");
  add_value(*app, "--sequences", options->sequences, "sequences of a model's shape",
            config::at_least(1));
  add_value(*app, "--types", options->types, "some of fp32,bf16,fp16");
  finish_part(*app, command, attention_examples, {"model", "parallel", "device"},
              [=](const bench::Place& place, const ResolvedConfig& resolved,
                  const bench::Rounds& rounds, bench::Sheet& sheet) {
                bench::AttentionOptions job{.types = compute_types(place, options->types),
                                            .rounds = rounds};
                if (options->shapes.empty()) {
                  const model::ModelConfig model = model_of(resolved);
                  job.shapes.push_back({options->sequences, model.heads, model.sequence,
                                        model.head_size(), model.kv_heads});
                } else {
                  for (const std::string& word : words_of(options->shapes)) {
                    const auto x = extents_of(word, 4, 5, "BxHxTxD or BxHxTxDxG");
                    job.shapes.push_back({x[0], x[1], x[2], x[3], x.size() > 4 ? x[4] : x[1]});
                    if (x[1] % job.shapes.back().kv_heads == 0) continue;
                    throw ConfigError("--shapes", word, "its heads must be a multiple of G",
                                      "use another G");
                  }
                }
                bench::bench_attention(place, job, sheet);
              });
}

void add_bench_io(CLI::App& bench, Command& command) {
  CLI::App* app = bench.add_subcommand("io", "Files: datasets, and what checkpoints do");
  auto options = std::make_shared<bench::FileOptions>();
  auto folder = std::make_shared<std::string>();
  app->add_option("--folder", *folder, "where files are written and removed again")
      ->type_name("DIR");
  add_value(*app, "--bytes", options->bytes, "of each rank's file", config::at_least(1));
  add_value(*app, "--length", options->length, "tokens of a sequence read", config::at_least(1));
  add_value(*app, "--sequences", options->sequences, "sequences read at a time",
            config::at_least(1));
  finish_part(*app, command, io_examples, {"data", "parallel", "device"},
              [=](const bench::Place& place, const ResolvedConfig& resolved,
                  const bench::Rounds& rounds, bench::Sheet& sheet) {
                bench::FileOptions job = *options;
                job.folder = *folder;
                job.dataset = resolved.config.data.path;
                job.rounds = rounds;
                if (job.folder.empty() && job.dataset.empty()) {
                  throw AgreedError(
                      "bench io: nothing to read or write; name --folder, --data.path or both");
                }
                bench::bench_files(place, job, sheet);
              });
}

}  // namespace trireme::cli
