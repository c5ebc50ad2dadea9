// Attention by cuDNN: a graph per kind of call, built when such a call is first met and kept.
#include <array>
#include <bit>
#include <map>
#include <unordered_map>
#include <utility>

#include <cudnn_frontend.h>

#include "trireme/core/error.hpp"
#include "trireme/device/memory.hpp"

#include "fused_attention.hpp"

namespace trireme::ops {
namespace {

namespace fe = cudnn_frontend;
using TensorPointer = std::shared_ptr<fe::graph::Tensor_attributes>;

void check(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw Error("{}: {}", call, cudnnGetErrorString(status));
}
#define TRIREME_CUDNN_CALL(call) check(call, #call)

/// The numbers by which a graph's tensors are given memory.
enum Name : std::int64_t { q = 1, k, v, out, lse, dout, dq, dk, dv };

/// Everything that a graph depends on.
struct Kind {
  bool backward = false;
  Element type = Element::bf16;
  std::array<std::int64_t, 5> sizes{};  // batch, tokens, heads, groups, head size
  std::uint32_t scale = 0;              // its bits
  std::array<std::array<std::int64_t, 3>, 8> strides{};
  auto operator<=>(const Kind&) const = default;
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

/// Builds the graph of one call.
class Builder {
 public:
  explicit Builder(const Attention& call) : call_(call) {
    const fe::DataType_t type =
        call.type == Element::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF;
    graph_->set_io_data_type(type)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  std::shared_ptr<fe::graph::Graph> forward() {
    const auto options = fe::graph::SDPA_attributes()
                             .set_name("attention")
                             .set_generate_stats(true)
                             .set_causal_mask(true)
                             .set_attn_scale(call_.scale);
    auto [result, statistics] =
        graph_->sdpa(input(q, call_.q, call_.heads), input(k, call_.k, call_.groups),
                     input(v, call_.v, call_.groups), options);
    output(result, out, call_.out, call_.heads);
    statistics->set_output(true)
        .set_uid(lse)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim(lse_sizes())
        .set_stride(lse_strides());
    return graph_;
  }

  std::shared_ptr<fe::graph::Graph> backward(const AttentionGradients& to, bool deterministic) {
    const auto options = fe::graph::SDPA_backward_attributes()
                             .set_name("attention_backward")
                             .set_causal_mask(true)
                             .set_attn_scale(call_.scale)
                             .set_deterministic_algorithm(deterministic);
    const TensorPointer statistics = graph_->tensor(fe::graph::Tensor_attributes()
                                                        .set_uid(lse)
                                                        .set_data_type(fe::DataType_t::FLOAT)
                                                        .set_dim(lse_sizes())
                                                        .set_stride(lse_strides()));
    auto [to_q, to_k, to_v] =
        graph_->sdpa_backward(input(q, call_.q, call_.heads), input(k, call_.k, call_.groups),
                              input(v, call_.v, call_.groups), input(out, call_.out, call_.heads),
                              input(dout, to.dout, call_.heads), statistics, options);
    output(to_q, dq, to.dq, call_.heads);
    output(to_k, dk, to.dk, call_.groups);
    output(to_v, dv, to.dv, call_.groups);
    return graph_;
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
    return graph_->tensor(
        fe::graph::Tensor_attributes().set_uid(name).set_dim(sizes(heads)).set_stride(strides(x)));
  }
  void output(const TensorPointer& tensor, Name name, const Heads& x, std::int64_t heads) const {
    tensor->set_output(true).set_uid(name).set_dim(sizes(heads)).set_stride(strides(x));
  }

  const Attention& call_;
  std::shared_ptr<fe::graph::Graph> graph_ = std::make_shared<fe::graph::Graph>();
};

class CudnnAttention final : public FusedAttention {
 public:
  CudnnAttention(device::MemoryLedger& ledger, device::Device& device, CUstream_st* stream,
                 bool deterministic)
      : ledger_(ledger), device_(device), deterministic_(deterministic) {
    TRIREME_CUDNN_CALL(cudnnCreate(&handle_));
    const cudnnStatus_t set = cudnnSetStream(handle_, stream);
    if (set != CUDNN_STATUS_SUCCESS) cudnnDestroy(handle_);  // the destructor will not run
    TRIREME_CUDNN_CALL(set);
  }
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;
  ~CudnnAttention() override {
    plans_.clear();
    cudnnDestroy(handle_);
  }

  bool forward(const Attention& call) override {
    const Plan& plan = plan_of(kind_of(call, nullptr), [&] { return Builder(call).forward(); });
    return run(plan, {{q, call.q.data},
                      {k, call.k.data},
                      {v, call.v.data},
                      {out, call.out.data},
                      {lse, call.lse}});
  }

  bool backward(const Attention& call, const AttentionGradients& to) override {
    const Plan& plan =
        plan_of(kind_of(call, &to), [&] { return Builder(call).backward(to, deterministic_); });
    return run(plan, {{q, call.q.data},
                      {k, call.k.data},
                      {v, call.v.data},
                      {out, call.out.data},
                      {lse, call.lse},
                      {dout, to.dout.data},
                      {dq, to.dq.data},
                      {dk, to.dk.data},
                      {dv, to.dv.data}});
  }

 private:
  struct Plan {
    std::shared_ptr<fe::graph::Graph> graph;  // null: refused
    std::size_t workspace = 0;
  };
  using Pointers = std::unordered_map<std::int64_t, void*>;

  /// A library that cannot build a graph for a call says so in one of these steps.
  bool build(Plan& plan) {
    fe::graph::Graph& graph = *plan.graph;
    std::int64_t bytes = 0;
    const bool built =
        graph.validate().is_good() && graph.build_operation_graph(handle_).is_good() &&
        graph.create_execution_plans({fe::HeurMode_t::A}).is_good() &&
        graph.check_support(handle_).is_good() && graph.build_plans(handle_).is_good() &&
        graph.get_workspace_size(bytes).is_good();
    plan.workspace = static_cast<std::size_t>(bytes);
    return built;
  }

  template <class Make>
  const Plan& plan_of(const Kind& kind, const Make& make) {
    const auto [place, is_new] = plans_.try_emplace(kind);
    if (is_new) {
      place->second.graph = make();
      if (!build(place->second)) place->second.graph = nullptr;
    }
    return place->second;
  }

  bool run(const Plan& plan, Pointers pointers) {
    if (plan.graph == nullptr) return false;
    if (plan.workspace > workspace_.bytes()) {
      workspace_ = device::Buffer();  // first, so that both are never held at once
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
  cudnnHandle_t handle_ = nullptr;
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
  const std::size_t version = cudnnGetVersion();
  return fmt::format("cuDNN {}.{}.{} through cudnn-frontend {}.{}.{}", version / 10000,
                     version / 100 % 100, version % 100, CUDNN_FRONTEND_MAJOR_VERSION,
                     CUDNN_FRONTEND_MINOR_VERSION, CUDNN_FRONTEND_PATCH_VERSION);
}

}  // namespace trireme::ops
