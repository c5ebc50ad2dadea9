// Layouts that must be refused, and the key that the message must name.
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "matrix.hpp"

namespace trireme::parallel::test {
namespace {

/// A user's request.
struct Asked {
  int world = 1;
  comm::Degrees degrees;
  int zero_group = 0;
  StageOptions stage{.micro_batches = 8};
  int model = 0;  // of matrix_models()
};

/// All ranks' stages of the request, as in a run.
void lay_out(const Asked& asked) {
  comm::GridShape shape = comm::make_grid_shape(asked.world, asked.degrees);
  const model::Transformer model(matrix_models()[static_cast<std::size_t>(asked.model)].config);
  StageOptions options = asked.stage;
  shape.shard = comm::shard_degree(shape, asked.zero_group);
  for (int rank = 0; rank < shape.size(); ++rank) {
    options.place = place_of(shape, rank, false);
    const Stage stage(model, options);
  }
}

struct Refused {
  const char* what;
  Asked asked;
  const char* key;     // the message starts with it
  const char* remedy;  // and contains this
};

StageOptions stage(const std::function<void(StageOptions&)>& change) {
  StageOptions options{.micro_batches = 8};
  change(options);
  return options;
}

const std::vector<Refused>& refused() {
  static const std::vector<Refused> list = {
      {"tensor degree that does not divide the ranks",
       {.world = 8, .degrees = {.tensor = 3}},
       "parallel.tensor = 3: ",
       "use 2 or 4"},
      {"pipeline degree that does not divide what is left",
       {.world = 8, .degrees = {.tensor = 4, .pipeline = 4}},
       "parallel.pipeline = 4: ",
       "use 1 or 2"},
      {"context degree that does not divide what is left",
       {.world = 8, .degrees = {.tensor = 4, .context = 4}},
       "parallel.context = 4: ",
       "use 1 or 2"},
      {"sequence that context ranks cannot cut",
       {.world = 4, .degrees = {.context = 4}},
       "model.sequence = ",
       "must divide by 2 x parallel.context, 8"},
      {"reproducible, context degree beyond the virtual one",
       {.world = 2, .degrees = {.context = 2}, .stage = stage([](auto& s) {
                                                 s.reproducible = true;
                                               })},
       "parallel.context = 2: ",
       "numerics.virtual_context"},
      {"data degree that leaves ranks over",
       {.world = 8, .degrees = {.tensor = 2, .pipeline = 2, .data = 4}},
       "parallel.data = 4: ",
       "use 2"},
      {"shard groups that do not divide the data degree",
       {.world = 4, .degrees = {.data = 4}, .zero_group = 3},
       "zero.group = 3: ",
       "use 2 or 4"},
      {"shard groups of more than the data ranks",
       {.world = 2, .degrees = {.data = 2}, .zero_group = 4},
       "zero.group = 4: ",
       "use 2"},
      {"schedule that does not exist",
       {.stage = stage([](auto& s) { s.schedule = "1b1f"; })},
       "parallel.schedule = 1b1f: ",
       "did you mean 1f1b?"},
      {"interleaving on one stage",
       {.stage = stage([](auto& s) {
          s.schedule = "interleaved";
          s.virtual_stages = 2;
        })},
       "parallel.virtual_stages = 2: ",
       "parallel.pipeline of at least 2"},
      {"virtual stages of a schedule that has none",
       {.world = 2, .degrees = {.pipeline = 2}, .stage = stage([](auto& s) {
                                                  s.virtual_stages = 2;
                                                })},
       "parallel.virtual_stages = 2: ",
       "parallel.schedule = interleaved"},
      {"more virtual stages than units",
       {.world = 4, .degrees = {.pipeline = 4}, .stage = stage([](auto& s) {
                                                  s.schedule = "interleaved";
                                                  s.virtual_stages = 2;
                                                })},
       "parallel.pipeline x parallel.virtual_stages = 8: ",
       "at most 5"},
      {"more stages than units",
       {.world = 8, .degrees = {.pipeline = 8}},
       "parallel.pipeline x parallel.virtual_stages = 8: ",
       "at most 5"},
      {"virtual degree that is no power of two",
       {.stage = stage([](auto& s) {
          s.reproducible = true;
          s.virtual_tensor = 6;
        })},
       "numerics.virtual_tensor = 6: ",
       "use 4 or 8"},
      {"the same of the data axis",
       {.stage = stage([](auto& s) {
          s.reproducible = true;
          s.virtual_data = 0;
        })},
       "numerics.virtual_data = 0: ",
       "use 1"},
      {"reproducible, tensor degree beyond the virtual one",
       {.world = 4, .degrees = {.tensor = 4}, .stage = stage([](auto& s) {
                                                s.reproducible = true;
                                                s.virtual_tensor = 2;
                                              })},
       "parallel.tensor = 4: ",
       "use at most 2, or numerics.virtual_tensor = 4"},
      {"reproducible, tensor degree that is no power of two",
       {.world = 3, .degrees = {.tensor = 3}, .stage = stage([](auto& s) {
                                                s.reproducible = true;
                                              })},
       "parallel.tensor = 3: ",
       "use 2"},
      {"reproducible, data degree that is no power of two",
       {.world = 3, .degrees = {.data = 3}, .stage = stage([](auto& s) { s.reproducible = true; })},
       "parallel.data = 3: ",
       "use 2"},
      {"reproducible, batch that the virtual data degree does not divide",
       {.stage = stage([](auto& s) {
          s.reproducible = true;
          s.micro_batches = 6;
        })},
       "numerics.virtual_data = 8: ",
       "use a train.batch of 8, or numerics.virtual_data = 2"},
      {"reproducible, forwards of the head out of order",
       {.stage = stage([](auto& s) {
          s.reproducible = true;
          s.virtual_data = 1;
          s.micro_batches = 2;
          s.schedule = "file:late.csv";
          s.schedule_text = "0F1,0F0,0B0,0B1\n";
        })},
       "parallel.schedule = file:late.csv: ",
       "ascending order"},
      {"no micro-batches",
       {.stage = stage([](auto& s) { s.micro_batches = 0; })},
       "micro-batches = 0: ",
       "use 1 or more"},
  };
  return list;
}

TEST(Refused, NamesTheKeyAndARemedy) {
  for (const Refused& each : refused()) {
    SCOPED_TRACE(each.what);
    try {
      lay_out(each.asked);
      ADD_FAILURE() << "was accepted";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), testing::StartsWith(each.key));
      EXPECT_THAT(error.what(), testing::HasSubstr(each.remedy));
    }
  }
}

// Every layout of the matrix can be built, in both modes.
TEST(Refused, NothingOfTheMatrix) {
  for (const Row& row : random_rows(1, 100)) {
    const MatrixCase each = matrix_case(row);
    const MatrixModel& model = matrix_models()[static_cast<std::size_t>(each.model)];
    const LayoutCase& layout = each.layout;
    for (const bool reproducible : {false, true}) {
      EXPECT_NO_THROW(lay_out(
          {.world = layout.ranks(),
           .degrees = {.tensor = layout.tensor, .pipeline = layout.pipeline, .data = layout.data},
           .zero_group = layout.shard,
           .stage = stage_options(layout, {.global_batch = matrix_batch,
                                           .reproducible = reproducible,
                                           .virtual_tensor = model.virtual_tensor,
                                           .virtual_data = model.virtual_data}),
           .model = each.model}))
          << each.to_string();
    }
  }
}

}  // namespace
}  // namespace trireme::parallel::test
