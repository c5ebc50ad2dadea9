// What a run's record has of the algorithms that a backend chose.
#include "trireme/train/setup.hpp"

namespace trireme::train {

nlohmann::json choices_json(const std::vector<ops::Choice>& choices) {
  nlohmann::json json = nlohmann::json::array();
  for (const ops::Choice& choice : choices) {
    json.push_back({{"rows", choice.rows},
                    {"columns", choice.columns},
                    {"depth", choice.depth},
                    {"factors", choice.factors},
                    {"result", choice.result},
                    {"form", choice.form},
                    {"accumulates", choice.accumulates},
                    {"epilogue", choice.epilogue},
                    {"algorithm", choice.algorithm},
                    {"source", choice.source}});
  }
  return json;
}

nlohmann::json attention_json(const std::vector<ops::AttentionChoice>& choices) {
  nlohmann::json json = nlohmann::json::array();
  for (const ops::AttentionChoice& choice : choices) {
    json.push_back({{"batch", choice.batch},
                    {"tokens", choice.tokens},
                    {"heads", choice.heads},
                    {"groups", choice.groups},
                    {"size", choice.size},
                    {"type", choice.type},
                    {"backward", choice.backward},
                    {"kernel", choice.kernel},
                    {"workspace", choice.workspace},
                    {"refusal", choice.refusal}});
  }
  return json;
}

std::string attention_warning(const std::vector<ops::AttentionChoice>& choices) {
  for (const ops::AttentionChoice& choice : choices) {
    if (choice.refusal.empty()) continue;
    const std::string reason = choice.refusal.substr(0, choice.refusal.find('\n'));
    return fmt::format(
        "attention {} of {} x {} tokens, {} heads of {} in {}: cuDNN does not take it ({}); "
        "kernels of Trireme's own compute it, more slowly",
        choice.backward ? "backward" : "forward", choice.batch, choice.tokens, choice.heads,
        choice.size, choice.type, reason);
  }
  return {};
}

nlohmann::json graphs_account(const parallel::StepGraphs& graphs) {
  return {{"captured", graphs.captured()},
          {"launched", graphs.launched()},
          {"refusal", graphs.refusal()}};
}

std::string refusals_warning(const std::vector<nlohmann::json>& accounts) {
  for (const nlohmann::json& account : accounts) {
    const auto graphs = account.find("graphs");
    if (graphs == account.end()) continue;
    const auto refusal = graphs->at("refusal").get<std::string>();
    if (refusal.empty()) continue;
    return fmt::format("device.graphs: rank {}: {}; it trained without",
                       account.at("rank").get<int>(), refusal);
  }
  return {};
}

}  // namespace trireme::train
