// Attention by cuDNN: graphs of calls, one per kind of call, built at the first such call and kept.
#include "cudnn_attention.hpp"

#include <array>
#include <bit>
#include <cstdlib>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include <dlfcn.h>

#include "trireme/core/error.hpp"
#include "trireme/device/memory.hpp"

#include "libraries.hpp"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // read by the frontend
}

namespace trireme::ops {
namespace {

namespace fe = cudnn_frontend;
using TensorPointer = std::shared_ptr<fe::graph::Tensor_attributes>;
using namespace attention_tensor;

/// Builds the graph of one call.
class Builder {
 public:
  Builder(fe::graph::Graph& graph, const Attention& call) : graph_(graph), call_(call) {
    const fe::DataType_t type =
        call.type == Element::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF;
    graph_.set_io_data_type(type)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  void forward() {
    const auto options = fe::graph::SDPA_attributes()
                             .set_name("attention")
                             .set_generate_stats(true)
                             .set_causal_mask(true)
                             .set_attn_scale(call_.scale);
    auto [result, statistics] =
        graph_.sdpa(input(q, call_.q, call_.heads), input(k, call_.k, call_.groups),
                    input(v, call_.v, call_.groups), options);
    output(result, out, call_.out, call_.heads);
    statistics->set_output(true)
        .set_uid(lse)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim(lse_sizes())
        .set_stride(lse_strides());
  }

  void backward(const AttentionGradients& to, bool deterministic) {
    const auto options = fe::graph::SDPA_backward_attributes()
                             .set_name("attention_backward")
                             .set_causal_mask(true)
                             .set_attn_scale(call_.scale)
                             .set_deterministic_algorithm(deterministic);
    const TensorPointer statistics = graph_.tensor(fe::graph::Tensor_attributes()
                                                       .set_uid(lse)
                                                       .set_data_type(fe::DataType_t::FLOAT)
                                                       .set_dim(lse_sizes())
                                                       .set_stride(lse_strides()));
    auto [to_q, to_k, to_v] =
        graph_.sdpa_backward(input(q, call_.q, call_.heads), input(k, call_.k, call_.groups),
                             input(v, call_.v, call_.groups), input(out, call_.out, call_.heads),
                             input(dout, to.dout, call_.heads), statistics, options);
    output(to_q, dq, to.dq, call_.heads);
    output(to_k, dk, to.dk, call_.groups);
    output(to_v, dv, to.dv, call_.groups);
  }

 private:
  using Numbers = std::vector<std::int64_t>;
  Numbers sizes(std::int64_t heads) const {
    return {call_.batch, heads, call_.queries, call_.size};
  }
  static Numbers strides(const Heads& x) { return {x.batch_stride, x.head_stride, x.stride, 1}; }
  Numbers lse_sizes() const { return {call_.batch, call_.heads, call_.queries, 1}; }
  Numbers lse_strides() const { return {call_.heads * call_.queries, call_.queries, 1, 1}; }
  TensorPointer input(Name name, const Heads& x, std::int64_t heads) {
    return graph_.tensor(
        fe::graph::Tensor_attributes().set_uid(name).set_dim(sizes(heads)).set_stride(strides(x)));
  }
  void output(const TensorPointer& tensor, Name name, const Heads& x, std::int64_t heads) const {
    tensor->set_output(true).set_uid(name).set_dim(sizes(heads)).set_stride(strides(x));
  }

  fe::graph::Graph& graph_;
  const Attention& call_;
};

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
    workspace_.grow(ledger_, device::Use::workspace, plan.workspace, device_);
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

const std::string& load_cudnn() {
  static const std::string why_not = [] {
    // The frontend would look for the CUDA runtime of other versions first.
    setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", TRIREME_CUDART, 0);
    cudnn_frontend::cudnn_dlhandle = dlopen(TRIREME_CUDNN, RTLD_NOW | RTLD_GLOBAL);
    if (cudnn_frontend::cudnn_dlhandle != nullptr) return std::string();
    const char* reason = dlerror();
    return std::string(reason == nullptr ? TRIREME_CUDNN " cannot be loaded" : reason);
  }();
  return why_not;
}

void add_attention(fe::graph::Graph& graph, const Attention& call) {
  Builder(graph, call).forward();
}

void add_attention_gradient(fe::graph::Graph& graph, const Attention& call,
                            const AttentionGradients& to, bool deterministic) {
  Builder(graph, call).backward(to, deterministic);
}

fe::error_t build(fe::graph::Graph& graph, cudnnHandle_t handle, std::int64_t& workspace) {
  fe::error_t result = graph.validate();
  if (result.is_good()) result = graph.build_operation_graph(handle);
  if (result.is_good()) result = graph.create_execution_plans({fe::HeurMode_t::A});
  if (result.is_good()) result = graph.check_support();
  if (result.is_good()) result = graph.build_plans();
  if (result.is_good()) result = graph.get_workspace_size(workspace);
  return result;
}

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
