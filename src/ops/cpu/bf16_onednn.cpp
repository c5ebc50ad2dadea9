#include "bf16_onednn.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>

#include <dnnl.hpp>

#include "threads.hpp"

namespace trireme::ops {

struct OnednnProducts::Made {
  dnnl::matmul primitive;
  std::string implementation;
  std::unordered_map<int, dnnl::memory> arguments;
};

struct OnednnProducts::Cache {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<OnednnProduct, Made> made;
};

OnednnProducts::OnednnProducts() = default;
OnednnProducts::~OnednnProducts() = default;

bool OnednnProducts::preferred() {
  constexpr auto wanted = static_cast<unsigned>(dnnl_cpu_isa_avx512_core_amx);
  static const bool here = (static_cast<unsigned>(dnnl_get_effective_cpu_isa()) & wanted) == wanted;
  return here;
}

OnednnProducts::Made& OnednnProducts::find(const OnednnProduct& product) {
  using dnnl::memory;
  if (!cache_) cache_ = std::make_unique<Cache>();
  const auto found = cache_->made.find(product);
  if (found != cache_->made.end()) return found->second;
  if (cache_->made.size() >= most) cache_->made.clear();
  const auto& [m, n, k, transpose_a, transpose_b, a_stride, b_stride, c_stride, wide, accumulate,
               bias, threads] = product;
  using Extents = memory::dims;
  // A view of one row may have any stride; oneDNN wants one of at least the width.
  const auto matrix = [](std::int64_t rows, std::int64_t columns, bool transposed,
                         std::int64_t stride, memory::data_type type) {
    const std::int64_t far = std::max(stride, transposed ? rows : columns);
    return memory::desc({rows, columns}, type, transposed ? Extents{1, far} : Extents{far, 1});
  };
  const auto narrow = memory::data_type::bf16;
  const memory::desc a = matrix(m, k, transpose_a, a_stride, narrow);
  const memory::desc b = matrix(k, n, transpose_b, b_stride, narrow);
  const memory::desc c = matrix(m, n, false, c_stride, wide ? memory::data_type::f32 : narrow);
  const memory::desc of_bias = bias ? matrix(1, n, false, n, narrow) : memory::desc();
  dnnl::primitive_attr attributes;
  if (accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attributes.set_post_ops(sum);
  }
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::matmul::primitive_desc description(cache_->engine, a, b, of_bias, c, attributes);
#else
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, of_bias, c), attributes,
                                                 cache_->engine);
#endif
  const auto place = [&](const memory::desc& of) {
    return memory(of, cache_->engine, DNNL_MEMORY_NONE);
  };
  Made made{dnnl::matmul(description),
            description.impl_info_str(),
            {{DNNL_ARG_SRC, place(a)}, {DNNL_ARG_WEIGHTS, place(b)}, {DNNL_ARG_DST, place(c)}}};
  if (bias) made.arguments.emplace(DNNL_ARG_BIAS, place(of_bias));
  return cache_->made.emplace(product, std::move(made)).first->second;
}

const char* OnednnProducts::implementation(const OnednnProduct& product) {
  const ThreadScope scope(product.threads);
  return find(product).implementation.c_str();
}

void OnednnProducts::run(const OnednnProduct& product, const Bf16* a, const Bf16* b, void* c,
                         const Bf16* bias) {
  const ThreadScope scope(product.threads);
  Made& made = find(product);
  made.arguments.at(DNNL_ARG_SRC).set_data_handle(const_cast<Bf16*>(a));
  made.arguments.at(DNNL_ARG_WEIGHTS).set_data_handle(const_cast<Bf16*>(b));
  made.arguments.at(DNNL_ARG_DST).set_data_handle(c);
  if (bias != nullptr) {
    made.arguments.at(DNNL_ARG_BIAS).set_data_handle(const_cast<Bf16*>(bias));
  }
  made.primitive.execute(cache_->stream, made.arguments);
  cache_->stream.wait();
}

}  // namespace trireme::ops
