#include <span>

#include "trireme/cli/command.hpp"
#include "trireme/train/setup.hpp"

#include "commands.hpp"

namespace trireme::cli {

namespace {

/// The command line and the configuration, as they are defined.
struct Program : BuiltInConfig {
  Program() { define(app, command); }
  Command command;
  CLI::App app;
};

/// A subcommand, or a part of one: "bench gemm".
struct Part {
  std::string path;
  const CLI::App* app;
};

/// All below `app`, each before its own parts.
std::vector<Part> parts_of(const CLI::App& app, const std::string& prefix = "") {
  std::vector<Part> parts;
  for (const CLI::App* part : app.get_subcommands({})) {
    parts.push_back({prefix + part->get_name(), part});
    for (const Part& inner : parts_of(*part, parts.back().path + " ")) parts.push_back(inner);
  }
  return parts;
}

/// The character that begins at `at`, and how many bytes of UTF-8 it takes.
std::pair<unsigned, std::size_t> character(const std::string& text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const std::size_t bytes = byte(0) < 0xe0U ? 2 : byte(0) < 0xf0U ? 3 : 4;
  unsigned value = byte(0) & (0xffU >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) value = value << 6U | (byte(i) & 0x3fU);
  return {value, bytes};
}

/// `text`, of our own sources and so UTF-8, as roff prints it unchanged.
std::string roff(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool begins = i == 0 || text[i - 1] == '\n';  // a line, where these are requests
    if (begins && (c == '.' || c == '\'')) result += "\\&";
    if ((static_cast<unsigned char>(c) & 0x80U) != 0) {
      const auto [value, bytes] = character(text, i);
      result += fmt::format("\\[u{:04X}]", value);
      i += bytes - 1;
    } else if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
  }
  return result;
}

std::string one_paragraph(std::string text) {
  for (char& c : text) c = c == '\n' ? ' ' : c;
  return text;
}

/// "--name TEXT=value", or the name of an argument.
std::string shown(const CLI::Option& option) {
  std::string text;
  for (const std::string& name : option.get_snames()) text += "-" + name + ", ";
  for (const std::string& name : option.get_lnames()) text += "--" + name + ", ";
  if (text.empty()) return option.get_name(true);
  text.resize(text.size() - 2);
  if (option.get_items_expected_max() == 0) return text;
  return text + " " + option.get_type_name() +
         (option.get_default_str().empty() ? "" : "=" + option.get_default_str());
}

void options_of(const CLI::App& app, std::string& page) {
  for (const CLI::Option* option : app.get_options()) {
    page += ".TP\n\\fB" + roff(shown(*option)) + "\\fR\n" +
            roff(one_paragraph(option->get_description())) + "\n";
  }
}

/// The footer of the subcommand's help. Of train's only the examples: the fields have a section of
/// their own.
void footer_of(const CLI::App& app, std::string& page) {
  std::string footer = app.get_footer();
  if (footer.find("\n[model]\n") != std::string::npos) {
    footer = footer.substr(footer.rfind("\nExamples:") + 1);
  }
  if (footer.empty()) return;
  page += ".PP\n.nf\n" + roff(footer) + (footer.back() == '\n' ? "" : "\n") + ".fi\n";
}

void section_of(const Part& part, std::string& page) {
  page += ".SS " + roff("trireme " + part.path) + "\n" + roff(part.app->get_description()) + ".\n";
  options_of(*part.app, page);
  footer_of(*part.app, page);
}

std::string configuration(const config::Fields& fields) {
  std::string page;
  for (const std::string& section : fields.sections()) {
    page += ".SS [" + roff(section) + "]\n";
    for (const config::Field& field : fields.all()) {
      if (!field.key.starts_with(section + ".")) continue;
      const std::string value = config::to_string(field.built_in);
      page += ".TP\n\\fB" + roff("--" + field.key + "=" + (value.empty() ? "\"\"" : value)) +
              "\\fR\n" + roff(field.help) + "\n";
    }
  }
  return page;
}

struct Fact {
  const char* name;
  const char* meaning;
};

constexpr Fact variables[] = {
    {"TRIREME_SECTION_KEY", "A key of the configuration: model.layers is TRIREME_MODEL_LAYERS."},
    {"OMP_NUM_THREADS", "Threads of a rank where parallel.threads is 0."},
    {"ONEDNN_MAX_CPU_ISA",
     "Widest instruction set for CPU products. Ranks with different ones are refused."},
    {"TRIREME_CUDA_WITHOUT",
     "Parts of GPU libraries to do without: cudnn, cublaslt, bias, gelu, row_sum, timing, split, "
     "separated "
     "by commas. Ranks with different ones are refused."},
    {"SLURM_JOB_END_TIME",
     "End of the Slurm job: the run saves and stops before it, as before train.time_limit."},
    {"OMPI_MCA_mpi_yield_when_idle", "Set to 1 before MPI starts, unless it is already set."},
    {"OMPI_MCA_btl_tcp_eager_limit, OMPI_MCA_btl_tcp_rndv_eager_limit",
     "Likewise, to 1052672: TCP sends pieces of messages, of 1 MiB, without waiting for an "
     "answer."},
};

constexpr Fact exit_codes[] = {
    {"0", "Done."},
    {"1", "An error: one line on standard error that begins with \"trireme: error: \"."},
    {"2", "A mistake on the command line."},
    {"75", "Saved before the last step, on a signal or a time limit: start the command again."},
};

std::string facts(const char* title, std::span<const Fact> all) {
  std::string page = fmt::format(".SH {}\n", title);
  for (const Fact& fact : all) {
    page += fmt::format(".TP\n\\fB{}\\fR\n{}\n", roff(fact.name), roff(fact.meaning));
  }
  return page;
}

/// `text` in a cell of a Markdown table.
std::string cell(const std::string& text) {
  std::string result;
  for (const char c : one_paragraph(text)) result += c == '|' ? "\\|" : std::string(1, c);
  return result;
}

std::string table(const char* title, const char* columns, std::span<const Fact> all) {
  std::string page = fmt::format("\n## {}\n\n{}", title, columns);
  for (const Fact& fact : all) page += fmt::format("| `{}` | {} |\n", fact.name, fact.meaning);
  return page;
}

std::string allowed(const config::Field& field) {
  std::string list;
  for (const std::string& choice : field.rule.choices) {
    if (!choice.empty()) list += (list.empty() ? "`" : ", `") + choice + "`";
  }
  if (!list.empty()) return list;
  const std::string_view words = field.rule.text;
  if (words.starts_with("must be ")) {
    return fmt::format("{}, {}", field.type_name(),
                       words.substr(std::string_view("must be ").size()));
  }
  return field.type_name();
}

void markdown_of(const Part& part, std::string& page) {
  page += fmt::format("\n### trireme {}\n\n{}.\n", part.path, part.app->get_description());
  std::string rows;
  for (const CLI::Option* option : part.app->get_options()) {
    if (option->check_lname("help")) continue;
    rows += fmt::format("| `{}` | {} |\n", shown(*option), cell(option->get_description()));
  }
  if (!rows.empty()) page += "\n| option | meaning |\n|---|---|\n" + rows;
}

constexpr const char* opening = R"(# Which settings are there?

