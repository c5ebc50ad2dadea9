#include "trireme/core/json.hpp"

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

TEST(Json, InvalidJsonIsRefused) {
  for (const char* text :
       {"", "{", "{\"a\": }", "[1] x", "NaN", "[1e999]", "\"\xC3(\"", "{'a': 1}"}) {
    EXPECT_THAT(fault(text), HasSubstr("is not valid JSON")) << text;
  }
}

}  // namespace
}  // namespace trireme
