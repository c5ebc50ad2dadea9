#include "trireme/core/json.hpp"

#include <chrono>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/core/error.hpp"

namespace trireme {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string fault(const std::string& text) {
  try {
    parse_json(text, "x.json");
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), StartsWith("x.json: "));
    EXPECT_THAT(error.what(), HasSubstr("; restore the file"));
    EXPECT_THAT(error.what(), testing::Not(HasSubstr("\n")));
    return error.what();
  }
  return "";
}

TEST(Json, ValidJsonIsRead) {
  EXPECT_EQ(parse_json(R"({"a": [1, -2, 0.5, "x"], "b": null})", "x"),
            nlohmann::json({{"a", {1, -2, 0.5, "x"}}, {"b", nullptr}}));
  EXPECT_EQ(fault(std::string(64, '[') + std::string(64, ']')), "");
}

TEST(Json, KeysAreUniqueInTheirObject) {
  EXPECT_THAT(fault(R"({"a": 1, "b": 2, "a": 1})"), HasSubstr("has the key \"a\" twice"));
  EXPECT_THAT(fault(R"([{"x": {"a": 1, "\u0061": 2}}])"), HasSubstr("has the key \"a\" twice"));
  EXPECT_THAT(fault(R"({"a\nb": 1, "a\nb": 2})"), HasSubstr("has the key \"a\\nb\" twice"));
  EXPECT_EQ(fault(R"({"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]})"), "");
}

TEST(Json, NestingIsBounded) {
  for (const std::size_t depth : {66, 1'000'000}) {
    EXPECT_THAT(fault(std::string(depth, '[')), HasSubstr("is nested more than 64 deep")) << depth;
    std::string objects;
    for (std::size_t i = 0; i < depth; ++i) objects += "{\"a\":";
    EXPECT_THAT(fault(objects), HasSubstr("is nested more than 64 deep")) << depth;
  }
}

TEST(Json, APassingListIsTakenElementByElement) {
  std::vector<nlohmann::json> taken;
  const PassingList list{"list", [&](const nlohmann::json& each) { taken.push_back(each); }};
  const std::string text = R"({"a": {"list": [1]}, "list": [[2], {"list": [3]}, 4], "b": [5]})";
  EXPECT_EQ(parse_json(text, "x", "", list),
            nlohmann::json::parse(R"({"a": {"list": [1]}, "list": [], "b": [5]})"));
  EXPECT_EQ(taken, (std::vector<nlohmann::json>{{2}, {{"list", {3}}}, 4}));
  taken.clear();
  EXPECT_EQ(parse_json(R"([{"list": [1]}])", "x", "", list), nlohmann::json({{{"list", {1}}}}));
  EXPECT_EQ(parse_json(R"({"list": {"a": [1]}})", "x", "", list),
            nlohmann::json({{"list", {{"a", {1}}}}}));
  EXPECT_TRUE(taken.empty());
}

// nlohmann's parser with a callback took 40 s for as many.
TEST(Json, ALongListTakesLinearTime) {
  std::string text = "[{}";
  for (int i = 0; i < 300'000; ++i) text += ",{\"a\":[1]}";
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(parse_json(text + "]", "x").size(), 300'001U);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(Json, InvalidJsonIsRefused) {
  for (const char* text :
       {"", "{", "{\"a\": }", "[1] x", "NaN", "[1e999]", "\"\xC3(\"", "{'a': 1}"}) {
    EXPECT_THAT(fault(text), HasSubstr("is not valid JSON")) << text;
  }
}

}  // namespace
}  // namespace trireme
