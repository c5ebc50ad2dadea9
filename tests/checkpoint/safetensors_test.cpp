// The strict reader and the writer of safetensors files.
#include "trireme/checkpoint/safetensors.hpp"

#include <bit>
#include <cstring>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/core/error.hpp"
#include "trireme/core/half.hpp"

#include "support/files.hpp"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using trireme::test::read_text;
using trireme::test::write_text;

std::string file_of(const std::string& json, const std::string& data) {
  std::string text(8, '\0');
  const std::uint64_t length = json.size();
  std::memcpy(text.data(), &length, sizeof length);
  return text + json + data;
}

class SafeTensorsTest : public testing::Test {
 protected:
  fs::path path() const { return scratch_ / "x.safetensors"; }
  void write(const std::string& bytes) const { write_text(path(), bytes); }
  /// Opens and reads every floating-point tensor.
  std::string error_of_reading() const {
    try {
      const SafeTensorsFile file(path());
      for (const SafeTensor& tensor : file.header().tensors) {
        std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
        if (tensor.type == "F32" || tensor.type == "BF16") file.read(tensor, 0, values);
      }
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  }
  trireme::test::Scratch scratch_;
};

TEST_F(SafeTensorsTest, WrittenFilesReadBack) {
  const std::vector<float> values{1, -2.5F, 0.1F, 3e4F, -0.0F, 65504};
  {
    SafeTensorsWriter writer(path(),
                             {{"b", "BF16", {2, 3}},
                              {"a.weight", "F32", {6}},
                              {"half", "F16", {3, 1, 2}},
                              {"scalar", "F32", {}},
                              {"empty", "F32", {0, 7}}},
                             {{"format", "pt"}});
    std::vector<std::string> order;
    for (const auto& entry : writer.order()) {
      order.push_back(entry.name);
      const std::int64_t n = entry.name == "scalar" ? 1 : entry.name == "empty" ? 0 : 6;
      // In two parts.
      writer.write(values.data(), n / 2);
      writer.write(values.data() + n / 2, n - n / 2);
    }
    EXPECT_THAT(order, ElementsAre("a.weight", "empty", "scalar", "b", "half"));
    EXPECT_FALSE(fs::exists(path()));
    writer.finish();
  }
  EXPECT_FALSE(fs::exists(path().string() + ".tmp"));
  const SafeTensorsFile file(path());
  EXPECT_EQ(file.header().metadata.at("format"), "pt");
  EXPECT_EQ(file.find("none"), nullptr);
  const auto expect = [&](const std::string& name, const auto& rounded) {
    const SafeTensor* tensor = file.find(name);
    ASSERT_NE(tensor, nullptr) << name;
    std::vector<float> found(static_cast<std::size_t>(tensor->elements()));
    file.read(*tensor, 0, found);
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(found[i]),
                std::bit_cast<std::uint32_t>(rounded(values[i])))
          << name << " " << i;
    }
  };
  expect("a.weight", [](float x) { return x; });
  expect("scalar", [](float x) { return x; });
  expect("empty", [](float x) { return x; });
  expect("b", [](float x) { return bf16_to_float(float_to_bf16(x)); });
  expect("half", [](float x) { return fp16_to_float(float_to_fp16(x)); });
  std::vector<float> middle(3);
  file.read(*file.find("a.weight"), 2, middle);
  EXPECT_THAT(middle, ElementsAre(0.1F, 3e4F, -0.0F));
  // The data start at a multiple of eight bytes.
  std::uint64_t length = 0;
  std::memcpy(&length, read_text(path()).data(), sizeof length);
  EXPECT_EQ(length % 8, 0U);
}

TEST_F(SafeTensorsTest, AnUnfinishedFileIsRemoved) {
  {
    SafeTensorsWriter writer(path(), {{"a", "F32", {4}}}, {});
    const float one = 1;
    writer.write(&one, 1);
  }
  EXPECT_TRUE(fs::is_empty(scratch_.path()));
}

