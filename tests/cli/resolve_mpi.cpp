// One configuration for all ranks, and one error.
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/cli/command.hpp"
#include "trireme/comm/session.hpp"

namespace trireme::cli {
namespace {

struct Section {
  std::int64_t layers = 1;
  double rate = 0.1;
  bool bias = true;
  std::string text;
  void declare(config::Fields& fields) {
    fields.add("layers", layers, "blocks", config::at_least(1));
    fields.add("rate", rate, "a share");
    fields.add("bias", bias, "biases");
    fields.add("text", text, "words");
  }
};

// Launchers do not always pass on the environment: here every rank except 0 has a different one.
TEST(ResolveOnRanks, AllRanksGetRankZerosResult) {
  comm::Session session(nullptr, nullptr);
  Section section;
  config::Fields fields;
  fields.section("net", section);
  std::string variable = "TRIREME_NET_LAYERS=" + std::to_string(5 + session.rank());
  std::vector<char*> environment{variable.data(), nullptr};
  resolve(fields,
          {{{"net.rate", "0.3"}, {"net.bias", "no"}, {"net.text", "a \"b\"\n"}},
           {},
           environment.data(),
           {}},
          session);
  EXPECT_EQ(section.layers, 5);
  EXPECT_EQ(section.rate, 0.3);
  EXPECT_FALSE(section.bias);
  EXPECT_EQ(section.text, "a \"b\"\n");
  EXPECT_EQ(fields.find("net.layers")->source, config::Source::environment);
  EXPECT_EQ(fields.find("net.layers")->origin, "TRIREME_NET_LAYERS");
  EXPECT_EQ(fields.find("net.rate")->source, config::Source::command_line);
}

TEST(ResolveOnRanks, AnErrorOfRankZeroReachesAllRanks) {
  comm::Session session(nullptr, nullptr);
  Section section;
  config::Fields fields;
  fields.section("net", section);
  // Wrong only on rank 0.
  std::string variable = session.rank() == 0 ? "TRIREME_NET_LAYERS=0" : "TRIREME_NET_LAYERS=3";
  std::vector<char*> environment{variable.data(), nullptr};
  try {
    resolve(fields, {{}, {}, environment.data(), {}}, session);
    FAIL() << "no error on rank " << session.rank();
  } catch (const AgreedError& error) {
    EXPECT_STREQ(error.what(),
                 "TRIREME_NET_LAYERS: net.layers = 0: must be at least 1; use 1 or more");
  }
}

TEST(ResolveOnRanks, WorkRunsOnlyOnRankZero) {
  comm::Session session(nullptr, nullptr);
  int runs = 0;
  const std::string long_text = std::string(100000, 'x') + std::string("\0y", 2);
  EXPECT_EQ(on_rank_zero(session,
                         [&] {
                           ++runs;
                           return std::string(long_text);
                         }),
            long_text);
  EXPECT_EQ(runs, session.rank() == 0 ? 1 : 0);
  EXPECT_EQ(on_rank_zero(session, [] { return std::string(); }), "");
  EXPECT_THROW(on_rank_zero(session, []() -> std::string { throw Error("no"); }), AgreedError);
}

}  // namespace
}  // namespace trireme::cli
