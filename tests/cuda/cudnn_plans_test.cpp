// cuDNN's plans for attention graphs, without a device: since 9.8 cuDNN builds kernels for a
// described device. It must accept every call within the predicted work space.
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "trireme/ops/workspace.hpp"

#include "cudnn_attention.hpp"
#include "libraries.hpp"

namespace trireme::ops {
namespace {

namespace fe = cudnn_frontend;

/// From NVIDIA's data sheets and the CUDA programming guide's table of compute capabilities.
struct Gpu {
  const char* name;
  int capability;  // times 100
  int multiprocessors;
  int shared_memory;  // bytes per block, at most
  int l2;             // bytes
  std::int64_t memory;
  int clock, memory_clock;  // kHz
  int pci;
};

const std::vector<Gpu> gpus{
    {"NVIDIA A100", 800, 108, 166912, 41943040, 80'000'000'000, 1410000, 1512000, 0x20b2},
    {"NVIDIA H200", 900, 132, 232448, 62914560, 141'000'000'000, 1980000, 3201000, 0x2335},
    {"NVIDIA B200", 1000, 148, 232448, 132644864, 180'000'000'000, 1965000, 3996000, 0x2901}};

/// cuDNN's format, as version 9.19 reads it.
std::string description(const Gpu& gpu) {
  return fmt::format(
      R"({{"deviceName": "{}", "cudaDeviceId": 0, "deviceVer": {}, "driverVer": 13000, "isTccDriver": 0,
"l2CacheSize": {}, "maxCtasPerSM": 32, "maxRegistersPerSM": 65536, "maxSharedMemoryPerBlock": 49152,
"maxSharedMemoryPerBlockOptin": {}, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048,
"memClockRateKHz": {}, "multiProcessorCount": {}, "pciDeviceId": {}, "regsPerBlock": 65536,
"reservedSharedMemoryPerBlock": 1024, "smClockRateKHz": {}, "supportCoopLaunch": 1,
"totalGlobalMem": {}, "warpSize": 32, "maxBlockSize": [1024, 1024, 64],
"maxGridSize": [2147483647, 65535, 65535]}})",
      gpu.name, gpu.capability, gpu.l2, gpu.shared_memory, gpu.memory_clock, gpu.multiprocessors,
      gpu.pci, gpu.clock, gpu.memory);
}

struct Answer {
  std::string refusal;  // empty: accepted
  std::int64_t workspace = 0;
};

class CudnnPlans : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(load_cudnn(), "");
    const std::size_t version = fe::detail::get_backend_version();
    for (const Gpu& gpu : gpus) {
      const std::string text = description(gpu);
      auto properties = std::make_shared<fe::DeviceProperties>();
      fe::error_t read = properties->deserialize({text.begin(), text.end()});
      if (read.is_bad() && version != known_version) {
        GTEST_SKIP() << "cuDNN " << version << " describes devices differently than "
                     << known_version << ": " << read.get_message();
      }
      ASSERT_TRUE(read.is_good()) << read.get_message();
      described_.push_back(properties);
    }
  }

  /// Of the call, or of its gradients if it has any.
  Answer ask(std::size_t gpu, const Attention& call, const AttentionGradients* to = nullptr,
             bool deterministic = false) const {
    fe::graph::Graph graph;
    graph.set_device_properties(described_.at(gpu)).set_sm_version(gpus.at(gpu).capability / 10);
    if (to == nullptr) {
      add_attention(graph, call);
    } else {
      add_attention_gradient(graph, call, *to, deterministic);
    }
    Answer answer;
    fe::error_t result = build(graph, nullptr, answer.workspace);
    if (result.is_bad()) answer.refusal = result.get_message();
    return answer;
  }

