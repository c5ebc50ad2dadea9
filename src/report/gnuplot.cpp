// gnuplot as a process: a script in, SVG files out.
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trireme/core/error.hpp"
#include "trireme/core/files.hpp"
#include "trireme/report/page.hpp"

extern char** environ;

namespace trireme::report {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t largest_picture = 64 << 20;

/// Runs gnuplot on `script`, its complaints in `log`.
void run_gnuplot(const fs::path& script, const fs::path& log) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(), O_WRONLY | O_CREAT, 0666);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  // Without the settings of whoever runs this.
  std::string program = "gnuplot", defaults = "-d", argument = script.string();
  char* arguments[] = {program.data(), defaults.data(), argument.data(), nullptr};
  pid_t process = 0;
  const int failed = ::posix_spawnp(&process, "gnuplot", &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed == ENOENT) {
    throw Error(
        "gnuplot is not here, so there is no HTML page; install gnuplot-nox (scripts/deps.sh "
        "report)");
  }
  if (failed != 0) throw Error("gnuplot cannot be started: {}", std::strerror(failed));
  int status = 0;
  while (::waitpid(process, &status, 0) < 0) {
    if (errno != EINTR) throw Error("gnuplot: {}", std::strerror(errno));
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  std::string why = read_small_file(log, largest_picture);
  for (char& c : why) c = c == '\n' ? ' ' : c;
  throw Error("gnuplot failed, so there is no HTML page: {}", why.substr(0, 300));
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

/// The element alone. Namespaces need not be named inside HTML, and ids must differ between
/// pictures of a page.
std::string inline_svg(std::string svg, std::size_t number) {
  const std::size_t begin = svg.find("<svg"), end = svg.rfind("</svg>");
  if (begin == svg.npos || end == svg.npos)
    throw Error("gnuplot has drawn something else than SVG");
  svg = svg.substr(begin, end + 6 - begin);
  replace_all(svg, " xmlns=\"http://www.w3.org/2000/svg\"", "");
  replace_all(svg, " xmlns:xlink=\"http://www.w3.org/1999/xlink\"", "");
  replace_all(svg, "xlink:href", "href");
  const std::string prefix = fmt::format("p{}-", number);
  for (const char quote : {'\'', '"'}) {
    replace_all(svg, fmt::format(" id={}", quote), fmt::format(" id={}{}", quote, prefix));
    replace_all(svg, fmt::format("href={}#", quote), fmt::format("href={}#{}", quote, prefix));
  }
  replace_all(svg, "url(#", "url(#" + prefix);
  return svg;
}

}  // namespace

std::vector<std::string> draw(const std::vector<Plot>& plots) {
  std::vector<std::string> pictures;
  if (plots.empty()) return pictures;
  const TemporaryFolder scratch(fs::temp_directory_path() / "trireme-report-XXXXXX");
  std::string script = "set encoding utf8\n";
  for (std::size_t i = 0; i < plots.size(); ++i) {
    // The folder's name is ours but for the temporary directory's.
    std::string file = (scratch.path() / fmt::format("{}.svg", i)).string();
    replace_all(file, "'", "''");
    script += fmt::format(
        "reset\nset terminal svg size {},{} font 'sans-serif,13' background '#ffffff' noenhanced "
        "dynamic\nset output '{}'\nset border 3 lc rgb '#555555'\nset tics nomirror\n"
        "set grid lc rgb '#e4e4e4' lw 1\n{}\nunset output\n",
        plots[i].width, plots[i].height, file, plots[i].script);
  }
  write_file(scratch.path() / "script", script);
  run_gnuplot(scratch.path() / "script", scratch.path() / "log");
  for (std::size_t i = 0; i < plots.size(); ++i) {
    pictures.push_back(
        inline_svg(read_small_file(scratch.path() / fmt::format("{}.svg", i), largest_picture), i));
  }
  return pictures;
}

}  // namespace trireme::report