TEST_F(SafeTensorsTest, HostileHeadersAreRefused) {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  write(file_of(good, std::string(8, 'x')));
  EXPECT_EQ(error_of_reading(), "");
  write(file_of(good + "   ", std::string(8, 'x')));  // padding
  EXPECT_EQ(error_of_reading(), "");

  const auto entry = [](const std::string& name, const std::string& rest) {
    return "\"" + name + "\":{" + rest + "}";
  };
  struct Case {
    std::string json, data, message;
  };
  const std::string eight(8, 'x');
  const std::vector<Case> cases = {
      {"", "", "no safetensors file"},
      {" " + good, eight, "does not begin with '{'"},
      {"[]", "", "does not begin with '{'"},
      {"{", "", "not valid JSON"},
      {good + "x", eight, "not valid JSON"},
      {good, eight + "y", "9 bytes of data, its tensors have 8"},
      {good, "xxxx", "4 bytes of data"},
      {"{}", "x", "1 bytes of data"},
      {R"({"a":3})", "", "holds a number where none belongs"},
      {R"({"a":null})", "", "holds null"},
      {R"({"a":[]})", "", "holds a list"},
      {R"({"a":{}})", "", "lacks dtype, shape or data_offsets"},
      {"{" + entry("a", R"("dtype":"F32","shape":[2])") + "}", eight, "lacks"},
      {"{" + entry("a", R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])") + "}",
       eight, "has the key 'dtype' twice"},
      {"{" + entry("a", R"("dtype":"F32","shape":[2],"data_offsets":[0,8])") + "," +
           entry("a", R"("dtype":"F32","shape":[2],"data_offsets":[0,8])") + "}",
       eight, "has the key 'a' twice"},
      {"{" + entry("a", R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1)") + "}", eight,
       "unknown key 'x'"},
      {"{" + entry("a", R"("dtype":"F99","shape":[2],"data_offsets":[0,8])") + "}", eight,
       "dtype 'F99' is unknown"},
      {"{" + entry("a", R"("dtype":7,"shape":[2],"data_offsets":[0,8])") + "}", eight,
       "holds a number"},
      {"{" + entry("a", R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])") + "}", eight,
       "negative number"},
      {"{" + entry("a", R"("dtype":"F32","shape":[2.5],"data_offsets":[0,8])") + "}", eight,
       "a fraction"},
      {"{" + entry("a", R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])") + "}", eight,
       "holds a list"},
      {"{" + entry("a", R"("dtype":"F32","shape":"2","data_offsets":[0,8])") + "}", eight,
       "holds a string"},
      {"{" + entry("a", R"("dtype":"F32","shape":[3],"data_offsets":[0,8])") + "}", eight,
       "do not hold the 12 bytes"},
      {"{" + entry("a", R"("dtype":"F32","shape":[2],"data_offsets":[8,0])") + "}", eight,
       "begins at byte 8"},
      {"{" + entry("a", R"("dtype":"F32","shape":[2],"data_offsets":[0])") + "}", eight,
       "1 data_offsets"},
      {"{" + entry("a", R"("dtype":"F32","shape":[2],"data_offsets":[0,8,8])") + "}", eight,
       "3 data_offsets"},
      {"{" + entry("a", R"("dtype":"F32","shape":[2],"data_offsets":[0,9223372036854775808])") +
           "}",
       eight, "above 2^63"},
      {"{" + entry("a", R"("dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8])") +
           "}",
       eight, "too large"},
      {"{" + entry("a", R"("dtype":"F32","shape":[4611686018427387904,4,0],"data_offsets":[0,0])") +
           "}",
       "", "too large"},
      // Overlap and gap.
      {"{" + entry("a", R"("dtype":"F32","shape":[2],"data_offsets":[0,8])") + "," +
           entry("b", R"("dtype":"F32","shape":[2],"data_offsets":[4,12])") + "}",
       std::string(12, 'x'),
       "tensor 'b': begins at byte 4 of the data, the one before it ends at 8"},
      {"{" + entry("a", R"("dtype":"F32","shape":[2],"data_offsets":[0,8])") + "," +
           entry("b", R"("dtype":"F32","shape":[1],"data_offsets":[12,16])") + "}",
       std::string(16, 'x'), "tensor 'b': begins at byte 12"},
      {R"({"__metadata__":{"a":1}})", "", "holds a number"},
      {R"({"__metadata__":{"a":"x","a":"y"}})", "", "has the key 'a' twice"},
      {R"({"__metadata__":"x"})", "", "holds a string"},
      {R"({"__metadata__":{"a":{"b":"c"}}})", "", "holds an object"},
      {std::string(100000, '{'), "", "its header"},
      {"{\"a\":" + std::string(100000, '['), "", "its header"},
      {"{" + entry("a\\nb", R"("dtype":"F32","shape":[3],"data_offsets":[0,8])") + "}", eight,
       "do not hold"},
  };
  for (const Case& each : cases) {
    write(each.json.empty() ? "short" : file_of(each.json, each.data));
    const std::string message = error_of_reading();
    EXPECT_THAT(message, HasSubstr(each.message)) << each.json.substr(0, 100);
    EXPECT_THAT(message, HasSubstr("x.safetensors: "));
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
  EXPECT_GE(cases.size(), 30U);
  // Wrong lengths.
  for (const std::uint64_t length : {std::uint64_t{1} << 63, ~std::uint64_t{0},
                                     std::uint64_t{100'000'001}, std::uint64_t{1000}}) {
    std::string bytes = file_of(good, eight);
    std::memcpy(bytes.data(), &length, sizeof length);
    write(bytes);
    EXPECT_THAT(error_of_reading(), HasSubstr("by the first eight")) << length;
  }
}

TEST_F(SafeTensorsTest, LinksAreRefusedUnlessAllowed) {
  write(file_of("{}", ""));
  fs::create_symlink(path(), scratch_ / "link");
  EXPECT_THROW(SafeTensorsFile(scratch_ / "link"), Error);
  EXPECT_NO_THROW(SafeTensorsFile(scratch_ / "link", Links::follow));
}

}  // namespace
}  // namespace trireme::checkpoint
