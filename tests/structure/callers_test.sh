#!/usr/bin/env bash
# Every function declared in a header has a caller in the product (callers.py defines it). The search is first tried on
# a small tree that has one of each kind.
set -euo pipefail
source_tree=${SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
search=$source_tree/tests/structure/callers.py

# Correct findings that stay, each with the reason: "FILE: NAME" and a comment.
allowed=$(sed 's/ *#.*//' <<'END'
END
)

planted=$(mktemp -d)
trap 'rm -rf "$planted"' EXIT
mkdir -p "$planted"/{include/trireme/core,src/core,bench,examples,packaging,tests}
cat >"$planted/include/trireme/core/a.hpp" <<'END'
#pragma once
namespace trireme {
/// unused_function() in a comment is no call, nor is "unused_function()".
int unused_function(int x = 3);
int used_in_another_file(int x);
int used_in_its_own_file();
int passed_on();
template <class T>
std::map<int, T> unused_template(const T& value);
inline int only_tests_call_it() { return used_inline(); }
inline int used_inline() { return 1; }
class A : public Base {
 public:
  explicit A(int x) : x_{x} {}
  virtual ~A() = default;
  int unused_method() const { return x_; }
  int used_by_bench() const { return x_; }
  [[nodiscard]] static int unused_static();
  void called_by_a_library(int x) override;
  virtual int overridden_and_used() = 0;
  bool operator<(const A& other) const;

 private:
  int x_;
};
class B : public A {
  int overridden_and_used() override { return unused_member; }
  int unused_member = 0;  // a variable: not looked for
};
}  // namespace trireme
END
cat >"$planted/src/core/a.cpp" <<'END'
#include "trireme/core/a.hpp"
#if unused_function(3)
#endif
namespace trireme {
int unused_function(int x) { return x; }
int used_in_another_file(int x) { return x; }
int used_in_its_own_file() { return A::overridden_and_used(); }
int passed_on() { return used_in_its_own_file(); }
int A::unused_static() { return std::invoke(passed_on); }
void A::called_by_a_library(int) {}
}  // namespace trireme
END
printf 'int main() { return trireme::used_in_another_file(trireme::A(1).used_by_bench()); }\n' >"$planted/bench/b.cpp"
printf 'int main() { return only_tests_call_it() + unused_function(1); }\n' >"$planted/tests/c.cpp"
expected='include/trireme/core/a.hpp: only_tests_call_it
include/trireme/core/a.hpp: unused_function
include/trireme/core/a.hpp: unused_method
include/trireme/core/a.hpp: unused_static
include/trireme/core/a.hpp: unused_template'
if ! diff <(printf '%s\n' "$expected") <(python3 "$search" "$planted"); then
  echo "the search did not find what was planted (< expected, > found)"
  exit 1
fi

found=$(python3 "$search" "$source_tree" | grep -vxF "${allowed:-nothing}" || true)
if [ -n "$found" ]; then
  echo "functions without a caller in include, src, bench, examples and packaging; remove them, with what tests them:"
  printf '%s\n' "$found"
  exit 1
fi
echo "every function that a header declares has a caller"
