#include "trireme/cli/command.hpp"

#include <algorithm>
#include <cstdio>

#include "trireme/train/setup.hpp"

#include "commands.hpp"

namespace trireme::cli {

namespace {

constexpr const char* program_examples =
    "Example: mpirun -n 4 trireme train --model.preset tiny --data.path dataset";

const CLI::App& chosen_of(const CLI::App& app) {
  const auto subcommands = app.get_subcommands();
  return subcommands.empty() ? app : chosen_of(*subcommands.front());
}

/// "bench gemm"; empty for the program itself.
std::string path_of(const CLI::App& chosen) {
  if (chosen.get_parent() == nullptr) return {};
  const std::string above = path_of(*chosen.get_parent());
  return above + (above.empty() ? "" : " ") + chosen.get_name();
}

/// "did you mean --x?", else where to look.
std::string flag_remedy(const CLI::App& chosen, const std::string& flag,
                        const config::Fields* fields) {
  const std::string name = flag.substr(0, flag.find('='));
  std::vector<std::string> flags;
  for (const CLI::Option* option : chosen.get_options()) {
    for (const std::string& word : option->get_lnames()) flags.push_back("--" + word);
  }
  auto near = config::nearest(name, flags);
  if (!near && fields != nullptr && name.starts_with("--")) {
    near = fields->nearest_key(name.substr(2));
    if (near) near = "--" + *near;
  }
  if (near) return "did you mean " + *near + "?";
  const std::string path = path_of(chosen);
  return "`trireme " + path + (path.empty() ? "" : " ") + "--help` lists them";
}

[[noreturn]] void unknown_argument(const CLI::App& chosen, const std::string& argument,
                                   const config::Fields* fields) {
  const std::string shown = config::one_line(argument);
  const bool top = chosen.get_parent() == nullptr;
  const std::string place = top ? "" : path_of(chosen) + ": ";
  if (argument.starts_with("-")) {
    throw UsageError("{}{}: is not a flag; {}", place, shown,
                     flag_remedy(chosen, argument, fields));
  }
  std::vector<std::string> names;
  for (const CLI::App* sub : chosen.get_subcommands({})) names.push_back(sub->get_name());
  if (names.empty()) {
    throw UsageError("{}{}: one argument too many; quote a value that has spaces", place, shown);
  }
  const auto near = config::nearest(argument, names);
  const std::string help = "trireme " + path_of(chosen) + (top ? "" : " ") + "--help";
  throw UsageError("{}{}: is not a subcommand; {}", place, shown,
                   near ? "did you mean " + *near + "?" : "`" + help + "` lists them");
}

bool takes_settings(const CLI::App& chosen) {
  const std::string path = path_of(chosen);
  for (const char* name : {"train", "evaluate", "generate", "plan"}) {
    if (path == name) return true;
  }
  return path.starts_with("bench ");
}

}  // namespace

std::function<int(comm::Session&, const std::vector<Setting>&)> printing(
    std::function<std::string()> work) {
  return [work = std::move(work)](comm::Session& session, const std::vector<Setting>&) {
    print_on_root(session, on_rank_zero(session, work));
    return 0;
  };
}

void define(CLI::App& app, Command& command) {
  app.name("trireme");
  app.description("Trireme trains transformers under MPI, from a laptop to a supercomputer.");
  app.set_version_flag("--version",
                       "trireme " + train::versions().at("trireme").get<std::string>());
  app.require_subcommand(0, 1);
  app.footer(program_examples);
  app.get_formatter()->column_width(32);
  for (const auto add :
       {add_prepare, add_inspect, add_train, add_evaluate, add_generate, add_plan, add_export,
        add_import, add_presets, add_report, add_compare, add_status, add_info, add_bench}) {
    add(app, command);
  }
}

Command parse(std::vector<std::string> arguments) {
  Command command;
  const BuiltInConfig built_in;
  const config::Fields& fields = built_in.fields;
  command.settings = take_settings(fields, arguments);
  if (arguments.empty()) throw UsageError("no subcommand is given; `trireme --help` lists them");

  CLI::App app;
  define(app, command);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  try {
    app.parse(std::vector<std::string>(arguments));
  } catch (const CLI::CallForHelp&) {
    command.run = printing([text = app.help()] { return text; });
    return command;
  } catch (const CLI::CallForVersion& version) {
    command.run = printing([text = std::string(version.what()) + "\n"] { return text; });
    return command;
  } catch (const CLI::ExtrasError&) {
    const CLI::App& chosen = chosen_of(app);
    const auto extras = app.remaining(true);
    // Name the flag, not the value that followed it.
    auto first = std::find_if(extras.begin(), extras.end(),
                              [](const std::string& word) { return word.starts_with("-"); });
    if (first == extras.end()) first = extras.begin();
    unknown_argument(chosen, first == extras.end() ? "" : *first,
                     takes_settings(chosen) ? &fields : nullptr);
  } catch (const CLI::ParseError& error) {
    const CLI::App& chosen = chosen_of(app);
    const std::string name = path_of(chosen);
    throw UsageError("{}{}; see `trireme {}--help`", name.empty() ? "" : name + ": ",
                     config::one_line(error.what()), name.empty() ? "" : name + " ");
  }
  const CLI::App& chosen = chosen_of(app);
  if (!command.settings.empty() && !takes_settings(chosen)) {
    throw UsageError(
        "--{}: {} takes no configuration; train, evaluate, generate, plan and bench do",
        command.settings.front().key, path_of(chosen).empty() ? "trireme" : path_of(chosen));
  }
  if (!command.run) throw UsageError("no subcommand is given; `trireme --help` lists them");
  return command;
}

}  // namespace trireme::cli