    trireme train --help                            # this list, in the terminal
    trireme train --config run.toml --dry-run       # the values of a run, and where each came from

`make docs` writes this page from the program; edit the declarations in the sources instead.
train, evaluate, generate, plan and bench take the keys below. Each key can be set in four places.
A later row of this table wins.

| place | how `model.layers` is set |
|---|---|
| preset | `--model.preset gpt2` sets the keys of the model |
| TOML file, `--config FILE` | `layers = 12` below `[model]` |
| environment | `TRIREME_MODEL_LAYERS=12` |
| command line | `--model.layers 12` |

Integers may be written as `1e6` or `1_000_000`. A key of type yes/no takes true, false, yes, no,
on, off, 1 or 0, and needs no value on the command line. An unknown key is an error that names the
nearest one. `--dry-run` also checks the rules that join several keys.
)";

/// Flags and parts, words of letters, digits, - and _ alone.
std::string flags_of(const CLI::App& app) {
  std::string words;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) words += " --" + name;
  }
  for (const CLI::App* part : app.get_subcommands({})) words += " " + part->get_name();
  return words.empty() ? words : words.substr(1);
}

void cases_of(const Part& part, std::string& cases, std::string& files) {
  cases += fmt::format("    '{}') words='{}' ;;\n", part.path, flags_of(*part.app));
  for (const CLI::Option* option : part.app->get_options()) {
    const std::string type = option->get_type_name();
    const bool folder = type.starts_with("DIR"), file = type.starts_with("FILE");
    if (!folder && !file) continue;
    for (const std::string& name : option->get_lnames()) {
      files +=
          fmt::format("    '{} --{}') kind={} ;;\n", part.path, name, folder ? "folder" : "file");
    }
  }
}

}  // namespace

