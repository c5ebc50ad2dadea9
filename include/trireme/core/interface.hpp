// The base of interfaces.
#pragma once

namespace trireme {

/// A class that is used, and destroyed, through pointers to it, and is never copied.
class Interface {
 public:
  Interface() = default;
  Interface(const Interface&) = delete;
  Interface& operator=(const Interface&) = delete;
  virtual ~Interface() = default;
};

}  // namespace trireme
