// trireme export, trireme import
#include <algorithm>
#include <cstdio>
#include <map>

#include "trireme/checkpoint/hugging_face.hpp"
#include "trireme/comm/agree.hpp"
#include "trireme/comm/mpi_communicator.hpp"
#include "trireme/train/setup.hpp"

#include "commands.hpp"

namespace trireme::cli {

namespace {

constexpr const char* export_examples = R"(Examples:
  trireme export --checkpoint run --output gpt2-mine
  trireme export --checkpoint run/step-00001000 --output mine --type BF16
  trireme export --checkpoint run --output mine --max-file-size 2GB
The folder is what transformers loads: from_pretrained("gpt2-mine").)";

constexpr const char* import_examples = R"(Examples:
  trireme import --input gpt2 --output start
  mpirun -n 8 trireme import --input llama-70b --output start
  trireme train --checkpoint.resume start --data.path dataset --model.preset gpt2
  trireme evaluate --checkpoint start --data.path dataset
A tokenizer.json of the folder comes along: trireme generate --checkpoint start, and
  trireme prepare --input a.txt --output dataset --tokenizer huggingface:start/step-00000000)";

struct ExportJob {
  std::string checkpoint, output;
  std::string format = "safetensors";
  std::string type = "F32";
  std::string file_size = "5GB";
};

std::string run_export(const ExportJob& job) {
  const checkpoint::Reader reader(train::find_checkpoint(job.checkpoint));
  const auto files =
      checkpoint::export_safetensors(reader, train::model_of(reader),
                                     {.output = job.output,
                                      .type = job.type,
                                      .file_bytes = parse_size("--max-file-size", job.file_size)});
  std::string names;
  for (const std::string& file : files) names += (names.empty() ? "" : ", ") + file;
  return fmt::format("step {} of {} as {} in {}: {}\n", reader.state().step,
                     reader.folder().string(), job.type, job.output, names);
}

int run_import(comm::Session& session, const std::string& input, const std::string& output) {
  device::MemoryLedger ledger;
  const auto world = comm::make_mpi_communicator(session.world(), ledger);
  comm::agree(*world, [&] {
    if (world->rank() != 0 || !std::filesystem::exists(output)) return;
    if (std::filesystem::is_directory(output) && std::filesystem::is_empty(output)) return;
    throw Error("{}: exists already; name a new folder", output);
  });
  std::string warning;
  std::vector<std::string> skipped;
  const auto folder = checkpoint::import_safetensors(input, output, *world, train::versions(),
                                                     &warning, nlohmann::json::object(), &skipped);
  if (!warning.empty()) {
    std::fputs(fmt::format("trireme: warning: without a tokenizer: {}\n", warning).c_str(), stderr);
  }
  for (const std::string& reason : skipped) {
    std::fputs(fmt::format("trireme: warning: an auxiliary file is left out: {}\n", reason).c_str(),
               stderr);
  }
  print_on_root(session, folder.string() + "\n");
  return 0;
}

}  // namespace

void add_export(CLI::App& app, Command& command) {
  CLI::App* command_line =
      app.add_subcommand("export", "A checkpoint's weights for other programs");
  auto job = std::make_shared<ExportJob>();
  command_line
      ->add_option("--checkpoint", job->checkpoint, "run folder, or one of its step folders")
      ->type_name("DIR")
      ->required();
  command_line->add_option("--output", job->output, "folder to make")->type_name("DIR")->required();
  add_value(*command_line, "--format", job->format, "safetensors", config::one_of({"safetensors"}));
  add_value(*command_line, "--type", job->type, "F32, BF16 or F16",
            config::one_of({"F32", "BF16", "F16"}));
  add_value(*command_line, "--max-file-size", job->file_size,
            "most data in one file; more tensors take\nseveral files and an index");
  command_line->footer(export_examples);
  command_line->callback(
      [job, &command] { command.run = printing([job] { return run_export(*job); }); });
}

void add_import(CLI::App& app, Command& command) {
  CLI::App* command_line = app.add_subcommand("import", "A transformers model into a checkpoint");
  struct Job {
    std::string input, output;
  };
  auto job = std::make_shared<Job>();
  command_line->add_option("--input", job->input, "folder with config.json and safetensors")
      ->type_name("DIR")
      ->required();
  command_line->add_option("--output", job->output, "run folder to put step-00000000 into")
      ->type_name("DIR")
      ->required();
  command_line->footer(import_examples);
  command_line->callback([job, &command] {
    command.run = [job](comm::Session& session, const std::vector<Setting>&) {
      return run_import(session, job->input, job->output);
    };
  });
}

}  // namespace trireme::cli
