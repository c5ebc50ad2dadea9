#include "trireme/core/json.hpp"

#include <cmath>
#include <utility>
#include <vector>

#include "trireme/core/config.hpp"
#include "trireme/core/error.hpp"

namespace trireme {

namespace {

using nlohmann::json;

/// Frees what `value` holds from the inside out: json's destructor first moves all that is nested
/// into a list of its own, against recursion, which takes longer than the rest.
void empty(json& value) {
  if (auto* list = value.get_ptr<json::array_t*>()) {
    for (json& each : *list) empty(each);
    list->clear();
  } else if (auto* object = value.get_ptr<json::object_t*>()) {
    for (auto& [key, each] : *object) empty(each);
    object->clear();
  }
}

/// Builds a value from the parser's events, which it checks. nlohmann's own parser with a callback
/// takes quadratic time: at the end of each element it walks through the whole list.
class Builder : public nlohmann::json_sax<json> {
 public:
  Builder(const std::string& where, std::string_view remedy, const PassingList& list)
      : where_(where), remedy_(remedy), list_(list) {}
  json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return false; }  // not in JSON's text
  bool start_object(std::size_t /*size*/) override { return open(json::object()); }
  bool start_array(std::size_t /*size*/) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& key) override {
    const auto [value, is_new] = open_.back()->emplace(std::move(key), nullptr);
    if (!is_new) {
      throw Error("{}: has the key \"{}\" twice; {}", where_,
                  config::one_line(config::shortened(value.key(), 80)), remedy_);
    }
    if (open_.size() == 1) passing_ = list_.take && value.key() == list_.key;
    value_ = &*value;
    return true;
  }
  bool parse_error(std::size_t byte, const std::string& /*token*/,
                   const json::exception& error) override {
    if (dynamic_cast<const json::parse_error*>(&error) == nullptr) {  // a number past all bounds
      throw Error("{}: is not valid JSON that can be read; {}", where_, remedy_);
    }
    throw Error("{}: is not valid JSON at byte {}; {}", where_, byte, remedy_);
  }

 private:
  static constexpr std::size_t deepest = 64;

  json& place(json&& value) {
    if (open_.empty()) return root_ = std::move(value);
    if (open_.back()->is_object()) return *value_ = std::move(value);
    return open_.back()->emplace_back(std::move(value));
  }
  bool add(json&& value) {
    place(std::move(value));
    pass_on();
    return true;
  }
  bool open(json&& value) {
    if (open_.size() == deepest) {
      throw Error("{}: is nested more than {} deep; {}", where_, deepest, remedy_);
    }
    open_.push_back(&place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    pass_on();
    return true;
  }
  /// A value is complete: perhaps an element of the passing list.
  void pass_on() {
    if (!passing_ || open_.size() != 2 || !open_.back()->is_array()) return;
    list_.take(open_.back()->back());
    empty(*open_.back());
  }

  const std::string& where_;
  std::string_view remedy_;
  const PassingList& list_;
  bool passing_ = false;  // inside its value
  json root_;
  std::vector<json*> open_;  // from the outermost on
  json* value_ = nullptr;    // of the key that was read last
};

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& where, std::string_view remedy,
                          const PassingList& list) {
  Builder builder(where, remedy, list);
  json::sax_parse(text, &builder);  // throws what the builder throws
  return builder.take();
}

nlohmann::json parse_json(std::string_view text, const std::string& where,
                          std::string_view remedy) {
  return parse_json(text, where, remedy, PassingList{});
}

std::string shown(const nlohmann::json& value) {
  return config::one_line(
      config::shortened(value.dump(-1, ' ', false, json::error_handler_t::replace), 60));
}

nlohmann::json finite(nlohmann::json value) {
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (std::isnan(number)) return "nan";
    if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  }
  if (value.is_structured()) {
    for (auto& item : value) item = finite(std::move(item));
  }
  return value;
}

std::string json_text(const nlohmann::json& value, int indent) {
  return finite(value).dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace trireme
