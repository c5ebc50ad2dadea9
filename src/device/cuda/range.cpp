#include "trireme/device/range.hpp"

#include <nvtx3/nvToolsExt.h>

namespace trireme::device {
namespace {

nvtxDomainHandle_t domain() {
  static nvtxDomainHandle_t own = nvtxDomainCreateA("trireme");
  return own;
}

}  // namespace

Range::Range(const char* name) {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name;
  nvtxDomainRangePushEx(domain(), &attributes);
}

Range::~Range() { nvtxDomainRangePop(domain()); }

}  // namespace trireme::device
