#include <string_view>

#include "common/base/config.h"

namespace tandem::base {

std::string_view Version() { return TANDEM_VERSION; }

}  // namespace tandem::base
