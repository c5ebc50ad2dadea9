#include "cudnn_graphs.hpp"

#include <cstdlib>
#include <vector>

#include <dlfcn.h>

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

}  // namespace trireme::ops
