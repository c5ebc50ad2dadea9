// Names of what a transformers folder has beside the model.
#pragma once

namespace trireme::checkpoint {

/// Keys of config.json.
inline constexpr const char* token_id_keys[] = {"bos_token_id", "eos_token_id", "pad_token_id"};

/// Files beside config.json; the first ones belong to tokenizers.
inline constexpr const char* auxiliary_names[] = {"tokenizer.json",
                                                  "tokenizer_config.json",
                                                  "tokenizer.model",
                                                  "special_tokens_map.json",
                                                  "vocab.json",
                                                  "merges.txt",
                                                  "added_tokens.json",
                                                  "chat_template.jinja",
                                                  "vocab.txt",
                                                  "chat_template.json",
                                                  "generation_config.json"};

}  // namespace trireme::checkpoint