std::string manual_page() {
  const Program program;
  const CLI::App& app = program.app;
  const std::string version = train::versions().at("trireme").get<std::string>();
  std::string page = ".TH TRIREME 1 \"\" \"trireme " + version + "\" \"User Commands\"\n";
  page += ".SH NAME\ntrireme \\- transformer training under MPI\n";
  page +=
      ".SH SYNOPSIS\n.B trireme\n\\fISUBCOMMAND\\fR [\\fIOPTIONS\\fR] "
      "[\\fB\\-\\-section.key\\fR \\fIVALUE\\fR ...]\n.br\n.B mpirun \\-n\n\\fIRANKS\\fR "
      "\\fBtrireme\\fR \\fISUBCOMMAND\\fR ...\n";
  page += ".SH DESCRIPTION\n" + roff(app.get_description()) + "\n";
  options_of(app, page);
  page += ".SH SUBCOMMANDS\n";
  for (const Part& part : parts_of(app)) section_of(part, page);
  page +=
      ".SH CONFIGURATION\nFields of train, evaluate, generate, plan and bench, with their "
      "built\\-in values. Each may come from a preset (\\-\\-model.preset), a TOML file "
      "(\\-\\-config), the environment and the command line; the later one wins.\n";
  return page + configuration(program.fields) + facts("ENVIRONMENT", variables) +
         facts("EXIT STATUS", exit_codes) + ".SH SEE ALSO\n.BR mpirun (1)\n";
}

std::string configuration_reference() {
  const Program program;
  std::string page = opening;
  for (const std::string& section : program.fields.sections()) {
    page += fmt::format("\n## [{}]\n\n| key | default | allowed | meaning |\n|---|---|---|---|\n",
                        section);
    for (const config::Field& field : program.fields.all()) {
      if (!field.key.starts_with(section + ".")) continue;
      const std::string value = config::to_string(field.built_in);
      page += fmt::format("| `{}` | {} | {} | {} |\n", field.key,
                          value.empty() ? "" : "`" + value + "`", allowed(field), cell(field.help));
    }
  }
  page += table("Environment variables", "| variable | meaning |\n|---|---|\n", variables);
  page += table("Exit codes", "| code | meaning |\n|---|---|\n", exit_codes);
  page += "\n## Options of each subcommand\n";
  for (const Part& part : parts_of(program.app)) markdown_of(part, page);
  return page;
}

std::string bash_completion() {
  const Program program;
  std::string names, cases, files, fields, choices;
  cases_of({"", &program.app}, cases, files);
  for (const Part& part : parts_of(program.app)) {
    names += (names.empty() ? "'" : "|'") + part.path + "'";
    cases_of(part, cases, files);
  }
  for (const config::Field& field : program.fields.all()) {
    fields += (fields.empty() ? "" : " ") + ("--" + field.key);
    std::string values = field.is_flag() ? "true false" : "";
    for (const std::string& choice : field.rule.choices) {
      if (choice.find(':') == std::string::npos) values += (values.empty() ? "" : " ") + choice;
    }
    if (!values.empty()) choices += fmt::format("    --{}) words='{}' ;;\n", field.key, values);
  }
  return fmt::format(
      R"(# Completion of trireme in bash; made from the program's own definition of its command line.
_trireme() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} path= word words= kind= i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    word=${{path:+$path }}${{COMP_WORDS[i]}}
    case $word in
      {}) path=$word ;;
    esac
  done
  case "$path $previous" in
{}  esac
  case $kind in
    file) COMPREPLY=($(compgen -f -- "$current")); return ;;
    folder) COMPREPLY=($(compgen -d -- "$current")); return ;;
  esac
  case $previous in
{}  esac
  if [ -n "$words" ]; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    return
  fi
  case $path in
{}  esac
  case $path in
    train | evaluate | generate | plan | bench\ *)
      [[ $current == --* ]] && words="$words {}"
      ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o bashdefault -o default -F _trireme trireme
)",
      names, files, choices, cases, fields);
}

}  // namespace trireme::cli
