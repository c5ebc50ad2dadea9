// Attention by cuDNN: a graph per kind of call, built at the first such call and kept.
#include <array>
#include <bit>
#include <map>
#include <unordered_map>
#include <utility>

#include "trireme/core/error.hpp"
#include "trireme/device/memory.hpp"

#include "cudnn_graphs.hpp"
#include "libraries.hpp"

namespace trireme::ops {
namespace {

namespace fe = cudnn_frontend;

void check(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw Error("cuDNN: {}: {}", call, fe::detail::get_error_string(status));
}

/// All that a graph depends on.
struct Kind {
  bool backward = false;
  Element type = Element::bf16;
  std::array<std::int64_t, 5> sizes{};  // batch, tokens, heads, groups, head size
  std::uint32_t scale = 0;              // its bits
  std::array<std::array<std::int64_t, 3>, 8> strides{};
  auto operator<=>(const Kind&) const = default;  // NOLINT(modernize-use-nullptr)
};

std::array<std::int64_t, 3> strides_of(const Heads& x) {
  return {x.batch_stride, x.head_stride, x.stride};
}

Kind kind_of(const Attention& call, const AttentionGradients* to) {
  Kind kind;
  kind.backward = to != nullptr;
  kind.type = call.type;
  kind.sizes = {call.batch, call.queries, call.heads, call.groups, call.size};
  kind.scale = std::bit_cast<std::uint32_t>(call.scale);
  kind.strides = {strides_of(call.q), strides_of(call.k), strides_of(call.v), strides_of(call.out)};
  if (to != nullptr) {
    kind.strides[4] = strides_of(to->dout);
    kind.strides[5] = strides_of(to->dq);
    kind.strides[6] = strides_of(to->dk);
    kind.strides[7] = strides_of(to->dv);
  }
  return kind;
}

class CudnnAttention final : public FusedAttention {
 public:
  CudnnAttention(device::MemoryLedger& ledger, device::Device& device, CUstream_st* stream,
                 bool deterministic)
      : ledger_(ledger), device_(device), deterministic_(deterministic) {
    try {
      if (!load_cudnn().empty()) throw Error("{}", load_cudnn());
      check(fe::detail::create_handle(&handle_), "cudnnCreate");
      check(fe::detail::set_stream(handle_, stream), "cudnnSetStream");
    } catch (const std::exception& error) {  // of the frontend too: our kernels serve instead
      no_start_ = error.what();
      end();
    }
  }
  ~CudnnAttention() override {
    plans_.clear();
    end();
  }

  bool forward(const Attention& call) override {
    const Plan& plan = plan_of(kind_of(call, nullptr),
                               [&](fe::graph::Graph& graph) { add_attention(graph, call); });
    return run(plan, {{attention_tensor::q, call.q.data},
                      {attention_tensor::k, call.k.data},
                      {attention_tensor::v, call.v.data},
                      {attention_tensor::out, call.out.data},
                      {attention_tensor::lse, call.lse}});
  }

  bool backward(const Attention& call, const AttentionGradients& to) override {
    const Plan& plan = plan_of(kind_of(call, &to), [&](fe::graph::Graph& graph) {
      add_attention_gradient(graph, call, to, deterministic_);
    });
    return run(plan, {{attention_tensor::q, call.q.data},
                      {attention_tensor::k, call.k.data},
                      {attention_tensor::v, call.v.data},
                      {attention_tensor::out, call.out.data},
                      {attention_tensor::lse, call.lse},
                      {attention_tensor::dout, to.dout.data},
                      {attention_tensor::dq, to.dq.data},
                      {attention_tensor::dk, to.dk.data},
                      {attention_tensor::dv, to.dv.data}});
  }

  std::vector<AttentionChoice> describe() const override {
    std::vector<AttentionChoice> all;
    for (const auto& [kind, plan] : plans_) {
      const auto [batch, tokens, heads, groups, size] = kind.sizes;
      all.push_back({batch, tokens, heads, groups, size,
                     kind.type == Element::bf16 ? "bf16" : "fp16", kind.backward, plan.kernel,
                     static_cast<std::int64_t>(plan.workspace), plan.refusal});
    }
    return all;
  }

 private:
  struct Plan {
    std::shared_ptr<fe::graph::Graph> graph;  // null: refused
    std::size_t workspace = 0;
    std::string kernel, refusal;
  };
  void end() {
    if (handle_ != nullptr) fe::detail::destroy_handle(std::exchange(handle_, nullptr));
  }
  using Pointers = std::unordered_map<std::int64_t, void*>;

  template <class Make>
  const Plan& plan_of(const Kind& kind, const Make& make) {
    const auto [place, is_new] = plans_.try_emplace(kind);
    Plan& plan = place->second;
    if (!is_new) return plan;
    if (handle_ == nullptr) {
      plan.refusal = no_start_;
      return plan;
    }
    try {
      plan.graph = std::make_shared<fe::graph::Graph>();
      make(*plan.graph);
      std::int64_t bytes = 0;
      fe::error_t result = build(*plan.graph, handle_, bytes);
      if (result.is_good()) result = plan.graph->get_plan_name(plan.kernel);
      plan.workspace = static_cast<std::size_t>(bytes);
      if (result.is_bad()) plan = Plan{.refusal = result.get_message()};
    } catch (const std::exception& error) {  // of the frontend: cuDNN lacks a function
      plan = Plan{.refusal = error.what()};
    }
    return plan;
  }

  bool run(const Plan& plan, Pointers pointers) {
    if (plan.graph == nullptr) return false;
    if (plan.workspace > workspace_.bytes()) {
      workspace_ = device::Buffer();  // first: never hold both
      workspace_ =
          device::Buffer(ledger_, device::Use::workspace, device::aligned(plan.workspace), device_);
    }
    fe::error_t result = plan.graph->execute(handle_, pointers, workspace_.data());
    if (result.is_bad()) throw Error("cuDNN's attention: {}", result.get_message());
    return true;
  }

  device::MemoryLedger& ledger_;
  device::Device& device_;
  bool deterministic_;
  cudnnHandle_t handle_ = nullptr;  // null: cuDNN did not start
  std::string no_start_;            // why
  device::Buffer workspace_;
  std::map<Kind, Plan> plans_;
};

}  // namespace

std::unique_ptr<FusedAttention> make_fused_attention(device::MemoryLedger& ledger,
                                                     device::Device& device, CUstream_st* stream,
                                                     bool deterministic) {
  return std::make_unique<CudnnAttention>(ledger, device, stream, deterministic);
}

std::string attention_library() {
  if (!load_cudnn().empty()) return fmt::format("no cuDNN attention ({})", load_cudnn());
  const std::size_t version = fe::detail::get_backend_version();
  return fmt::format("cuDNN {}.{}.{} through cudnn-frontend {}.{}.{}", version / 10000,
                     version / 100 % 100, version % 100, CUDNN_FRONTEND_MAJOR_VERSION,
                     CUDNN_FRONTEND_MINOR_VERSION, CUDNN_FRONTEND_PATCH_VERSION);
}

}  // namespace trireme::ops
