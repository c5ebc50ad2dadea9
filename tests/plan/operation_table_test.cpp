// Times of operations: what was measured is exact, what lies between is near, what is unlike takes
// the formula; and its text reads back, or is refused in one line.
#include "trireme/plan/operation_table.hpp"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "machines.hpp"
#include "support/files.hpp"

namespace trireme::plan::test {
namespace {

using TableKind = Work::Kind;

Work product_work(std::int64_t m, std::int64_t n, std::int64_t k,
                  std::string_view name = "matmul_nn") {
  return {.name = name,
          .kind = TableKind::product,
          .m = m,
          .n = n,
          .k = k,
          .bytes = 4 * (m * k + k * n + m * n)};
}
double table_formula(const Work& work) { return work.flops() / 1e11; }

TEST(OperationTable, IsExactWhereItWasMeasured) {
  const OperationTable table({{product_work(64, 64, 64), 3}, {product_work(128, 64, 64), 5}});
  EXPECT_EQ(table.seconds(product_work(64, 64, 64), table_formula), 3);
  EXPECT_EQ(table.seconds(product_work(128, 64, 64), table_formula), 5);
}

/// Half as fast as the formula at few rows, as fast at many: between them what lies between.
TEST(OperationTable, CorrectsTheFormulaByWhatIsNear) {
  const Work few = product_work(32, 256, 256), many = product_work(2048, 256, 256),
             between = product_work(256, 256, 256), near = product_work(64, 256, 256);
  const OperationTable table({{few, 2 * table_formula(few)}, {many, table_formula(many)}});
  const auto ratio = [&](const Work& work) {
    return table.seconds(work, table_formula) / table_formula(work);
  };
  // Three doublings of rows from both, and of bytes log2(2.4) and log2(17/3).
  const double to_few = 9 + std::pow(std::log2(2.4), 2),
               to_many = 9 + std::pow(std::log2(17 / 3.0), 2);
  EXPECT_NEAR(ratio(between), std::exp2(to_many / (to_few + to_many)), 1e-9);
  EXPECT_GT(ratio(near), 1.8);
  EXPECT_LT(ratio(product_work(4096, 256, 256)), 1.1);
  // Without one of the two, the other alone.
  EXPECT_DOUBLE_EQ(table.seconds(few, table_formula, &few), table_formula(few));
}

TEST(OperationTable, TakesTheFormulaForWhatIsUnlike) {
  const OperationTable table({{product_work(64, 64, 64), 3}});
  Work other = product_work(64, 64, 64, "matmul_nt");
  EXPECT_EQ(table.seconds(other, table_formula), table_formula(other));
  other = product_work(64, 64, 64);
  other.type = DType::bf16;
  EXPECT_EQ(table.seconds(other, table_formula), table_formula(other));
}

TEST(OperationTable, ReadsItsText) {
  std::vector<OperationTime> times{{product_work(64, 65, 66), 1.234e-3}};
  const auto add = [&](Work work) {
    times.push_back({work, 1e-6 * static_cast<double>(times.size())});
  };
  for (const bool causal : {false, true}) {
    add({.name = std::string_view("attention"),
         .kind = TableKind::attention,
         .m = 8,
         .n = 9,
         .k = 4,
         .count = 6,
         .causal = causal});
    add({.name = std::string_view("attention_backward"),
         .kind = TableKind::attention_backward,
         .m = 8,
         .n = 9,
         .k = 4,
         .count = 6,
         .causal = causal});
  }
  add({.name = std::string_view("gelu"), .type = DType::bf16, .bytes = 1 << 20});
  add({.name = std::string_view("cross_entropy_gradient"), .bytes = 12, .loss = true});
  add({.name = std::string_view("adamw"), .kind = TableKind::update, .bytes = 100});
  const OperationTable table(times);
  const OperationTable read = OperationTable::parse(table.text(), "file");
  ASSERT_EQ(read.times().size(), times.size());
  for (std::size_t i = 0; i < times.size(); ++i) {
    EXPECT_EQ(read.times()[i].work, table.times()[i].work) << i;
    EXPECT_NEAR(read.times()[i].seconds / table.times()[i].seconds, 1, 1e-3) << i;
  }
  // As part of a machine file.
  const trireme::test::Scratch folder;
  Machine machine = cpu_machine();
  machine.measured = table;
  const auto path = folder / "machine.toml";
  trireme::test::write_text(path, machine.to_toml());
  EXPECT_EQ(Machine::read(path).to_toml(), machine.to_toml());
  EXPECT_NEAR(Machine::read(path).seconds(product_work(64, 65, 66)), 1.234e-3, 1e-9);
}

TEST(OperationTable, RefusesWhatItCannotRead) {
  const std::string header = "operation,kind,type,m,n,k,count,bytes,us\n";
  const auto refused = [&](const std::string& text) -> std::string {
    try {
      OperationTable::parse(text, "file");
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  };
  const auto starts = [](const std::string& text, const std::string& with) {
    EXPECT_EQ(text.substr(0, with.size()), with);
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 0);
  };
  starts(refused("name,us\n"), "file, line 1");
  starts(refused(header + "gelu,memory,fp32,0,0,0,1,8"), "file, line 2: the line");
  starts(refused(header + "gelu,wish,fp32,0,0,0,1,8,1"), "file, line 2: kind");
  starts(refused(header + "gelu,memory,fp33,0,0,0,1,8,1"), "file, line 2: type");
  starts(refused(header + "gelu,memory,fp32,0,0,-1,1,8,1"), "file, line 2: k");
  starts(refused(header + "gelu,memory,fp32,0,0,0,1,8x,1"), "file, line 2: bytes");
  for (const char* number : {"0", "-1", "nan", "inf", "", "1e999"}) {
    starts(refused(header + "\ngelu,memory,fp32,0,0,0,1,8," + number), "file, line 3: us");
  }
  starts(refused(header + "gelu,memory,fp32,0,0,0,1,8,1\ngelu,memory,fp32,0,0,0,1,8,2"),
         "file = gelu");
  starts(refused(header + std::string(32, 'x') + ",memory,fp32,0,0,0,1,8,1"),
         "file, line 2: operation");
}

}  // namespace
}  // namespace trireme::plan::test
