// Covering arrays: a short list of rows that contains every feasible pair of values. Pure. Greedy,
// after Cohen et al., "The AETG System" (1997), but over all rows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace trireme::parallel::test {

/// One value, by index, for each factor.
using Row = std::vector<int>;

struct Space {
  std::vector<int> values;                   // per factor
  std::function<bool(const Row&)> feasible;  // whether a row is allowed
  std::size_t factors() const { return values.size(); }
};

/// All feasible rows of a space, in lexical order.
inline std::vector<Row> feasible_rows(const Space& space) {
  std::vector<Row> rows;
  Row row(space.factors(), 0);
  for (bool more = true; more;) {
    if (space.feasible(row)) rows.push_back(row);
    more = false;
    for (std::size_t f = space.factors(); f-- > 0 && !more;) {
      more = ++row[f] < space.values[f];
      if (!more) row[f] = 0;
    }
  }
  return rows;
}

/// Calls visit(index) for each pair of values in `row`, or for each triple; indices are below
/// count(space) of the same kind.
struct Pairs {
  static std::size_t letters(const Space& space) {
    std::size_t sum = 0;
    for (int n : space.values) sum += static_cast<std::size_t>(n);
    return sum;
  }
  static std::vector<std::size_t> letters(const Space& space, const Row& row) {
    std::vector<std::size_t> result;
    std::size_t first = 0;
    for (std::size_t f = 0; f < row.size(); ++f) {
      result.push_back(first + static_cast<std::size_t>(row[f]));
      first += static_cast<std::size_t>(space.values[f]);
    }
    return result;
  }
  static std::size_t count(const Space& space) { return letters(space) * letters(space); }
  template <class Visit>
  static void each(const std::vector<std::size_t>& letters, std::size_t all, const Visit& visit) {
    for (std::size_t a = 0; a < letters.size(); ++a) {
      for (std::size_t b = a + 1; b < letters.size(); ++b) visit(letters[a] * all + letters[b]);
    }
  }
};
struct Triples {
  static std::size_t count(const Space& space) {
    return Pairs::count(space) * Pairs::letters(space);
  }
  template <class Visit>
  static void each(const std::vector<std::size_t>& letters, std::size_t all, const Visit& visit) {
    for (std::size_t a = 0; a < letters.size(); ++a) {
      for (std::size_t b = a + 1; b < letters.size(); ++b) {
        for (std::size_t c = b + 1; c < letters.size(); ++c) {
          visit((letters[a] * all + letters[b]) * all + letters[c]);
        }
      }
    }
  }
};

/// Pairs that some feasible row has and none of `rows`.
inline std::size_t uncovered_pairs(const Space& space, const std::vector<Row>& rows) {
  std::vector<bool> wanted(Pairs::count(space), false);
  const std::size_t all = Pairs::letters(space);
  const auto mark = [&](const Row& row, bool value) {
    Pairs::each(Pairs::letters(space, row), all, [&](std::size_t pair) { wanted[pair] = value; });
  };
  for (const Row& row : feasible_rows(space)) mark(row, true);
  for (const Row& row : rows) mark(row, false);
  std::size_t left = 0;
  for (const bool pair : wanted) left += pair ? 1 : 0;
  return left;
}

/// Feasible rows that cover every feasible pair, at least `at_least`: always the row with most new
/// pairs, then most new triples, then the first.
inline std::vector<Row> cover(const Space& space, std::size_t at_least) {
  const std::size_t all = Pairs::letters(space);
  struct Candidate {
    Row row;
    std::vector<std::size_t> letters;
  };
  std::vector<Candidate> candidates;
  for (Row& row : feasible_rows(space)) {
    std::vector<std::size_t> letters = Pairs::letters(space, row);
    candidates.push_back({std::move(row), std::move(letters)});
  }
  std::vector<char> pairs(Pairs::count(space), 0), triples(Triples::count(space), 0);
  const auto fresh = [&](const auto kind, const Candidate& candidate,
                         const std::vector<char>& seen) {
    int count = 0;
    kind.each(candidate.letters, all, [&](std::size_t index) { count += 1 - seen[index]; });
    return count;
  };
  std::vector<Row> rows;
  while (true) {
    const Candidate* best = nullptr;
    int best_pairs = -1, best_triples = -1;
    for (const Candidate& candidate : candidates) {
      const int new_pairs = fresh(Pairs(), candidate, pairs);
      if (new_pairs < best_pairs) continue;
      const int new_triples = fresh(Triples(), candidate, triples);
      if (new_pairs == best_pairs && new_triples <= best_triples) continue;
      best = &candidate;
      best_pairs = new_pairs;
      best_triples = new_triples;
    }
    // None new: no pairs, and enough rows or no triples either.
    if (best_pairs <= 0 && (best_triples <= 0 || rows.size() >= at_least)) return rows;
    rows.push_back(best->row);
    Pairs::each(best->letters, all, [&](std::size_t index) { pairs[index] = 1; });
    Triples::each(best->letters, all, [&](std::size_t index) { triples[index] = 1; });
  }
}

}  // namespace trireme::parallel::test