  static constexpr std::size_t known_version = 91900;
  std::vector<std::shared_ptr<const fe::DeviceProperties>> described_;
};

/// Queries, keys and values side by side in the rows of one matrix, as in a model's blocks.
struct Call {
  Call(Element type, const AttentionShape& shape) {
    const std::int64_t row = (shape.heads + 2 * shape.groups) * shape.size;
    const std::int64_t own = shape.heads * shape.size;
    const auto heads = [&](std::int64_t stride) {
      return Heads{aligned, shape.queries * stride, stride, shape.size};
    };
    call.type = type;
    call.batch = shape.batch;
    call.queries = call.keys = shape.queries;
    call.heads = call.all_heads = shape.heads;
    call.groups = shape.groups;
    call.share = shape.heads / shape.groups;
    call.size = shape.size;
    call.scale = 1 / std::sqrt(static_cast<float>(shape.size));
    call.q = call.k = call.v = heads(row);
    call.out = heads(own);
    to.dout = heads(own);
    to.dq = to.dk = to.dv = heads(row);
  }

  alignas(16) inline static char aligned[16];  // nothing is read through it
  Attention call;
  AttentionGradients to;
};

const std::vector<AttentionShape> shapes{
    {4, 1024, 1024, 12, 12, 64},  // GPT-2, 124M parameters
    {2, 1024, 1024, 25, 25, 64},  // 1.5B
    {1, 4096, 4096, 32, 8, 64},   // Llama, 1B
    {1, 2048, 2048, 32, 8, 128},  // 8B
    {2, 513, 513, 16, 2, 96},     // lengths and heads that tiles do not divide
    {3, 37, 37, 3, 1, 8},        {1, 2, 2, 1, 1, 16}, {2, 200, 200, 5, 5, 104},
};

std::string name_of(const AttentionShape& shape) {
  return fmt::format("{}x{} heads {}/{} size {}", shape.batch, shape.queries, shape.heads,
                     shape.groups, shape.size);
}

TEST_F(CudnnPlans, EveryFusedCallFitsThePredictedWorkspace) {
  for (std::size_t gpu = 0; gpu < gpus.size(); ++gpu) {
    for (const AttentionShape& shape : shapes) {
      const Element type = shape.size % 16 == 0 ? Element::bf16 : Element::f16;
      const Call call(type, shape);
      SCOPED_TRACE(std::string(gpus.at(gpu).name) + ", " + name_of(shape));
      ASSERT_TRUE(can_fuse(call.call, call.to));
      const auto most = static_cast<std::int64_t>(cuda_attention_workspace(shape, false));
      const Answer forward = ask(gpu, call.call);
      EXPECT_EQ(forward.refusal, "");
      EXPECT_LE(forward.workspace, most);
      for (const bool deterministic : {false, true}) {
        const Answer backward = ask(gpu, call.call, &call.to, deterministic);
        EXPECT_EQ(backward.refusal, "") << "deterministic " << deterministic;
        const auto predicted =
            static_cast<std::int64_t>(cuda_attention_workspace(shape, deterministic));
        EXPECT_LE(backward.workspace, predicted) << "deterministic " << deterministic;
        // Nor far below: of long sequences on Hopper, at least half of it.
        if (gpus.at(gpu).capability == 900 && shape.queries >= 256) {
          EXPECT_GE(2.1 * static_cast<double>(backward.workspace), static_cast<double>(predicted));
        }
      }
    }
  }
}

/// Otherwise the test above would be vacuous.
TEST_F(CudnnPlans, UnsupportedCallsAreRefused) {
  Call narrow(Element::bf16, {2, 64, 64, 4, 4, 20});  // 40 bytes a head
  EXPECT_FALSE(can_fuse(narrow.call, narrow.to));
  Call wide(Element::bf16, {2, 64, 64, 4, 4, 264});
  EXPECT_FALSE(can_fuse(wide.call, wide.to));
  for (std::size_t gpu = 0; gpu < gpus.size(); ++gpu) {
    EXPECT_NE(ask(gpu, narrow.call).refusal, "") << gpus.at(gpu).name;
    EXPECT_NE(ask(gpu, wide.call, &wide.to).refusal, "") << gpus.at(gpu).name;
  }
}

}  // namespace
}  // namespace trireme::ops
