// Products on GPUs read and write 16 bytes at once where every row begins at a multiple of that.
#include <set>

#include <gtest/gtest.h>

#include "trireme/model/config.hpp"
#include "trireme/ops/forwarding.hpp"
#include "trireme/ops/tensor_rows.hpp"

#include "parallel/layouts.hpp"

namespace trireme::parallel::test {
namespace {

/// Computes nothing, and notes the matrices of products.
class ProductRows final : public ops::ForwardingOps<ProductRows> {
 public:
  explicit ProductRows(std::set<std::string>& odd, int& products)
      : odd_(odd), products_(products) {}
  template <class... Parameters, class... Arguments>
  void forward(const char* /*name*/, void (Ops::*)(Parameters...), const Arguments&... arguments) {
    note(arguments...);
  }

 private:
  template <class... T>
  void note(const T&...) {}
  void note(const Tensor& c, const Tensor& a, const Tensor& b, const ops::MatmulOptions&) {
    ++products_;
    for (const Tensor* each : {&c, &a, &b}) {
      const auto bytes = static_cast<std::int64_t>(size_of(each->type()));
      const auto address = reinterpret_cast<std::uintptr_t>(each->data());
      const std::int64_t stride = ops::row_shape(*each).stride * bytes;
      if (address % 16 == 0 && stride % 16 == 0) continue;
      odd_.insert(fmt::format("{} = {} · {}: one has rows of {} bytes", c.shape().to_string(),
                              a.shape().to_string(), b.shape().to_string(), stride));
    }
  }
  std::set<std::string>& odd_;
  int& products_;
};

TEST(ProductRows, BeginAtMultiplesOf16BytesOnGpus) {
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks > 1) GTEST_SKIP() << "one rank has every product";
  for (const char* name : {"gpt2", "gpt2-xl", "llama-1b"}) {
    for (const bool aligned : {true, false}) {
      model::ModelConfig config;
      config::Fields fields;
      fields.section("model", config);
      fields.from_json({{"model", model::find_preset(name).values}}, config::Source::preset, name);
      config.layers = 1;
      config.sequence = 64;
      config.resolve();
      std::set<std::string> odd;
      int products = 0;
      const MakeTestDevice make = [&](int) {
        return TestDevice{nullptr, [&](device::MemoryLedger&, int, bool) {
                            return std::make_unique<ProductRows>(odd, products);
                          }};
      };
      const LayoutCase layout;
      const RunSettings settings{
          .global_batch = 1, .reproducible = false, .make_device = make, .compute = DType::bf16};
      StageOptions stage = stage_options(layout, settings);
      stage.products_on_gpu = aligned;
      LayoutRun run(config, layout, stage, MPI_COMM_WORLD, make);
      run.replica.backward(make_batches(config, layout, 0, 0, 1));
      EXPECT_EQ(products, 3 * (4 + 1)) << name << ": a block's four and the head's, and backward";
      const bool odd_vocabulary = config.vocabulary % 8 != 0;
      EXPECT_EQ(odd.empty(), aligned || !odd_vocabulary)
          << name << ", " << (odd.empty() ? "" : *odd.begin());
    }
  }
}

}  // namespace
}  // namespace trireme::parallel::test
